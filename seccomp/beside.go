package seccomp

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// Attempt is one call that a trial makes to see whether it stops for a tracer. If it does
// not stop, the kernel carries it out, and it has no effect.
type Attempt struct {
	Name   string    `json:"name"`
	Number int       `json:"number"`
	Args   [6]uint64 `json:"args"`
}

// harmless is an argument with which the calls of a plan fail. It is no descriptor, process
// or size, and nothing is mapped at this address of a 64-bit program.
const harmless = 0x7ffffff0

// harmlessArgs are arguments of attempts that a case must not set: numbers of processes,
// and what would make the call succeed.
var harmlessArgs = map[string]map[uint]uint64{
	"kill": {0: harmless}, "tkill": {0: harmless}, "tgkill": {0: harmless, 1: harmless},
	"rt_sigqueueinfo": {0: harmless}, "rt_tgsigqueueinfo": {0: harmless, 1: harmless},
	"pidfd_open": {0: harmless}, "prlimit64": {0: harmless}, "setpriority": {1: harmless}, "ioprio_set": {1: harmless},
	"sched_setaffinity": {0: harmless}, "sched_setscheduler": {0: harmless}, "sched_setparam": {0: harmless}, "sched_setattr": {0: harmless},
	"reboot": {0: 0}, "init_module": {1: 0}, "personality": {0: 0xffffffff}, "umask": {0: 0o22}, "inotify_init1": {0: harmless},
}

// variants are values of arguments that the filter of another supervisor may tell apart.
// Each is tried where a case does not set it. What that filter tells apart by the number of
// a process or a descriptor cannot be tried without effect.
var variants = map[string]struct {
	arg    uint
	values []uint64
}{
	"kill": {1, signalNumbers}, "tkill": {1, signalNumbers}, "tgkill": {2, signalNumbers},
	"rt_sigqueueinfo": {1, signalNumbers}, "rt_tgsigqueueinfo": {2, signalNumbers},
	"connect": {2, addressSizes}, "bind": {2, addressSizes}, "sendto": {5, addressSizes},
	"listen": {1, []uint64{0, 1, 5, 10, 16, 32, 50, 64, 100, 128, 256, 511, 512, 1024, 4096}},
}

var (
	signalNumbers = EverySignal().numbers()
	addressSizes  = []uint64{0, 2, unix.SizeofSockaddrInet4, 24, unix.SizeofSockaddrInet6, unix.SizeofSockaddrUnix, 128} // 24: of old AF_INET6
)

// Attempts returns the calls that the plan notifies, as a process can try them.
func (p Plan) Attempts() ([]Attempt, error) {
	var out []Attempt
	add := func(names []string, when []Case) error {
		for _, name := range names {
			number, err := numberOf(name)
			if err != nil {
				return err
			}
			if number < 0 {
				continue // not on this machine
			}
			if len(when) == 0 {
				when = []Case{nil}
			}
			for _, c := range when {
				for _, args := range c.attempts(name) {
					a := Attempt{Name: name, Number: number, Args: args}
					if !slices.Contains(out, a) {
						out = append(out, a)
					}
				}
			}
		}
		return nil
	}
	for _, r := range p.Reported {
		if err := add(r.Syscalls, r.When); err != nil {
			return nil, err
		}
	}
	for _, e := range p.Excepted {
		if err := add(e.Syscalls, e.When); err != nil {
			return nil, err
		}
	}
	for _, n := range p.Notified {
		if err := add(n.Syscalls, n.When); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// attempts returns arguments that the case matches, each with all variants of one argument
// that the case leaves open.
func (c Case) attempts(name string) [][6]uint64 {
	args := c.attempt(name)
	out := [][6]uint64{args}
	v := variants[name]
	if slices.ContainsFunc(c, func(one Condition) bool { return one.Arg == v.arg }) {
		return out
	}
	for _, value := range v.values {
		args[v.arg] = value
		out = append(out, args)
	}
	return out
}

// attempt returns arguments that the case matches, where they are harmless.
func (c Case) attempt(name string) (args [6]uint64) {
	for i := range args {
		args[i] = harmless
	}
	for _, one := range c {
		switch one.Op {
		case Is32, Is, HasBits:
			args[one.Arg] = one.Value
		case Masked:
			mask, value := one.masked()
			args[one.Arg] = args[one.Arg]&^mask | value
		case NoBits:
			args[one.Arg] &^= one.Value
		case Not, Above: // harmless is such a value
		}
	}
	for arg, value := range harmlessArgs[name] {
		args[arg] = value
	}
	if name == "clone" {
		args[0] |= unix.CLONE_SIGHAND // without CLONE_VM: EINVAL
	}
	return args
}

// execCalls are the calls that execute a program.
var execCalls = []string{"execve", "execveat"}

// takenErrno is the errno of calls that fail because nothing can judge them.
var takenErrno = map[string]unix.Errno{"connect": unix.EACCES, "bind": unix.EACCES, "sendto": unix.EACCES, "listen": unix.EACCES}

// Beside returns the plan for a filter beside the listener of another supervisor, which
// takes some calls. Those fail in the kernel instead. Calls in left continue: others
// confine them. Calls that execute a program stay: see [TracedBeside].
func (p Plan) Beside(taken, left []string) Plan {
	out := Plan{Refused: slices.Clone(p.Refused)}
	split := func(names []string) (taking, staying []string) {
		for _, name := range names {
			switch {
			case !slices.Contains(taken, name) || slices.Contains(execCalls, name):
				staying = append(staying, name)
			case !slices.Contains(left, name):
				taking = append(taking, name)
			}
		}
		return taking, staying
	}
	refuse := func(r Refusal) {
		if len(r.Syscalls) > 0 {
			out.Refused = append(out.Refused, r)
		}
	}
	for _, r := range p.Reported {
		taking, staying := split(r.Syscalls)
		refuse(Refusal{taking, r.When, r.Errno, r.Reason})
		if r.Syscalls = staying; len(staying) > 0 {
			out.Reported = append(out.Reported, r)
		}
	}
	for _, e := range p.Excepted {
		taking, staying := split(e.Syscalls)
		refuse(Refusal{taking, e.When, e.Errno, e.Reason})
		if e.Syscalls = staying; len(staying) > 0 {
			out.Excepted = append(out.Excepted, e)
		}
	}
	for _, n := range p.Notified {
		taking, staying := split(n.Syscalls)
		for _, name := range taking {
			errno, known := takenErrno[name]
			if !known {
				errno = unix.EPERM
			}
			refuse(Refusal{[]string{name}, n.When, errno, "another supervisor's listener takes this call before it can be judged"})
		}
		if len(staying) > 0 {
			out.Notified = append(out.Notified, Notice{staying, n.When})
		}
	}
	return out
}

// TrapData marks the SIGSYS of an execve of [TracedBeside]. See SECCOMP_RET_DATA.
const TrapData = 0x5e5d

// TracedBeside is [Traced] for a filter beside a listener that takes execve. An execve ends
// with SIGSYS, which the tracer receives. SECCOMP_RET_TRAP comes before the listener of
// another filter, and SECCOMP_RET_TRACE after it. An execve whose unused last argument is
// the cookie continues. The tracer sets it after it has allowed the call.
func TracedBeside(program []byte, arch string, cookie uint64) ([]byte, error) {
	traced, err := Traced(program, arch)
	if err != nil {
		return nil, err
	}
	var out []byte
	insn := func(code uint16, jt, jf uint8, k uint32) {
		out = binary.NativeEndian.AppendUint16(out, code)
		out = append(out, jt, jf)
		out = binary.NativeEndian.AppendUint32(out, k)
	}
	low, high := uint32(offLastArg), uint32(offLastArg+4) // both architectures are little-endian
	insn(ldAbs, 0, 0, offArch)
	insn(jeq, 0, 9, arches[arch].audit)
	insn(ldAbs, 0, 0, offNr)
	insn(jeq, 1, 0, execNumbers[arch][0])
	insn(jeq, 0, 6, execNumbers[arch][1])
	insn(ldAbs, 0, 0, low)
	insn(jeq, 0, 3, uint32(cookie))
	insn(ldAbs, 0, 0, high)
	insn(jeq, 0, 1, uint32(cookie>>32))
	insn(ret, 0, 0, retAllow)
	insn(ret, 0, 0, retTrap|TrapData)
	return append(out, traced...), nil
}

const (
	offLastArg = 16 + 5*8
	retTrap    = 0x00030000 // SECCOMP_RET_TRAP
)

// execNumbers are the numbers of execve and execveat.
var execNumbers = map[string][2]uint32{"amd64": {59, 322}, "arm64": {221, 281}}

// Decides reports whether the supervisor decides on a call.
func (p Plan) Decides(name string) bool {
	return slices.ContainsFunc(p.Notified, func(n Notice) bool { return slices.Contains(n.Syscalls, name) })
}

// Judges reports whether the plan has a call judged, and does not only refuse it.
func (p Plan) Judges(name string) bool {
	return p.Decides(name) ||
		slices.ContainsFunc(p.Excepted, func(e Exception) bool { return slices.Contains(e.Syscalls, name) })
}

// SignalCalls are the calls that send a signal.
func SignalCalls() (out []string) {
	for _, s := range senders {
		out = append(out, s.name)
	}
	return out
}

// RefusalsOnly returns the plan without what a supervisor decides.
func (p Plan) RefusalsOnly() Plan {
	p.Notified = nil
	p.refuseInKernel()
	return p
}
