package seccomp

import (
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// stopping is a plan whose refusals stop as well.
func stopping() Plan {
	return DefaultPlan(PlanOptions{Report: true, NoExecMemfd: true, Connect: true, Bind: true, SharedNetwork: true, Umask: true,
		Watches: true, Limits: true, Threads: true, Signals: Signals{Evaluated: EverySignal()}})
}

// What another listener takes fails in the kernel, and what it leaves stops as before.
func TestAFilterBesideAnotherListener(t *testing.T) {
	const cookie = 0x1234_5678_9abc_def1
	p := stopping()
	taken := []string{"execve", "kill", "connect", "bind", "socket", "personality", "umask"}
	beside := p.Beside(taken, []string{"connect", "umask"})
	before, err := p.Compile(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	program, err := beside.Compile(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	traced, err := TracedBeside(program, runtime.GOARCH, cookie)
	if err != nil {
		t.Fatal(err)
	}
	with, without, arch := decode(traced), decode(before), arches[runtime.GOARCH].audit
	action := func(p []insn, nr int, args ...uint64) uint32 {
		t.Helper()
		d := data{nr: uint32(nr), arch: arch}
		copy(d.args[:], args)
		got, err := evaluate(p, &d)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	refuse := func(e unix.Errno) uint32 { return retErrno | uint32(e) }
	for name, c := range map[string]struct{ got, want uint32 }{
		"an exec":                       {action(with, unix.SYS_EXECVE), retTrap | TrapData},
		"an exec by a descriptor":       {action(with, unix.SYS_EXECVEAT), retTrap | TrapData},
		"one with the cookie":           {action(with, unix.SYS_EXECVE, 1, 2, 3, 4, 5, cookie), actAllow},
		"half of the cookie":            {action(with, unix.SYS_EXECVE, 1, 2, 3, 4, 5, cookie&0xffffffff), retTrap | TrapData},
		"the other half":                {action(with, unix.SYS_EXECVE, 1, 2, 3, 4, 5, cookie&^0xffffffff), retTrap | TrapData},
		"another call with the cookie":  {action(with, unix.SYS_PTRACE, 1, 2, 3, 4, 5, cookie), retTrace},
		"a signal":                      {action(with, unix.SYS_KILL, 2, 15), refuse(unix.EPERM)},
		"bind":                          {action(with, unix.SYS_BIND), refuse(unix.EACCES)},
		"connect, which others confine": {action(with, unix.SYS_CONNECT), actAllow},
		"umask, too":                    {action(with, unix.SYS_UMASK), actAllow},
		"a refused family":              {action(with, unix.SYS_SOCKET, unix.AF_VSOCK), refuse(unix.EPERM)},
		"an allowed family":             {action(with, unix.SYS_SOCKET, unix.AF_UNIX), actAllow},
		"an exception":                  {action(with, unix.SYS_PERSONALITY, 8), refuse(unix.EPERM)},
		"what is not taken":             {action(with, unix.SYS_MOUNT), retTrace},
		"a process without a tracer":    {action(with, unix.SYS_CLONE, unix.CLONE_UNTRACED), refuse(unix.EPERM)},
	} {
		if c.got != c.want {
			t.Errorf("%s: %#x instead of %#x", name, c.got, c.want)
		}
	}
	for nr := range newest + 1 {
		if now, was := action(with, nr, 1, 2, 3, 4, 5, 6), action(without, nr, 1, 2, 3, 4, 5, 6); was != actAllow && now == actAllow &&
			nr != unix.SYS_CONNECT && nr != unix.SYS_UMASK {
			t.Errorf("call %d was %#x and is allowed now", nr, was)
		}
	}
}

// Every call that the filter stops is tried, with arguments that its rules name.
func TestEveryCallThatStopsIsTried(t *testing.T) {
	p := stopping()
	attempts, err := p.Attempts()
	if err != nil {
		t.Fatal(err)
	}
	program, err := p.Compile(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	list, arch := decode(program), arches[runtime.GOARCH].audit
	tried := map[int]bool{}
	for _, a := range attempts {
		tried[a.Number] = true
		for _, pid := range []uint64{0, 1, 2, 3, ^uint64(0)} {
			if slices.Contains([]string{"kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"}, a.Name) && a.Args[0] == pid {
				t.Errorf("%s would signal %d", a.Name, int64(pid))
			}
		}
	}
	for nr := range newest + 1 {
		got, err := evaluate(list, &data{nr: uint32(nr), arch: arch, args: [6]uint64{harmless, harmless, harmless, harmless, harmless, harmless}})
		if err != nil {
			t.Fatal(err)
		}
		if got == actNotify && !tried[nr] {
			t.Errorf("call %d is not tried", nr)
		}
	}
}
