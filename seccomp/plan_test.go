package seccomp

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	scmp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"
)

const (
	actAllow  = 0x7fff0000
	actNotify = 0x7fc00000
	actKill   = 0x80000000
)

// everything is the plan with all that can be notified or refused.
func everything() Plan {
	return DefaultPlan(
		PlanOptions{
			NoExecMemfd:   true,
			Signals:       Signals{Evaluated: EverySignal()},
			Umask:         true,
			Watches:       true,
			Limits:        true,
			Connect:       true,
			Bind:          true,
			SharedNetwork: true,
			Truncation:    true,
		},
	)
}

// means says what a condition means, apart from the compiler and the table.
func (c Condition) means(v uint64) bool {
	switch c.Op {
	case Is32:
		return uint32(v) == uint32(c.Value)
	case Is:
		return v == c.Value
	case Not:
		return v != c.Value
	case Above:
		return v > c.Value
	case HasBits:
		return v&c.Value == c.Value
	case NoBits:
		return v&c.Value == 0
	case Masked:
		return uint32(v)&uint32(c.Value>>32) == uint32(c.Value)
	}
	return false
}

func (c Case) means(args [6]uint64) bool {
	for _, one := range c {
		if !one.means(args[one.Arg]) {
			return false
		}
	}
	return true
}

func anyHolds(cases []Case, args [6]uint64) bool {
	return len(cases) == 0 || slices.ContainsFunc(cases, func(c Case) bool { return c.means(args) })
}

// expected is what p says about a call, and whether it says it once only.
func expected(p Plan, name string, args [6]uint64) (uint32, error) {
	action := uint32(actAllow)
	for _, r := range p.Refused {
		if slices.Contains(r.Syscalls, name) && anyHolds(r.When, args) {
			a := retErrno | uint32(r.Errno)
			if action != actAllow && action != a {
				return 0, fmt.Errorf("%s %#x is refused in two ways", name, args)
			}
			action = a
		}
	}
	for _, n := range notices(p) {
		if slices.Contains(n.Syscalls, name) && anyHolds(n.When, args) {
			if action != actAllow {
				return 0, fmt.Errorf("%s %#x is refused and notified", name, args)
			}
			return actNotify, nil
		}
	}
	return action, nil
}

// about is what a plan says about one call.
func about(p Plan, name string) Plan {
	return Plan{
		Refused:  slices.DeleteFunc(slices.Clone(p.Refused), func(r Refusal) bool { return !slices.Contains(r.Syscalls, name) }),
		Notified: slices.DeleteFunc(notices(p), func(n Notice) bool { return !slices.Contains(n.Syscalls, name) }),
	}
}

// notices is all that a plan has notified.
func notices(p Plan) []Notice {
	list := slices.Clone(p.Notified)
	for _, r := range p.Reported {
		list = append(list, Notice{r.Syscalls, r.When})
	}
	for _, e := range p.Excepted {
		list = append(list, Notice{e.Syscalls, e.When})
	}
	return list
}

// edges are the argument vectors worth trying for a call: both ends of every
// register, and around every value the plan compares with, garbage above an int
// included.
func edges(p Plan, name string) [][6]uint64 {
	values := [6][]uint64{}
	for i := range values {
		values[i] = []uint64{0, ^uint64(0)}
	}
	add := func(cases []Case) {
		for _, c := range cases {
			for _, one := range c {
				v := one.Value
				values[one.Arg] = append(values[one.Arg], 1, v-1, v, v+1, v|1<<32, v|0xffffffff<<32, uint64(uint32(v-1)))
			}
		}
	}
	for _, r := range p.Refused {
		if slices.Contains(r.Syscalls, name) {
			add(r.When)
		}
	}
	for _, n := range notices(p) {
		if slices.Contains(n.Syscalls, name) {
			add(n.When)
		}
	}
	vectors := [][6]uint64{{}, {^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}}
	for arg, list := range values {
		slices.Sort(list)
		list = slices.Compact(list)
		if len(list) == 2 && len(vectors) > 1000 {
			continue
		}
		var next [][6]uint64
		for _, v := range vectors {
			for _, x := range list {
				v[arg] = x
				next = append(next, v)
			}
		}
		vectors = next
	}
	return vectors
}

func TestTheFilterDecidesEveryNumberAsPlanned(t *testing.T) {
	for arch := range arches {
		for label, p := range map[string]Plan{"everything": everything(), "least": DefaultPlan(PlanOptions{}), "server": ServerPlan(),
			"told": DefaultPlan(PlanOptions{Report: true, NoExecMemfd: true, Connect: true, Bind: true, SharedNetwork: true,
				Signals: Signals{Evaluated: EverySignal()}}),
			"free": DefaultPlan(PlanOptions{Report: true, Signals: Signals{Inside: true}}),
			"some": DefaultPlan(PlanOptions{Report: true, Signals: Signals{Inside: true, Evaluated: SignalSet{0: true, 10: true, 64: true},
				First: EverySignal()}}),
			"owner": DefaultPlan(PlanOptions{Report: true, Signals: Signals{Inside: true, Evaluated: SignalSet{29: true}, First: SignalSet{9: true,
				29: true}}}),
		} {
			program, err := p.Compile(arch)
			if err != nil {
				t.Fatal(err)
			}
			decidesAsPlanned(t, arch, label, p, program)
		}
	}
}

// decidesAsPlanned fails unless a program answers every call as its plan says.
func decidesAsPlanned(t *testing.T, arch, label string, p Plan, program []byte) {
	t.Helper()
	a, code := arches[arch], decode(program)
	for nr := uint32(0); nr < newest+40; nr++ {
		name, err := scmp.ScmpSyscall(nr).GetNameByArch(a.lib)
		if err != nil {
			name = ""
		}
		for late, number := range shared {
			if number == nr {
				name = late
			}
		}
		said := about(p, name)
		for _, args := range edges(said, name) {
			want, err := expected(said, name, args)
			if err != nil {
				t.Fatal(err)
			}
			if nr > newest {
				want = retErrno | uint32(unix.ENOSYS)
			}
			got, err := evaluate(code, &data{nr: nr, arch: a.audit, args: args})
			if err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Fatalf("%s, %s: %s (%d) %#x gives %#x, the plan says %#x", arch, label, name, nr, args, got, want)
			}
		}
	}
}

func TestOtherArchitecturesAreKilled(t *testing.T) {
	for arch := range arches {
		program, err := everything().Compile(arch)
		if err != nil {
			t.Fatal(err)
		}
		killsOthers(t, arch, program)
	}
}

// killsOthers fails unless a program kills the callers of another architecture.
func killsOthers(t *testing.T, arch string, program []byte) {
	t.Helper()
	a, code := arches[arch], decode(program)
	for _, other := range []uint32{unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_AARCH64, 0, ^uint32(0)} {
		for nr := uint32(0); nr < newest+40; nr++ {
			if got, err := evaluate(code, &data{nr: nr, arch: other}); other != a.audit && (err != nil || got != actKill) {
				t.Fatalf("%s: call %d of architecture %#x gives %#x, %v", arch, nr, other, got, err)
			}
		}
	}
	if arch != "amd64" {
		return
	}
	for nr := uint32(x32Bit); nr < x32Bit+newest+600; nr++ {
		if got, err := evaluate(code, &data{nr: nr, arch: a.audit}); err != nil || got != actKill {
			t.Fatalf("x32 call %d gives %#x, %v", nr-x32Bit, got, err)
		}
	}
}

// The list of what a session must refuse, written apart from the plan.
func TestTheRefusalListIsComplete(t *testing.T) {
	const top = 1 << 32
	var none [6]uint64
	arg := func(i int, v uint64) (a [6]uint64) { a[i] = v; return }
	two := func(i int, v uint64, j int, w uint64) (a [6]uint64) { a[i], a[j] = v, w; return }
	refused := []struct {
		name  string
		args  [6]uint64
		errno syscall.Errno
	}{
		{"clone3", none, unix.ENOSYS},
		{"unshare", arg(0, unix.CLONE_NEWUSER), unix.EPERM},
		{"unshare", arg(0, unix.CLONE_NEWTIME), unix.EPERM},
		{"unshare", arg(0, unix.CLONE_FS|unix.CLONE_NEWNET), unix.EPERM},
		{"clone", arg(0, unix.CLONE_NEWUSER|unix.CLONE_VM), unix.EPERM},
		{"clone", arg(0, unix.CLONE_NEWPID|top), unix.EPERM},
		{"socket", arg(0, unix.AF_VSOCK), unix.EPERM},
		{"socket", arg(0, unix.AF_PACKET|top), unix.EPERM},
		{"socket", arg(0, unix.AF_ALG), unix.EPERM},
		{"socket", two(0, unix.AF_NETLINK, 2, unix.NETLINK_NETFILTER), unix.EPERM},
		{"socket", two(0, unix.AF_INET, 2, unix.IPPROTO_MPTCP), unix.EPERM},
		{"socketpair", arg(0, unix.AF_TIPC), unix.EPERM},
		{"socket", two(0, unix.AF_INET, 1, unix.SOCK_DGRAM), unix.EPERM},
		{"socket", two(0, unix.AF_INET6|top, 1, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|top), unix.EPERM},
		{"socket", two(0, unix.AF_INET, 1, unix.SOCK_RAW|unix.SOCK_NONBLOCK), unix.EPERM},
		{"sendto", arg(3, unix.MSG_FASTOPEN|unix.MSG_NOSIGNAL), unix.EPERM},
		{"sendmsg", arg(2, unix.MSG_FASTOPEN), unix.EPERM},
		{"sendmmsg", arg(3, unix.MSG_FASTOPEN), unix.EPERM},
		{"seccomp", [6]uint64{1, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_TSYNC, 4096}, unix.EPERM},
		{"seccomp", [6]uint64{1, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, top}, unix.EPERM},
		{"personality", arg(0, 0x0040000), unix.EPERM},
		{"prlimit64", two(0, 1, 2, 1), unix.EPERM},
		{"prlimit64", two(0, 3|top, 2, 1), unix.EPERM},
		{"sched_setscheduler", arg(0, 2), unix.EPERM},
		{"setpriority", arg(1, 3), unix.EPERM},
		{"prlimit64", arg(0, 2), unix.EPERM},
		{"prlimit64", two(1, TagLimit|top, 2, 1), unix.EPERM},
		{"ioctl", arg(1, unix.TIOCSTI), unix.EPERM},
		{"ioctl", arg(1, unix.TIOCSTI|top), unix.EPERM},
		{"ioctl", arg(1, 0x541c), unix.EPERM},
		{"ioctl", arg(1, 0x8901), unix.EPERM},
		{"fcntl", two(1, unix.F_SETOWN, 2, 77), unix.EPERM},
		{"fcntl", two(1, unix.F_SETOWN|top, 2, ^uint64(0)), unix.EPERM},
		{"fcntl", two(1, 15, 2, 0x7fff0000), unix.EPERM},
		{"fcntl", two(1, 10, 2, 9), unix.EPERM},
		{"sched_setaffinity", arg(0, 1), unix.EPERM},
	}
	for _, name := range []string{"io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "perf_event_open", "userfaultfd",
		"add_key", "request_key", "keyctl", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module",
		"mount", "umount2", "fsopen", "fsconfig", "fsmount", "fspick", "open_tree", "open_tree_attr", "move_mount", "mount_setattr",
		"setns", "chroot", "pivot_root", "open_by_handle_at", "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise",
		"pidfd_getfd", "kcmp", "memfd_secret", "quotactl", "quotactl_fd", "swapon", "swapoff", "acct", "reboot", "settimeofday",
		"clock_settime", "fanotify_init", "fanotify_mark"} {
		for _, args := range [][6]uint64{none, {^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}} {
			refused = append(refused, struct {
				name  string
				args  [6]uint64
				errno syscall.Errno
			}{name, args, unix.EPERM})
		}
	}
	for arch, a := range arches {
		program, err := everything().Compile(arch)
		if err != nil {
			t.Fatal(err)
		}
		code := decode(program)
		for _, r := range refused {
			nr, known := shared[r.name]
			if !known {
				call, err := scmp.GetSyscallFromNameByArch(r.name, a.lib)
				if err != nil || call < 0 {
					t.Fatalf("%s: %s: %v", arch, r.name, err)
				}
				nr = uint32(call)
			}
			if got, err := evaluate(code, &data{nr: nr, arch: a.audit, args: r.args}); err != nil || got != retErrno|uint32(r.errno) {
				t.Errorf("%s: %s %#x gives %#x, %v", arch, r.name, r.args, got, err)
			}
		}
	}
}

func TestEveryRefusalHasAReason(t *testing.T) {
	p := DefaultPlan(PlanOptions{Report: true, Signals: Signals{Evaluated: EverySignal()}, SharedNetwork: true, NoInternet: true})
	all := slices.Concat(p.Refused, p.Reported)
	for _, e := range p.Excepted {
		all = append(all, e.Refusal)
	}
	if len(p.Reported) < 20 || len(p.Excepted) < 3 {
		t.Error("nothing is told")
	}
	for _, r := range all {
		if len(r.Reason) < 10 || len(r.Syscalls) == 0 || r.Errno == 0 {
			t.Errorf("%v has the reason %q", r.Syscalls, r.Reason)
		}
	}
}

// TestTheDocumentNamesEveryRefusedCall with its errno and whether it is told.
func TestTheDocumentNamesEveryRefusedCall(t *testing.T) {
	text, err := os.ReadFile("../doc/threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## Refused system calls\n")
	table, _, _ = strings.Cut(table, "\n## ")
	said := func(name string, errno syscall.Errno, how string) bool {
		for line := range strings.Lines(table) {
			cell := strings.Split(line, " | ")
			if len(cell) == 4 && strings.Contains(cell[0], name) && cell[1] == unix.ErrnoName(errno) && cell[2] == how {
				return true
			}
		}
		return false
	}
	p := DefaultPlan(PlanOptions{Report: true, Signals: Signals{Evaluated: EverySignal()}})
	free := DefaultPlan(PlanOptions{Report: true, Signals: Signals{Inside: true, First: EverySignal()}})
	told := slices.Concat(p.Reported, free.Reported)
	for _, e := range p.Excepted {
		told = append(told, e.Refusal)
	}
	for how, list := range map[string][]Refusal{"quiet": p.Refused, "reported": told} {
		for _, r := range list {
			for _, name := range r.Syscalls {
				if !said("`"+name+"`", r.Errno, how) {
					t.Errorf("%s, %v, %s is not in the table", name, r.Errno, how)
				}
			}
		}
	}
}

// The calls whose every use is a signal, or has the kernel send one.
func TestSignalsThatNothingJudgesAreNotNotified(t *testing.T) {
	const top = 1 << 32
	set := func(nr int, args ...uint64) *data {
		d := &data{nr: uint32(nr), arch: arches[runtime.GOARCH].audit}
		copy(d.args[:], args)
		return d
	}
	free := Signals{Inside: true, First: EverySignal()}
	some := Signals{Inside: true, Evaluated: SignalSet{10: true, 29: true}, First: EverySignal()}
	for _, c := range []struct {
		what    string
		signals Signals
		call    *data
		want    uint32
	}{
		{"kill", free, set(unix.SYS_KILL, 77, 9), actAllow},
		{"kill of all", free, set(unix.SYS_KILL, ^uint64(0), 9), actAllow},
		{"kill of the own group", free, set(unix.SYS_KILL, 0, 9), actAllow},
		{"kill of the init", free, set(unix.SYS_KILL, 1, 9), actNotify},
		{"kill of the init, garbage above", free, set(unix.SYS_KILL, 1|top, 9|top), actNotify},
		{"kill of the init's thread", free, set(unix.SYS_KILL, 2, 0), actNotify},
		{"tgkill of the init's thread", free, set(unix.SYS_TGKILL, 1, 2, 9), actNotify},
		{"tgkill", free, set(unix.SYS_TGKILL, 77, 78, 9), actAllow},
		{"sigqueue", free, set(unix.SYS_RT_SIGQUEUEINFO, 77, 9), actAllow},
		{"by descriptor", free, set(unix.SYS_PIDFD_SEND_SIGNAL, 3, 9), actAllow},
		{"a descriptor of the init", free, set(unix.SYS_PIDFD_OPEN, 1), actNotify},
		{"a descriptor", free, set(unix.SYS_PIDFD_OPEN, 77), actAllow},
		{"an owner", free, set(unix.SYS_FCNTL, 3, unix.F_SETOWN, 77), actAllow},
		{"an owner in memory", free, set(unix.SYS_FCNTL, 3, fSetOwnEx, 77), actAllow},
		{"an owner's signal", free, set(unix.SYS_FCNTL, 3, fSetSig, 10), actAllow},
		{"an owner by ioctl", free, set(unix.SYS_IOCTL, 3, fiosetown), actAllow},
		{"limits of another", free, set(unix.SYS_PRLIMIT64, 77, 0, 1), actAllow},
		{"limits of the init", free, set(unix.SYS_PRLIMIT64, 1, 0, 1), actNotify},
		{"limits of the init, read", free, set(unix.SYS_PRLIMIT64, 1, 0, 0), actAllow},
		{"the tag of another", free, set(unix.SYS_PRLIMIT64, 77, TagLimit, 1), actNotify},

		{"another signal", some, set(unix.SYS_KILL, 77, 9), actAllow},
		{"a judged one", some, set(unix.SYS_KILL, 77, 10|top), actNotify},
		{"a judged one by thread", some, set(unix.SYS_TGKILL, 77, 78, 10), actNotify},
		{"a judged one queued by thread", some, set(unix.SYS_RT_TGSIGQUEUEINFO, 77, 78, 29), actNotify},
		{"another, to the init", some, set(unix.SYS_TKILL, 1, 9), actNotify},
		{"by descriptor, beside judged ones", some, set(unix.SYS_PIDFD_SEND_SIGNAL, 3, 9), actNotify},
		{"an owner, beside judged ones", some, set(unix.SYS_FCNTL, 3, unix.F_SETOWN, 77), actNotify},
		{"no owner", some, set(unix.SYS_FCNTL, 3, unix.F_SETOWN, 0), actAllow},
		{"an owner's judged signal", some, set(unix.SYS_FCNTL, 3, fSetSig, 10), actNotify},
		{"an owner's other signal", some, set(unix.SYS_FCNTL, 3, fSetSig, 12), actAllow},
		{"limits of another, beside judged ones", some, set(unix.SYS_PRLIMIT64, 77, 0, 1), actNotify},
		{"limits of another, read", some, set(unix.SYS_PRLIMIT64, 77, 0, 0), actAllow},

		{"nothing keeps it inside: owner", Signals{}, set(unix.SYS_FCNTL, 3, unix.F_SETOWN, 77), actNotify},
		{"nothing keeps it inside: descriptor", Signals{}, set(unix.SYS_PIDFD_SEND_SIGNAL, 3, 9), actNotify},
		{"nothing keeps it inside: limits read", Signals{}, set(unix.SYS_PRLIMIT64, 77, 0, 0), actNotify},
		{"all are judged", Signals{Evaluated: EverySignal()}, set(unix.SYS_KILL, 77, 3), actNotify},
	} {
		program, err := DefaultPlan(PlanOptions{Report: true, Signals: c.signals}).Compile(runtime.GOARCH)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := evaluate(decode(program), c.call); err != nil || got != c.want {
			t.Errorf("%s: %#x, want %#x, %v", c.what, got, c.want, err)
		}
	}
}

// The table answers for exactly what the filter notifies for a refusal's sake.
func TestTheTableContainsTheReportedCalls(t *testing.T) {
	p := DefaultPlan(PlanOptions{Report: true, Signals: Signals{Evaluated: EverySignal()}})
	table, err := p.Table()
	if err != nil {
		t.Fatal(err)
	}
	for nr := range newest + 1 {
		name, _ := scmp.ScmpSyscall(nr).GetName()
		for late, number := range shared {
			if number == uint32(nr) {
				name = late
			}
		}
		told := Plan{Reported: p.Reported, Excepted: p.Excepted}
		for _, args := range edges(told, name) {
			want, err := expected(told, name, args)
			if err != nil {
				t.Fatal(err)
			}
			if r := table.Of(nr, args); (r != nil) != (want == actNotify) || r != nil && r.Name != name {
				t.Fatalf("%s (%d) %#x: %+v", name, nr, args, r)
			}
		}
	}
}

// A traced command has the same filter, but for its first instructions and for what stops
// a call.
func TestATracedFilterStopsWhatTheOtherNotifies(t *testing.T) {
	program, err := everything().Compile(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	traced, err := Traced(program, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	with, without := decode(traced), decode(program)
	arch := arches[runtime.GOARCH].audit
	action := func(p []insn, d data) uint32 {
		t.Helper()
		got, err := evaluate(p, &d)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	stops := 0
	for nr := range uint32(newest + 2) {
		d := data{nr: nr, arch: arch, args: [6]uint64{1, 2, 3, 4, 5, 6}}
		want := action(without, d)
		if want == actNotify {
			want = retTrace
			stops++
		}
		if nr == unix.SYS_WAIT4 { // its options are 3
			want = retTrace
		}
		if got := action(with, d); got != want {
			t.Errorf("call %d: %#x instead of %#x", nr, got, want)
		}
	}
	if stops == 0 {
		t.Error("no call stops")
	}
	for name, c := range map[string]struct {
		data
		want uint32
	}{
		"a call that the tracer has answered": {data{nr: noCall, arch: arch}, actAllow},
		"the same of another architecture":    {data{nr: noCall, arch: unix.AUDIT_ARCH_I386}, actKill},
		"a process without a tracer": {
			data{nr: unix.SYS_CLONE, arch: arch, args: [6]uint64{unix.CLONE_UNTRACED | uint64(unix.SIGCHLD)}}, retErrno | uint32(unix.EPERM),
		},
		"a wait that does not block":   {data{nr: unix.SYS_WAIT4, arch: arch, args: [6]uint64{2: unix.WNOHANG}}, retTrace},
		"a wait":                       {data{nr: unix.SYS_WAIT4, arch: arch, args: [6]uint64{1, 1, unix.WALL, 1}}, actAllow},
		"a waitid that does not block": {data{nr: unix.SYS_WAITID, arch: arch, args: [6]uint64{3: unix.WNOHANG | unix.WEXITED}}, retTrace},
		"a waitid":                     {data{nr: unix.SYS_WAITID, arch: arch, args: [6]uint64{1, 1, 1, unix.WEXITED, 1}}, actAllow},
		"a process":                    {data{nr: unix.SYS_CLONE, arch: arch, args: [6]uint64{uint64(unix.SIGCHLD)}}, actAllow},
		"its new way":                  {data{nr: unix.SYS_CLONE3, arch: arch}, retErrno | uint32(unix.ENOSYS)},
	} {
		if got := action(with, c.data); got != c.want {
			t.Errorf("%s: %#x instead of %#x", name, got, c.want)
		}
	}
}
