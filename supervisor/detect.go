package supervisor

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"agentsh/internal/layout"

	"golang.org/x/sys/unix"
)

// Primitive is one thing of the kernel that was tried by using it.
type Primitive struct {
	Name   string `json:"name"`
	What   string `json:"what"`
	Works  bool   `json:"works"`
	Detail string `json:"detail,omitempty"`
	Why    string `json:"why,omitempty"`    // it does not
	Change string `json:"change,omitempty"` // what would make it work
	Word   string `json:"word,omitempty"`   // of degraded, with which sessions do without it
}

// Report is what a machine can hold.
type Report struct {
	Kernel       string      `json:"kernel"`
	Architecture string      `json:"architecture"`
	User         int         `json:"uid"`
	Capabilities []string    `json:"capabilities"`
	Primitives   []Primitive `json:"primitives"`
	Session      Trial       `json:"session"`
	Shells       []Shell     `json:"shells,omitempty"`
	Groups       []Held      `json:"groups"`
}

// Detect tries everything that sessions are made of, each in a process of its
// own that ends with the trial, and opens a session in a scratch directory. It
// leaves nothing behind. operator gives the user of commands and their PATH.
func Detect(ctx context.Context, operator OperatorConfig) (*Report, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return nil, fmt.Errorf("uname: %w", err)
	}
	r := &Report{
		Kernel: unix.ByteSliceToString(name.Release[:]), Architecture: runtime.GOARCH,
		User: os.Geteuid(), Capabilities: capabilities(),
	}
	works := map[string]bool{}
	for _, c := range candidates {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		p := c.primitive()
		works[p.Name] = p.Works
		r.Primitives = append(r.Primitives, p)
	}
	if err := r.trySession(ctx, operator); err != nil {
		return nil, err
	}
	r.Groups = groups(works, r.Session, operator.Degraded)
	return r, nil
}

// candidate is something to try.
type candidate struct {
	name, what string
	try        func() (string, error)
	change     string
}

func (c *candidate) primitive() Primitive {
	detail, err := c.try()
	p := Primitive{Name: c.name, What: c.what, Works: err == nil, Detail: detail}
	if err != nil {
		p.Why, p.Change, p.Word = err.Error(), c.change, wordOf(c.name)
	}
	return p
}

// What to change, where several things need the same.
const (
	changeContainer = "in a container: --cap-add SYS_ADMIN, NET_ADMIN and SYS_PTRACE and a seccomp profile that allows unshare and " +
		"pivot_root, or run unprivileged where user namespaces are allowed"
	changeUser = "sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; " +
		"in a container a seccomp profile that allows unshare"
	changeFUSE = "load the fuse module and let the user open /dev/fuse (chmod 666 /dev/fuse); in a container: --device /dev/fuse " +
		"--cap-add SYS_ADMIN"
	changePtrace = "sysctl kernel.yama.ptrace_scope at most 2 for root and 1 for others; in a container a seccomp profile that allows " +
		"ptrace"
	changeKernel = "a newer kernel"
)

// candidates are all things that are tried, in the order of the report.
var candidates = []candidate{
	{
		"seccomp_notify",
		"seccomp user notification",
		asIs("seccomp_notify"),
		"Linux 5.6 or newer, and a container whose profile allows seccomp(2); gVisor has no listener",
	},
	{"wait_killable", "calls that signals do not interrupt", asIs("wait_killable"), "Linux 5.19 or newer"},
	{"ptrace", "trace a descendant", tryTrace, changePtrace},
	{"proc_mem", "read a descendant's memory by /proc/PID/mem", tryMemory, changePtrace},
	{"landlock", "Landlock", asIs("landlock"), "lsm=landlock,... on the kernel's command line; Linux 5.13 or newer"},
	{"landlock_scopes", "Landlock scopes", asIs("landlock_scopes"), changeKernel},
	{"landlock_net", "Landlock network rights", asIs("landlock_net"), changeKernel},
	{"user_namespace", "user namespace", func() (string, error) { return try(trialNothing, place{user: true}) }, changeUser},
	{"mount_namespace", "mount namespace", within(trialNothing, unix.CLONE_NEWNS), changeContainer},
	{"pid_namespace", "pid namespace", within(trialNothing, unix.CLONE_NEWPID), changeContainer},
	{"net_namespace", "network namespace", within("net_namespace", unix.CLONE_NEWNET), changeContainer},
	{
		"net_redirect",
		"nf_tables in a network namespace",
		within("net_redirect", unix.CLONE_NEWNET),
		"programs that ignore proxy variables are helped by notification then, slower; for the kernel to do it: the nf_tables, nft_chain_nat " +
			"and nft_redir modules",
	},
	{
		"other_namespaces",
		"ipc, uts and cgroup namespaces",
		within(trialNothing, unix.CLONE_NEWIPC|unix.CLONE_NEWUTS|unix.CLONE_NEWCGROUP),
		changeContainer,
	},
	{
		"private_proc",
		"a /proc of its own",
		within("private_proc", unix.CLONE_NEWNS|unix.CLONE_NEWPID),
		"in a container: a /proc without masked paths (podman: --security-opt unmask=ALL)",
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
		"fuse_passthrough",
		"FUSE passthrough",
		within("fuse_passthrough", unix.CLONE_NEWNS),
		"faster files only: root outside user namespaces on Linux 6.9 or newer",
	},
	{
		"cgroup",
		"control groups",
		tryCgroup,
		"a writable cgroup with the memory and pids controllers (systemd: Delegate=yes; in a container: a writable /sys/fs/cgroup)",
	},
	{"limits", "resource limits", asIs("limits"), "start agentsh without a hard RLIMIT_RTTIME"},
	{"pidfd", "process descriptors", asIs("pidfd"), changeKernel},
	{"pidfd_getfd", "descriptors of another process", asIs("pidfd_getfd"), "in a container a seccomp profile that allows pidfd_getfd"},
	{"subreaper", "child subreaper", asIs("subreaper"), changeKernel},
	{"vsock", "AF_VSOCK", asIs("vsock"), "only for controllers that reach a virtual machine by it: the vsock modules"},
}

// asIs tries something in a process like this one.
func asIs(trial string) func() (string, error) {
	return func() (string, error) { return try(trial, place{}) }
}

// within tries something in new namespaces: in a user namespace too where this
// process is not root, as a session is made.
func within(trial string, namespaces uintptr) func() (string, error) {
	return func() (string, error) {
		return try(trial, place{user: os.Geteuid() != 0, namespaces: namespaces})
	}
}

// capabilityNames are those that make a difference here, by number. See
// capabilities(7).
var capabilityNames = map[int]string{
	0: "chown", 1: "dac_override", 5: "kill", 6: "setgid", 7: "setuid", 8: "setpcap", 12: "net_admin",
	18: "sys_chroot", 19: "sys_ptrace", 21: "sys_admin", 24: "sys_resource", 38: "perfmon", 39: "bpf", 40: "checkpoint_restore",
}

// capabilities are the effective capabilities that make a difference here.
func capabilities() []string {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(status), "\nCapEff:\t")
	text, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		return nil
	}
	out := []string{}
	for n := range 64 {
		if name := capabilityNames[n]; name != "" && set&(1<<n) != 0 {
			out = append(out, name)
		}
	}
	return out
}
