package policy

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"agentsh/policy/glob"
)

// signalRules evaluates signal requests.
type signalRules struct {
	rules []*Rule
	other Effect // where no rule matches
}

func (s *signalRules) decide(q *SignalRequest) (Decision, reason) {
	if q.Signal < 0 || q.Signal > maxSignal {
		return Decision{}, reason{text: "the signal is not known"}
	}
	if _, known := targetsOf[q.Target]; !known {
		return Decision{}, reason{text: "the target is not known"}
	}
	for _, rule := range s.rules {
		if rule.Signal.matches(q) {
			return Decision{Effect: rule.Effect, Rule: rule}, reason{}
		}
	}
	return Decision{Effect: s.other}, reason{}
}

// SignalSelector has the conditions of a signal rule.
type SignalSelector struct {
	Signals        uint64 // bit n: signal n; bit 0: the check for existence
	Target         string
	Program        *glob.Glob
	MinPID, MaxPID int
}

// maxSignal is the largest signal number of Linux. See signal(7).
const maxSignal = 64

var signalNames = [...]string{
	1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 10: "USR1",
	11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 16: "STKFLT", 17: "CHLD", 18: "CONT", 19: "STOP",
	20: "TSTP", 21: "TTIN", 22: "TTOU", 23: "URG", 24: "XCPU", 25: "XFSZ", 26: "VTALRM", 27: "PROF", 28: "WINCH",
	29: "IO", 30: "PWR", 31: "SYS",
}

var signalAliases = map[string]int{"IOT": 6, "CLD": 17, "POLL": 29, "UNUSED": 31, "EXIT": 0}

// The groups of signals. Every signal is in one of the first four.
var signalGroups = map[string]uint64{
	"@fatal":  signalBits(2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 14, 15, 16, 24, 25, 26, 27, 29, 30, 31) | realtimeBits,
	"@job":    signalBits(18, 19, 20, 21, 22),
	"@reload": signalBits(1, 10, 12),
	"@ignore": signalBits(0, 17, 23, 28),
	"@all":    ^uint64(0),
}

// realtimeBits are the real-time signals 32 to 64. Numbers above 32 are stored
// minus one, so that 64 fits.
const realtimeBits uint64 = 0xffffffff << 32

// signalBit returns the bit of a signal number from 0 to 64. Number 32, which
// the C library reserves, shares its bit with 33.
func signalBit(n int) uint64 {
	if n > 32 {
		n--
	}
	return 1 << n
}

func signalBits(numbers ...int) uint64 {
	var bits uint64
	for _, n := range numbers {
		bits |= signalBit(n)
	}
	return bits
}

// signalName returns "SIGKILL", "SIGRTMIN+2" or the number.
func signalName(n int) string {
	if n > 0 && n < len(signalNames) {
		return "SIG" + signalNames[n]
	}
	if n >= 34 && n <= maxSignal {
		return "SIGRTMIN+" + strconv.Itoa(n-34)
	}
	return strconv.Itoa(n)
}

// ParseSignal parses a signal name, with or without SIG, or a number from 0 to
// 64. Case is ignored. ok is false for anything else.
func ParseSignal(word string) (int, bool) {
	if n, err := strconv.Atoi(word); err == nil {
		return n, n >= 0 && n <= maxSignal
	}
	name := strings.TrimPrefix(strings.ToUpper(word), "SIG")
	if i := slices.Index(signalNames[:], name); i > 0 {
		return i, true
	}
	if n, ok := signalAliases[name]; ok {
		return n, true
	}
	if rest, ok := strings.CutPrefix(name, "RTMIN"); ok {
		return realtime(rest, "+", 34, 1)
	}
	if rest, ok := strings.CutPrefix(name, "RTMAX"); ok {
		return realtime(rest, "-", 64, -1)
	}
	return 0, false
}

// ParseSignals parses a signal like [ParseSignal], or one of the groups @fatal,
// @job, @reload, @ignore and @all. The result is a set for
// [SignalSelector.Signals].
func ParseSignals(word string) (set uint64, ok bool) {
	if set, ok := signalGroups[word]; ok {
		return set, true
	}
	n, ok := ParseSignal(word)
	if !ok {
		return 0, false
	}
	return signalBit(n), true
}

// realtime parses the part after RTMIN or RTMAX.
func realtime(rest, sign string, from, step int) (int, bool) {
	if rest == "" {
		return from, true
	}
	digits, ok := strings.CutPrefix(rest, sign)
	n, err := strconv.Atoi(digits)
	return from + step*n, ok && err == nil && n >= 0 && n <= 30
}

// SignalWords returns the names that [ParseSignals] accepts, without numbers.
func SignalWords() []string {
	words := []string{"@fatal", "@job", "@reload", "@ignore", "@all"}
	for _, n := range signalNames[1:] {
		words = append(words, "SIG"+n, n)
	}
	return words
}

// targetsOf lists the targets of a request for each target type of a rule.
var targetsOf = map[string][]string{
	"self": {"self"}, "children": {"children"}, "descendants": {"children", "descendants"}, "siblings": {"siblings"},
	"session": {"self", "children", "descendants", "siblings", "session", "parent"},
	"parent":  {"parent"}, "external": {"external", "system"}, "system": {"system"},
}

// about checks a rule against a signal and a kind of target. some reports
// whether the rule can match such a target, all whether it matches every one.
func (m *SignalSelector) about(number int, target string) (some, all bool) {
	if m.Signals&signalBit(number) == 0 {
		return false, false
	}
	switch m.Target {
	case "process", "pid_range", "user":
		return true, false
	}
	some = slices.Contains(targetsOf[m.Target], target)
	return some, some && m.Program == nil
}

// AllowsSignal reports whether a signal to a kind of target is allowed without
// a record, whichever the processes are. target is a value of
// SignalRequest.Target. If the result is false, rule is the first rule that can
// decide otherwise. A nil rule means the default.
func (p *Policy) AllowsSignal(number int, target string) (allowed bool, rule *Rule) {
	if number < 0 || number > maxSignal || targetsOf[target] == nil {
		return false, nil
	}
	for _, rule := range p.signals.rules {
		some, all := rule.Signal.about(number, target)
		switch {
		case some && rule.Effect != Allow:
			return false, rule
		case all:
			return true, nil
		}
	}
	return p.signals.other == Allow, nil
}

// matches reports whether the rule matches the request.
func (m *SignalSelector) matches(q *SignalRequest) bool {
	if q.Signal < 0 || q.Signal > maxSignal || m.Signals&signalBit(q.Signal) == 0 {
		return false
	}
	if m.Program != nil && !m.Program.Match(q.Name) {
		return false
	}
	switch m.Target {
	case "process":
		return true
	case "pid_range":
		return q.PID >= m.MinPID && q.PID <= m.MaxPID
	case "user":
		return q.SameUser
	default:
		return slices.Contains(targetsOf[m.Target], q.Target)
	}
}

// SignalTargets returns what a target of a [SignalRequest] can be to the sender.
func SignalTargets() []string { return slices.Sorted(maps.Keys(targetsOf)) }
