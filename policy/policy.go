// Package policy evaluates requests of commands by rules.
//
// A [Policy] is usually loaded from a file with package policy/syntax. It can
// also be built from a [Definition] with [New]. A program builds a [Request]
// for each thing that a command wants to do, and passes it to
// [Policy.Evaluate]:
//
//	p, err := syntax.Load(policy.Source{Name: "policy.yaml", Data: data}, syntax.Options{})
//	// err is policy.Problems: every problem with file, line and column.
//	decision, why := p.Evaluate(&policy.FileRequest{Path: "/work/a", Op: policy.OpWrite})
//	if !decision.Permits() {
//		return fmt.Errorf("%s (%s)", why.Message, why.Hint)
//	}
//
// Requests are [CommandRequest], [FileRequest], [NetworkRequest],
// [UnixSocketRequest] and [SignalRequest]. The rules of the request's group are
// tried in order, and the first match decides. A request that no rule matches
// is denied unless [Defaults] say otherwise. A malformed request is denied, so
// Evaluate returns no error. The [Decision] has the effect. The [Diagnostic]
// has the reason, a hint and the position of the rule.
//
// A caller must implement every effect: Allow, Audit, Approve, Redirect,
// SoftDelete, Absorb and Deny. [Decision.Permits] is true only for Allow and
// Audit.
//
// Other methods return facts of a policy:
//
//   - [Policy.Roots], [Policy.Tree]: the directories that a sandbox mounts
//   - [Policy.EnvFilter], [Policy.EnvInject], [Policy.Limits]: how commands start
//   - [Policy.DeniedPrograms]: the programs that are recognised by content
//   - [Policy.Settings], [Policy.Unsupported]: what the caller must enforce
//
// [LoaderPayload], [Shebang] and [ShellCommands] parse the parts of a command.
//
// The package is pure. It reads no files and makes no system calls. A [Policy]
// does not change and is safe for concurrent use.
//
// Evaluate calls the rules of one group (commands.go, file.go, network.go,
// socket.go, signal.go). These call the matchers of their selectors (args.go,
// payload.go, webpath.go, netaddr.go). explain.go and hint.go describe a
// decision afterwards.
package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"slices"

	"agentsh/internal/layout"
	"agentsh/policy/env"
	"agentsh/policy/glob"
)

// Source is the content of one policy file.
type Source struct {
	Name string `json:"name"` // path shown in positions
	Data []byte `json:"data"`
}

// Definition is the content of a policy. [New] builds a [Policy] from it.
type Definition struct {
	Name, Description string
	Sources           []Source          // the files, the main one first
	Vars              map[string]string // values of ${NAME} in patterns
	Rules             [GroupCount][]*Rule
	Given             [GroupCount]bool // a file has the group's key, possibly without rules
	Defaults          Defaults
	Env               EnvSettings // env_policy
	Inject            map[string]Injection
	Limits            Limits
	Audit             AuditSettings
	Approvals         Approvals
	// Transparent is the set of wrappers whose payload is evaluated too. A
	// payload is a command in the arguments. See [DefaultTransparent].
	Transparent map[string]bool
	ExecFrom    []*glob.Glob // nil: programs may run from every directory
	GitGuard    *Switch      // nil: not given
	SSH         SSH
	Settings    []Setting // keys that the caller enforces, see [Policy.Settings]
	// Keys has where each key at the top of a file is. Of a key in several files it has
	// the place in the nearest one.
	Keys map[string]Position
}

// Defaults are the effects of requests that no rule matches. A nil effect is
// not set and denies.
type Defaults struct {
	Command    *Effect
	FileRead   *Effect // read, list and stat
	FileWrite  *Effect // every other file operation
	Network    *Effect
	UnixSocket *Effect
	Signal     *Effect
}

// Policy is a set of rules and settings. It is safe for concurrent use.
type Policy struct {
	def      Definition
	digest   string
	commands commandRules
	files    fileRules
	network  networkRules
	sockets  socketRules
	signals  signalRules
}

// New returns the policy of a definition. The policy uses the definition and
// its rules without copying them, so they must not be changed afterwards.
func New(d Definition) *Policy {
	if d.Vars == nil {
		d.Vars = map[string]string{}
	}
	p := &Policy{def: d, digest: digest(d.Sources, d.Vars)}
	for _, rule := range d.Rules[GroupCommand] {
		if rule.Env != nil {
			rule.filter = mergeFilter(&d.Env, &rule.Command.Env)
		}
	}
	p.files = newFileRules(d.Rules[GroupFile], d.Defaults)
	p.commands = newCommandRules(&d, &p.files)
	p.network = newNetworkRules(d.Rules[GroupNetwork], d.Defaults)
	p.sockets = newSocketRules(d.Rules[GroupUnixSocket], d.Defaults)
	p.signals = signalRules{rules: d.Rules[GroupSignal], other: orDeny(d.Defaults.Signal)}
	return p
}

// orDeny returns a default, or Deny if it is not set.
func orDeny(e *Effect) Effect {
	if e == nil {
		return Deny
	}
	return *e
}

// digest returns the hex SHA-256 of the sources and variables. Each is preceded
// by its length.
func digest(sources []Source, vars map[string]string) string {
	h := sha256.New()
	for _, s := range sources {
		hashText(h, s.Name)
		hashText(h, string(s.Data))
	}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		hashText(h, name)
		hashText(h, vars[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

func hashText(h hash.Hash, s string) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(s)))
	h.Write(length[:])
	h.Write([]byte(s))
}

// Name returns the policy's name.
func (p *Policy) Name() string { return p.def.Name }

// Description returns the policy's description.
func (p *Policy) Description() string { return p.def.Description }

// Digest returns the hex SHA-256 of the sources and variables. Policies with
// the same digest make the same decisions.
func (p *Policy) Digest() string { return p.digest }

// Sources returns the files the policy was loaded from, the main one first. Rules that were
// put before it come first of all, see [MainFile].
func (p *Policy) Sources() []Source { return slices.Clone(p.def.Sources) }

// MainFile is the file of a policy: rules that were put before it have no file. It is
// empty without sources.
func MainFile(p *Policy) string {
	s := p.def.Sources
	if len(s) > 1 && layout.BeforePolicy(s[0].Name) {
		s = s[1:]
	}
	if len(s) == 0 {
		return ""
	}
	return s[0].Name
}

// Top is the beginning of the main file of a policy.
func Top(p *Policy) Position { return Position{File: MainFile(p), Line: 1, Column: 1} }

// Key returns the position of a key at the top of a file: of the first that is given.
func (p *Policy) Key(names ...string) (Position, bool) {
	for _, name := range names {
		if at, ok := p.def.Keys[name]; ok {
			return at, true
		}
	}
	return Position{}, false
}

// Vars returns the variables the policy was loaded with.
func (p *Policy) Vars() map[string]string { return maps.Clone(p.def.Vars) }

// Rules returns the rules of one group in evaluation order. The caller must not
// change them.
func (p *Policy) Rules(g Group) []*Rule {
	if int(g) >= GroupCount {
		return nil
	}
	return p.def.Rules[g]
}

// Governs reports whether the policy has rules or a default for a group.
// Evaluate denies every request of a group that it does not govern.
func (p *Policy) Governs(g Group) bool {
	if int(g) >= GroupCount {
		return false
	}
	d := &p.def.Defaults
	given := p.def.Given[g]
	switch g {
	case GroupFile:
		return given || d.FileRead != nil || d.FileWrite != nil
	case GroupNetwork:
		return given || d.Network != nil
	case GroupUnixSocket:
		return given || d.UnixSocket != nil
	case GroupSignal:
		return given || d.Signal != nil
	default:
		return given || d.Command != nil
	}
}

// EnvFilter returns the stricter combination of env_policy and a matched
// command rule. r may be nil. The caller must not change the result.
func (p *Policy) EnvFilter(r *Rule) env.Filter {
	if r == nil || r.Env == nil {
		return p.def.Env.Filter
	}
	return r.filter
}

// Defaults returns the effects of requests that no rule matches, as written in the files.
func (p *Policy) Defaults() Defaults { return p.def.Defaults }

// EnvSettings returns env_policy as written in the files.
func (p *Policy) EnvSettings() EnvSettings { return p.def.Env }

// EnvInject returns the policy's env_inject.
func (p *Policy) EnvInject() map[string]string {
	out := make(map[string]string, len(p.def.Inject))
	for name, in := range p.def.Inject {
		out[name] = in.Value
	}
	return out
}

// EnvNested returns the sorted names of env_inject that are restored at every
// execve below a command.
func (p *Policy) EnvNested() []string {
	var out []string
	for name, in := range p.def.Inject {
		if in.Nested {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Limits returns the stricter combination of resource_limits and a matched
// command rule. r may be nil.
func (p *Policy) Limits(r *Rule) Limits {
	if r == nil || r.Limits == nil {
		return p.def.Limits
	}
	return p.def.Limits.stricter(r.Limits)
}

// Audit returns what the audit log records.
func (p *Policy) Audit() AuditSettings { return p.def.Audit }

// Approvals returns the settings for approvals.
func (p *Policy) Approvals() Approvals { return p.def.Approvals }

// Transparent reports whether the payload of a wrapper is evaluated. name is a
// result of [WrapperName].
func (p *Policy) Transparent(name string) bool { return p.def.Transparent[name] }

// ExecFrom returns the patterns of the only directories from which programs may
// run. It returns nil if the policy does not limit them. Evaluate enforces
// them.
func (p *Policy) ExecFrom() []string {
	var out []string
	for _, g := range p.def.ExecFrom {
		out = append(out, g.String())
	}
	return out
}

// GitGuard reports whether git_guard is on, and the position of the setting.
func (p *Policy) GitGuard() (on bool, at Position) {
	if p.def.GitGuard == nil {
		return false, Position{}
	}
	return p.def.GitGuard.On, p.def.GitGuard.Pos
}
