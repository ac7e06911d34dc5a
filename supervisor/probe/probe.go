// Package probe tries the mechanisms of the kernel that sessions are made of, and
// says what a session may do where one is missing.
//
// A primitive is one thing that is tried by using it, in a process that ends with
// the trial: [Try], [All]. Versions are not compared. process.go starts such a
// process, serve.go is what it runs, and package trial has the trials that need
// the kernel alone. A fallback is a mechanism that the operator allows to be
// missing (key degraded): [Survey] says which ones are. A requirement is what the
// operator wants proven (key require): [Require]. Both build on Try.
package probe

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"agentsh/internal/layout"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/probe/trial"
)

// Primitive is the result of one trial.
type Primitive struct {
	Name     string `json:"name"`
	What     string `json:"what"` // for a person
	Works    bool   `json:"works"`
	Detail   string `json:"detail,omitempty"`
	Why      string `json:"why,omitempty"`      // it does not work
	Change   string `json:"change,omitempty"`   // what would make it work
	Fallback string `json:"fallback,omitempty"` // mechanism of degraded with which sessions open without it
}

// All tries every primitive, in the order of a report. It stops when ctx ends.
func All(ctx context.Context) ([]Primitive, error) {
	var out []Primitive
	for _, c := range candidates {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		out = append(out, c.primitive())
	}
	return out, nil
}

// Known reports whether there is a primitive of this name.
func Known(name string) bool { return find(name) != nil }

// Try tries one primitive by its name; nil: it works. The error says what would
// make it work.
func Try(name string) error {
	c := find(name)
	if c == nil {
		return fmt.Errorf("%s: %w", name, trial.ErrUnknown)
	}
	if _, err := c.try(); err != nil {
		return &Absent{c.what, err, c.change}
	}
	return nil
}

// Absent is the error of a primitive that does not work.
type Absent struct {
	What   string
	Err    error
	Change string // what would make it work
}

func (a *Absent) Error() string {
	return fmt.Sprintf("%s: %v (to change: %s)", a.What, a.Err, a.Change)
}

func (a *Absent) Unwrap() error { return a.Err }

func find(name string) *candidate {
	for i := range candidates {
		if candidates[i].name == name {
			return &candidates[i]
		}
	}
	return nil
}

// candidate is a primitive that can be tried.
type candidate struct {
	name, what string
	try        func() (string, error)
	change     string
}

func (c *candidate) primitive() Primitive {
	detail, err := c.try()
	p := Primitive{Name: c.name, What: c.what, Works: err == nil, Detail: detail}
	if err != nil {
		p.Why, p.Change, p.Fallback = err.Error(), c.change, FallbackFor(c.name)
	}
	return p
}

// What to change, where several things need the same.
const (
	changeContainer = "in a container of root: " + rootFlags + "; in one of a user: " + userFlags
	changeUser      = "sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; " +
		"in a container: " + userFlags
	changeFUSE   = "as root: modprobe fuse; chmod 666 /dev/fuse; in a container: --device /dev/fuse, and --cap-add SYS_ADMIN for root"
	changePtrace = "sysctl kernel.yama.ptrace_scope at most 2 for root and 1 for others; in a container a seccomp profile that allows " +
		"ptrace"
	changeKernel = "a newer kernel"
)

// The flags of docker run and podman run that give a whole session.
// doc/platforms/docker.md explains them.
const (
	rootProfile = "--security-opt seccomp=" + layout.ContainerProfiles + "/seccomp-root.json"
	userProfile = "--security-opt seccomp=" + layout.ContainerProfiles + "/seccomp-user.json"
	wholeProc   = "--security-opt systempaths=unconfined (podman: unmask=ALL)"
	rootFlags   = "--cap-add SYS_ADMIN --cap-add NET_ADMIN --cap-add SYS_PTRACE --device /dev/fuse " + rootProfile
	userFlags   = "--device /dev/fuse " + userProfile + " " + wholeProc
)

// candidates are all primitives, in the order of a report.
var candidates = []candidate{
	{
		"seccomp_notify",
		"seccomp user notification",
		asIs("seccomp_notify"),
		"Linux 5.6 or newer, and a container whose profile allows seccomp(2); gVisor has no listener; if busy, another supervisor has it",
	},
	{
		"seccomp_trace",
		"calls that stop for a tracer",
		tryTraced,
		changePtrace + "; needed only where there is no seccomp user notification",
	},
	{
		primitiveEngine,
		"an engine that stops calls",
		tryEngine,
		"what makes seccomp_notify or seccomp_trace work",
	},
	{"wait_killable", "calls that signals do not interrupt", asIs("wait_killable"), "Linux 5.19; not needed where seccomp_trace works"},
	{"ptrace", "trace a descendant", tryTrace, changePtrace},
	{"proc_mem", "read a descendant's memory by /proc/PID/mem", tryMemory, changePtrace},
	{"landlock", "Landlock", asIs("landlock"), "lsm=landlock,... on the kernel's command line; Linux 5.13 or newer"},
	{
		"landlock_scopes",
		"Landlock scopes",
		asIs("landlock_scopes"),
		"needed only without a pid and a network namespace, and with --share-network: " + changeKernel,
	},
	{"landlock_net", "Landlock network rights", asIs("landlock_net"), changeKernel},
	{"user_namespace", "user namespace", func() (string, error) { return try(trial.Nothing, environment{user: true}) }, changeUser},
	{"mount_namespace", "mount namespace", within(trial.Nothing, unix.CLONE_NEWNS), changeContainer},
	{"pid_namespace", "pid namespace", within(trial.Nothing, unix.CLONE_NEWPID), changeContainer},
	{"net_namespace", "network namespace", within("net_namespace", unix.CLONE_NEWNET),
		"in a container of root: --cap-add SYS_ADMIN --cap-add NET_ADMIN"},
	{
		trialRedirect,
		"nf_tables in a network namespace",
		within(trialRedirect, unix.CLONE_NEWNET),
		"without it, notification redirects programs that ignore proxy variables, slower; for the kernel to do it: the nf_tables, " +
			"nft_chain_nat and nft_redir modules",
	},
	{
		trialLookups,
		"look up sockets of the network",
		asIs(trialLookups),
		"only for the process that made a connection, in events and rules: the inet_diag, tcp_diag and udp_diag modules",
	},
	{
		"other_namespaces",
		"ipc, uts and cgroup namespaces",
		within(trial.Nothing, launch.OtherNamespaces()),
		changeContainer,
	},
	{
		"private_proc",
		"a /proc of its own",
		within("private_proc", unix.CLONE_NEWNS|unix.CLONE_NEWPID),
		"in a container, whose engine masks parts of /proc: " + wholeProc,
	},
	{
		"new_root",
		"a root directory of its own",
		within("new_root", unix.CLONE_NEWNS),
		"in a container of root: " + rootProfile + "; in one of a user: " + userProfile + "; after a chroot: make the root a mount " +
			"(mount --bind DIR DIR)",
	},
	{
		"session_root",
		"look into a session",
		tryLookInto,
		"in a container of root: --cap-add SYS_PTRACE",
	},
	{"mount_api", "new mount API", within("mount_api", unix.CLONE_NEWNS), changeContainer},
	{
		"overlayfs",
		"overlayfs",
		within("overlayfs", unix.CLONE_NEWNS),
		"needed only where " + layout.Library + " is not installed: install the package",
	},
	{"fuse", "FUSE mount", within("fuse", unix.CLONE_NEWNS), changeFUSE},
	{
		primitiveMapping,
		"files of a FUSE mount that programs map",
		within(primitiveMapping, unix.CLONE_NEWNS),
		"gVisor cannot; with mapped_files in place of file_server, a file server decides on files that no program can map or execute",
	},
	{
		"fuse_passthrough",
		"FUSE passthrough",
		within("fuse_passthrough", unix.CLONE_NEWNS),
		"faster files only: root outside user namespaces on Linux 6.9 or newer",
	},
	{
		"fanotify",
		"fanotify of directories",
		within("fanotify", 0),
		"what the host edits is seen all the same by inotify, but not told; for events Linux 5.13 or newer, and in a container " +
			userProfile,
	},
	{
		"inotify",
		"inotify",
		within("inotify", 0),
		"needed only without fanotify: sysctl fs.inotify.max_user_instances and max_user_watches",
	},
	{
		"cgroup",
		"control groups",
		tryCgroup,
		"a writable cgroup with the memory and pids controllers (systemd: Delegate=yes; in a container: a writable /sys/fs/cgroup)",
	},
	{"limits", "resource limits", asIs("limits"), "start agentsh without a hard RLIMIT_RTTIME"},
	{"oom_score", "protection from the OOM killer", asIs("oom_score"), "only for lack of memory: root, or CAP_SYS_RESOURCE; " +
		"without it the kernel still ends commands first"},
	{"pidfd", "process descriptors", asIs("pidfd"), changeKernel},
	{"pidfd_getfd", "descriptors of another process", asIs("pidfd_getfd"), "in a container " + userProfile},
	{"subreaper", "child subreaper", asIs("subreaper"), changeKernel},
	{"vsock", "AF_VSOCK", asIs("vsock"), "only for controllers that reach a virtual machine by it: the vsock modules"},
}

// asIs runs a trial in a process like this one.
func asIs(name string) func() (string, error) {
	return func() (string, error) { return try(name, environment{}) }
}

// within runs a trial in new namespaces. Like a session, it also gets a user
// namespace unless this process is root.
func within(name string, namespaces uintptr) func() (string, error) {
	return func() (string, error) {
		return try(name, environment{user: os.Geteuid() != 0, namespaces: namespaces})
	}
}
