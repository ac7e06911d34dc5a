package seccomp

import (
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Plan defines the action of a filter for each system call.
type Plan struct {
	// Refused fail in the kernel. The supervisor is not notified.
	Refused []Refusal
	// Reported are notified. The supervisor refuses them and can write an event: see
	// [Plan.Table].
	Reported []Refusal
	// Excepted are notified too. Harmless calls continue, the others are like Reported.
	Excepted []Exception
	Notified []Notice
}

// Refusal is a set of calls that fail with Errno. With an empty When every call
// is refused. Otherwise the calls that match one of the cases are refused.
type Refusal struct {
	Syscalls []string
	When     []Case
	Errno    syscall.Errno
	Reason   string
}

// Exception is a refusal from which some calls are excepted. Their arguments are registers,
// so a call that was checked may continue.
type Exception struct {
	Refusal
	// Self are the arguments that must be the caller's own process number, or
	// 0.
	Self []uint
	// Values are the excepted values of argument 0. If it is set, Self is
	// empty.
	Values []uint64
	// Owner are the numbers of a user and a group. If it is set, the arguments from
	// First on must be these, or -1.
	Owner *Owner
	First uint
}

// Owner is the user and group of a session's files.
type Owner struct{ UID, GID int }

// Notice is a set of calls that wait for the supervisor's answer. When works as in
// [Refusal]. No case may overlap one of Refused for the same call. Reported and Excepted
// are checked before it.
type Notice struct {
	Syscalls []string
	When     []Case
}

// Case matches when all of its conditions match. An argument may occur once.
type Case []Condition

// Condition is a comparison of one argument register.
type Condition struct {
	Arg   uint // 0 to 5
	Op    Op
	Value uint64
}

// masked splits the Value of a condition with [Masked] into the bits that count and what
// they have to be.
func (c Condition) masked() (mask, value uint64) { return c.Value >> 32, c.Value & (1<<32 - 1) }

// Op is a comparison.
type Op uint8

// The comparisons. The kernel reads int arguments from the low half of a register and
// ignores the rest, which a caller can set to anything. A refusal of one int value
// therefore compares only the low half.
const (
	Is32    Op = iota // the low 32 bits equal Value
	Not               // the whole register differs from Value
	Above             // the whole register is greater than Value
	HasBits           // every bit of Value is set
	NoBits            // no bit of Value is set
	Is                // the whole register equals Value
	Masked            // of an int, the bits of the high half of Value are those of its low half
)

// PlanOptions select the notifications of a plan, and the refusals that only
// some policies need.
type PlanOptions struct {
	// NoExecMemfd notifies memfd_create without MFD_NOEXEC_SEAL: an executable
	// memory file would pass every path rule about programs.
	NoExecMemfd bool
	NoInternet  bool // refuse sockets of every family but UNIX, for a session without a network namespace
	// Signals are the signals that are notified.
	Signals Signals
	// Report notifies the refusals that programs rarely cause, so that the
	// supervisor can write events. Without it they are Refused.
	Report bool
	Opens  bool // notify opens for reading
	Umask  bool // notify umask
	// Watches notifies calls that make an inotify instance.
	Watches bool
	Limits  bool // notify setrlimit, and prlimit64 that sets a limit
	// Threads notifies calls that set the scheduling of another thread, and refuses those
	// about another group. Without it only calls about the session init are refused, by its
	// numbers in a pid namespace.
	Threads bool
	Connect bool // notify connect
	Bind    bool // notify bind, and sendto with an address
	// Owner is set in a user namespace that knows these ids only. Changing the owner of a
	// file to another then fails with EPERM, as for every user, and not with EINVAL. It
	// needs Report.
	Owner *Owner
	// SharedNetwork refuses Internet sockets other than TCP, and notifies listen. It is for
	// a session in the network of the machine.
	SharedNetwork bool
	// TagRSS refuses to set RLIMIT_RSS, which marks processes: see target.TagRSS.
	TagRSS bool
	// Truncation refuses to truncate a file by its name without opening it for writing. It is
	// for a Landlock that has no right for it.
	Truncation bool
}

// DefaultPlan returns the plan of a session. execve and execveat are always
// notified.
func DefaultPlan(o PlanOptions) (p Plan) {
	p = Plan{Refused: kernelAnswered(), Notified: []Notice{{Syscalls: []string{"execve", "execveat"}}}}
	for _, list := range [][]Refusal{
		kernelRefusals(), mountRefusals(), processRefusals(), tagRefusals(TagLimit), socketRefusals(), terminalRefusals(), o.Signals.refused(),
	} {
		p.Reported = append(p.Reported, list...)
	}
	if o.Threads {
		p.Notified = append(p.Notified, threadNotices()...)
		p.Reported = append(p.Reported, groupRefusals()...)
	} else {
		p.Reported = append(p.Reported, initRefusals()...)
	}
	if o.TagRSS {
		p.Reported = append(p.Reported, tagRefusals(unix.RLIMIT_RSS)...)
	}
	if o.Truncation {
		p.Refused = slices.Concat(p.Refused, truncationRefusals())
	}
	p.Excepted = append(exceptions(), o.Signals.excepted()...)
	if o.Owner != nil && o.Report {
		p.Excepted = append(p.Excepted, ownerRefusals(o.Owner)...)
	}
	p.Notified = append(p.Notified, o.Signals.notices()...)
	defer func() {
		if !o.Report {
			p.refuseInKernel()
		}
	}()
	if o.NoExecMemfd {
		p.Notified = append(p.Notified, Notice{Syscalls: []string{"memfd_create"}, When: []Case{{{1, NoBits, unix.MFD_NOEXEC_SEAL}}}})
	}
	if o.NoInternet {
		p.Reported = append(p.Reported, Refusal{
			Syscalls: []string{"socket"}, When: equal(0, unix.AF_INET, unix.AF_INET6), Errno: unix.EPERM,
			Reason: "without a network namespace the socket would be one of the machine's network",
		}, Refusal{
			Syscalls: []string{"socket"}, When: []Case{{{0, Is32, unix.AF_NETLINK}, {2, Is, unix.NETLINK_ROUTE}}}, Errno: unix.EPERM,
			Reason: "without a network namespace it tells about the machine's network",
		})
	}
	if o.Opens {
		p.Notified = append(p.Notified,
			Notice{Syscalls: []string{"open"}, When: []Case{{{1, NoBits, unix.O_ACCMODE | unix.O_PATH}}}},
			Notice{Syscalls: []string{"openat"}, When: []Case{{{2, NoBits, unix.O_ACCMODE | unix.O_PATH}}}},
			Notice{Syscalls: []string{"openat2"}})
	}
	if o.Watches {
		p.Notified = append(p.Notified, Notice{Syscalls: []string{"inotify_init", "inotify_init1"}})
	}
	if o.Umask {
		p.Notified = append(p.Notified, Notice{Syscalls: []string{"umask"}})
	}
	if o.Limits {
		p.Notified = append(p.Notified, limitNotices(o.TagRSS)...)
	}
	if o.Connect {
		p.Notified = append(p.Notified, Notice{Syscalls: []string{"connect"}})
	}
	if o.Bind {
		p.Notified = append(p.Notified, Notice{Syscalls: []string{"bind"}},
			Notice{Syscalls: []string{"sendto"}, When: []Case{{{3, NoBits, unix.MSG_FASTOPEN}, {4, Not, 0}}}})
	}
	if o.SharedNetwork {
		p.Reported = append(p.Reported, Refusal{
			Syscalls: []string{"socket"}, When: datagramSockets(), Errno: unix.EPERM,
			Reason: "each datagram has an address of its own, in memory; only TCP is judged connection by connection",
		})
		p.Notified = append(p.Notified, Notice{Syscalls: []string{"listen"}})
	}
	return p
}

// ownerRefusals refuse to give files to another owner.
func ownerRefusals(owner *Owner) []Exception {
	const reason = "files in a session belong to its user"
	return []Exception{
		{Refusal: Refusal{[]string{"chown", "lchown", "fchown"}, always, unix.EPERM, reason}, Owner: owner, First: 1},
		{Refusal: Refusal{[]string{"fchownat"}, always, unix.EPERM, reason}, Owner: owner, First: 2},
	}
}

// refuseInKernel makes the kernel refuse all calls that the supervisor would
// refuse, including excepted ones.
func (p *Plan) refuseInKernel() {
	p.Refused = slices.Concat(p.Refused, p.Reported)
	for _, e := range p.Excepted {
		p.Refused = append(p.Refused, e.Refusal)
	}
	p.Reported, p.Excepted = nil, nil
}

// limitNotices returns the calls that set the caller's own limits, except for
// the tag, which is refused.
func limitNotices(tagRSS bool) []Notice {
	var set, pr []Case
	for r := range uint64(TagLimit) {
		if tagRSS && r == unix.RLIMIT_RSS {
			continue
		}
		set = append(set, Case{{0, Is32, r}})
		pr = append(pr, Case{{0, Is, 0}, {1, Is32, r}, {2, Not, 0}})
	}
	return []Notice{{[]string{"setrlimit"}, set}, {[]string{"prlimit64"}, pr}}
}

// threadNotices returns the calls that set the scheduling of another thread or
// process.
func threadNotices() []Notice {
	return []Notice{
		{schedulerCalls, []Case{{{0, Not, 0}}}},
		{[]string{"setpriority"}, []Case{{{0, Is32, unix.PRIO_PROCESS}, {1, Not, 0}}}},
		{[]string{"ioprio_set"}, []Case{{{0, Is32, ioprioWhoProcess}, {1, Not, 0}}}},
	}
}
