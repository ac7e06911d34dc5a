// Package view turns a policy into what the commands of a session see and may
// do with files: mounts and Landlock rules.
//
// A [Confinement] is the way in which a session is kept apart from the machine.
// There are two: namespaces (namespaces.go), with mounts and Landlock beneath
// them, and Landlock alone (landlock.go), for machines that allow no namespaces.
// Everything that differs between them is a method of the interface.
//
// Calls run one way: a confinement calls the planner (planner.go), which turns
// file rules into a [Plan] and calls kernel.go for /proc, /dev and /sys, and
// trees.go for sessions without a file server. The confinement then adds what
// belongs to the session itself: startup.go, shells.go, hidden.go, sockets.go,
// and execfrom.go for noexec. signals.go and user.go stand alone.
package view

import (
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/notify"
)

// Confinement keeps the commands of one session apart from the machine. Its
// methods are safe for concurrent use.
type Confinement interface {
	// Plan plans what commands see under a policy. newDir makes an empty directory
	// outside that backs a path inside. It changes nothing else.
	Plan(p *policy.Policy, newDir func(path string) (backing string, err error)) (*Plan, error)
	// Prepare makes the session's own directories, and completes the plan by what
	// belongs to the session and the machine. It refuses a plan that this
	// confinement cannot enforce.
	Prepare(p *policy.Policy, plan *Plan) error
	// Launch is the configuration of the session init without its filter, network
	// and limits.
	Launch(p *policy.Policy, plan *Plan, files Files) (launch.Config, error)

	// SharesNetwork reports whether commands use the machine's network.
	SharesNetwork() bool
	// Filter is the part of the filter's options that depends on the confinement.
	// governed says that network rules hold.
	Filter(p *policy.Policy, governed bool) seccomp.PlanOptions
	// Signals says which signals the filter notifies under a policy.
	Signals(p *policy.Policy) seccomp.Signals
	// Evaluate returns the policy's decisions, completed for requests that only
	// this confinement makes.
	Evaluate(p *policy.Policy) func(policy.Request) (policy.Decision, policy.Diagnostic)
	// Installed returns the path at which commands see a file of [layout.Library]
	// that the session writes.
	Installed(name string) string
	// Inject returns injected variables with paths as commands see them.
	Inject(vars map[string]string) map[string]string

	// Root is the root directory that commands see, as a path outside. init is the
	// process number of the session init.
	Root(init int) string
	// Observer is the number of a process that sees files as commands do.
	Observer(init int) int
	// Tracing says how the notification loop looks at the processes of commands.
	Tracing() Tracing
}

// Tracing is how the notification loop looks at the processes of commands.
type Tracing struct {
	// Shared says that commands see the processes of the machine.
	Shared bool
	// As is the user to trace as; nil: the supervisor's own rights are enough.
	As *notify.Credentials
}

// Options describe a session to its confinement.
type Options struct {
	User      User
	Workspace []wire.Governed // the first is the workspace
	Home      string          // HOME of commands, inside
	State     string          // the session's state directory, outside; see [StateParent]
	Network   bool            // share the machine's network
	Program   bool            // show this program at [layout.Program]
	Helper    bool            // show it there if the policy shows the directory
	Audit     string          // the audit log, outside
	Hidden    []Hidden
	Missing   Missing
	// Sockets lists the Unix sockets that have a path on the machine.
	Sockets func() ([]string, error)
}

// Missing are the mechanisms that a session runs without.
type Missing struct {
	Namespaces, FileServer, Landlock, LandlockScopes, NestedCommands bool
}

// Files are what the supervisor adds to the files of a session.
type Files struct {
	Resolver     []byte // text of resolv.conf(5); nil: the machine's
	Certificates []byte // trusted certificates, PEM; nil: none
	GitConfig    []byte // git's settings of the system, at [layout.GitConfig]
}

// New returns the confinement of a session: by namespaces, or by Landlock alone
// where they are missing.
func New(o Options) Confinement {
	if o.Missing.Namespaces {
		return &landlockOnly{o}
	}
	return &namespaces{o}
}

// Plan is what the commands of a session see.
type Plan struct {
	Governed []Governed // served by the file server
	Private  []string   // directories of the session alone, below the root that commands see
	Home     string     // HOME of commands
	Emulated bool       // files below [notify.Emulated] are opened one by one
	Emulates string     // the rule that needs it, with its position

	binds   []bind
	links   []link
	open    []openTree // without a file server: reached as they are
	masked  []string   // special files that must not be reachable
	sockets []string   // of the machine, shown alone
}

// Governed is one path inside whose operations the file server decides.
type Governed struct {
	Path    string // inside
	Backing string // outside
	Dir     bool
	Closed  bool // no operation is allowed at or below it
}

// bind is a tree of the machine that is shown read-only.
type bind struct {
	path   string
	noExec bool
}

// link is a symbolic link that is shown as it is.
type link struct{ path, target string }

// Paths describes how each path of the plan is shown.
func (v *Plan) Paths() map[string]string {
	out := map[string]string{}
	for _, b := range v.binds {
		out[b.path] = map[bool]string{true: "shown without programs", false: "shown read-only"}[b.noExec]
	}
	for _, l := range v.links {
		out[l.path] = "a link"
	}
	for _, dir := range v.Private {
		out[dir] = "a private directory"
	}
	for _, g := range v.Governed {
		out[g.Path] = map[bool]string{true: "closed", false: "under file rules"}[g.Closed]
	}
	for _, m := range v.masked {
		out[m] = "covered"
	}
	if v.Emulated {
		out[notify.Emulated] = "opened file by file"
	}
	return out
}
