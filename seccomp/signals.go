package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"
)

// MaxSignal is the highest signal number. See signal(7).
const MaxSignal = 64

// SignalSet is a set of signals by number. 0 checks whether a process exists.
type SignalSet [MaxSignal + 1]bool

// EverySignal returns the set of all signals.
func EverySignal() (s SignalSet) {
	for n := range s {
		s[n] = true
	}
	return s
}

// has reports whether the set has one of the signals. Without numbers: any signal.
func (s SignalSet) has(numbers ...int) bool {
	if len(numbers) == 0 {
		return slices.Contains(s[:], true)
	}
	return slices.ContainsFunc(numbers, func(n int) bool { return s[n] })
}

// minus returns the signals of s that are not in other.
func (s SignalSet) minus(other SignalSet) SignalSet {
	for n := range s {
		s[n] = s[n] && !other[n]
	}
	return s
}

// Missing returns the first signal of need that is not in s; found is false if
// there is none.
func (s SignalSet) Missing(need SignalSet) (number int, found bool) {
	rest := need.minus(s)
	number = slices.Index(rest[:], true)
	return number, number >= 0
}

// Signals defines which signals the supervisor decides. The kernel delivers the
// others.
type Signals struct {
	// Evaluated are notified for every target.
	Evaluated SignalSet
	// First are notified if the target is one of [FirstProcesses].
	First SignalSet
	// Inside is set if a pid namespace confines signals to the session. Otherwise calls
	// that make the kernel send signals later are refused.
	Inside bool
}

// senders are the calls that send a signal, with the argument that has its number. The
// process, or for tgkill the thread group, is argument 0.
var senders = []struct {
	name   string
	signal uint
}{{"kill", 1}, {"tkill", 1}, {"tgkill", 2}, {"rt_sigqueueinfo", 1}, {"rt_tgsigqueueinfo", 2}}

// mostCases is the maximum number of signals that a filter distinguishes. With
// more, it notifies all signals.
const mostCases = 32

// cases returns the cases for the signals of a set, each combined with the cases in and.
func (s SignalSet) cases(arg uint, and []Case) []Case {
	numbers := s.numbers()
	if len(numbers) > mostCases {
		return and
	}
	if and == nil {
		and = []Case{{}}
	}
	var out []Case
	for _, n := range numbers {
		for _, c := range and {
			out = append(out, append(slices.Clone(c), Condition{arg, Is32, n}))
		}
	}
	return out
}

func (s SignalSet) numbers() (out []uint64) {
	for n, in := range s {
		if in {
			out = append(out, uint64(n))
		}
	}
	return out
}

// notices returns the calls that send an evaluated signal.
func (s Signals) notices() []Notice {
	var out []Notice
	rest := s.First.minus(s.Evaluated)
	all := len(s.Evaluated.numbers()) > mostCases
	for _, call := range senders {
		n := Notice{Syscalls: []string{call.name}}
		if s.Evaluated.has() {
			n.When = s.Evaluated.cases(call.signal, nil)
		}
		if rest.has() && !all {
			n.When = append(n.When, rest.cases(call.signal, first(0))...)
		}
		if all || len(n.When) > 0 {
			out = append(out, n)
		}
	}
	if s.Inside && s.Evaluated.has(ownerSignals...) {
		// The receiver of these signals is set once, by a number.
		out = append(out, Notice{Syscalls: []string{"fcntl"}, When: []Case{{{fcntlCmd, Is32, unix.F_SETOWN}, {fcntlValue, Not, 0}}}})
	}
	return out
}

// Requests that set the receiver and the number of a descriptor's signals. See
// fcntl(2), socket(7).
const (
	fiosetown  = 0x8901
	siocspgrp  = 0x8902
	fSetOwnEx  = 15
	fSetSig    = 10
	fcntlCmd   = 1
	fcntlValue = 2
)

// ownerSignals are the signals of a descriptor without F_SETSIG.
var ownerSignals = []int{int(unix.SIGIO), int(unix.SIGURG)}

const (
	sendsLater = "has the kernel send signals later, without kill"
	sendsToOne = "has the kernel send signals to a process that is named in memory"
)

// refused returns the calls whose signals are neither confined nor evaluated.
func (s Signals) refused() []Refusal {
	var out []Refusal
	refuse := func(name string, errno unix.Errno, reason string, when ...Case) {
		out = append(out, Refusal{[]string{name}, when, errno, reason})
	}
	if !s.Inside || s.Evaluated.has() {
		refuse("pidfd_send_signal", unix.ENOSYS, "another thread could exchange the descriptor after it was judged; programs fall back to kill")
	} else if s.First.has() {
		refuse("pidfd_open", unix.EPERM, "the session's first processes get no signals", first(0)...)
	}
	if !s.Inside {
		refuse("fcntl", unix.EPERM, sendsLater, Case{{fcntlCmd, Is32, unix.F_SETOWN}, {fcntlValue, Not, 0}})
	}
	if !s.Inside || s.Evaluated.has(ownerSignals...) {
		refuse("fcntl", unix.EPERM, sendsToOne, Case{{fcntlCmd, Is32, fSetOwnEx}})
		refuse("ioctl", unix.EPERM, sendsToOne, equal(ioctlReq, fiosetown, siocspgrp)...)
	}
	switch chosen := s.Evaluated.minus(SignalSet{0: true}); {
	case !s.Inside || len(chosen.numbers()) > mostCases:
		refuse("fcntl", unix.EPERM, sendsLater, Case{{fcntlCmd, Is32, fSetSig}, {fcntlValue, Not, 0}})
	case chosen.has():
		refuse("fcntl", unix.EPERM, sendsLater, chosen.cases(fcntlValue, []Case{{{fcntlCmd, Is32, fSetSig}}})...)
	}
	return out
}

// excepted returns refusals of calls that set limits of other processes. The
// kernel sends a signal to a process that exceeds one.
func (s Signals) excepted() []Exception {
	const reason = "limits of another process: the kernel signals one that passes them"
	set := Case{{0, Not, 0}, {2, Not, 0}}
	switch {
	case !s.Inside:
		set = Case{{0, Not, 0}} // numbers are those of the machine
	case !s.Evaluated.has():
		return nil
	}
	return []Exception{{Refusal: Refusal{[]string{"prlimit64"}, []Case{set}, unix.EPERM, reason}, Self: []uint{0}}}
}
