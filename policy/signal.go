package policy

import (
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"agentsh/policy/glob"
)

// signalMatch is what a signal rule selects.
type signalMatch struct {
	signals  uint64 // bit n: signal n; bit 0 is the check for existence
	kind     string
	pattern  *glob.Glob
	min, max int
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

// realtimeBits are the real-time signals, 32 to 64; 64 shares no bit since
// signal numbers are stored less one above 31.
const realtimeBits uint64 = 0xffffffff << 32

// signalBit is the bit of one signal number, 0 to 64. Number 32, which the C
// library keeps to itself, shares its bit with 33.
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

// signalName is "SIGKILL", "SIGRTMIN+2" or the number.
func signalName(n int) string {
	if n > 0 && n < len(signalNames) {
		return "SIG" + signalNames[n]
	}
	if n >= 34 && n <= maxSignal {
		return "SIGRTMIN+" + strconv.Itoa(n-34)
	}
	return strconv.Itoa(n)
}

// ParseSignal reads a signal name, with or without SIG, or a number from 0 to
// 64. Case does not matter.
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

// realtime reads what follows RTMIN or RTMAX.
func realtime(rest, sign string, from, step int) (int, bool) {
	if rest == "" {
		return from, true
	}
	digits, ok := strings.CutPrefix(rest, sign)
	n, err := strconv.Atoi(digits)
	return from + step*n, ok && err == nil && n >= 0 && n <= 30
}

var targetWords = []string{
	"self",
	"children",
	"descendants",
	"siblings",
	"session",
	"parent",
	"external",
	"system",
	"user",
	"process",
	"pid_range",
}

func signalKeys() []key[draft] {
	return append(commonKeys(Allow, Deny, Audit, Approve, Redirect, Absorb), []key[draft]{
		{
			field{
				name:     "signals",
				doc:      "Names, numbers, or the groups @fatal, @job, @reload, @ignore and @all.",
				shape:    listOf(shape{others: []shape{{kind: shapeInt}}}),
				required: true,
			},
			readSignals,
		},
		{
			field{
				name:     "target",
				doc:      "The process that would get the signal.",
				shape:    objectOf(func() []field { return fieldsOf(targetKeys) }),
				required: true,
			},
			func(r *reader, n *yaml.Node, d *draft) {
				readObject(r, n, "target", targetKeys, d.rule.signal)
				checkTarget(r, n, d.rule.signal)
			},
		},
		{field{name: "redirect_to", doc: "The signal that is sent instead."}, func(r *reader, n *yaml.Node, d *draft) {
			d.redirect = n
			s, ok := r.text(n)
			if !ok {
				return
			}
			number, ok := ParseSignal(s)
			if !ok {
				r.fail(n, didYouMean(s, signalWords()), "unknown signal %q", shorten(s))
			}
			d.rule.Redirect = &RedirectTo{Signal: number}
		}},
		{
			field{
				name:  "fallback",
				doc:   "What another program would do where it cannot hold the rule; here such a rule stops the start.",
				shape: shape{words: fallbackWords},
			},
			func(r *reader, n *yaml.Node, d *draft) {
				if _, ok := r.word(n, "fallback", fallbackWords); ok {
					d.settings = append(d.settings, Setting{Key: "signal_rules.fallback", Pos: r.pos(n)})
				}
			},
		},
	}...)
}

var fallbackWords = []string{"allow", "deny", "audit", "approve"}

var readSignalRules = func(r *reader, n *yaml.Node, doc *document) {
	readRules(GroupSignal, signalKeys(), func(rule *Rule) { rule.signal = &signalMatch{} }, func(*reader, *yaml.Node, *draft) {})(r, n, doc)
}

// signalWords are the words signals may be named by.
func signalWords() []string {
	words := []string{"@fatal", "@job", "@reload", "@ignore", "@all"}
	for _, n := range signalNames[1:] {
		words = append(words, "SIG"+n, n)
	}
	return words
}

func readSignals(r *reader, n *yaml.Node, d *draft) {
	for _, l := range r.texts(n) {
		if bits, ok := signalGroups[l.text]; ok {
			d.rule.signal.signals |= bits
		} else if number, ok := ParseSignal(l.text); ok {
			d.rule.signal.signals |= signalBit(number)
		} else {
			r.fail(l.node, didYouMean(l.text, signalWords()), "unknown signal %q", shorten(l.text))
		}
	}
}

var targetKeys = []key[signalMatch]{
	{
		field{name: "type", doc: "What the target is to the sender.", shape: shape{words: targetWords}, required: true},
		func(r *reader, n *yaml.Node, m *signalMatch) {
			if i, ok := r.word(n, "target type", targetWords); ok {
				m.kind = targetWords[i]
			}
		},
	},
	{
		field{name: "pattern", doc: "A glob of the base name of the target's program, for type: process."},
		func(r *reader, n *yaml.Node, m *signalMatch) {
			if s, ok := r.text(n); ok {
				m.pattern = r.pattern(n, glob.Text, s)
			}
		},
	},
	{
		field{name: "min", doc: "The lowest process id, for type: pid_range.", shape: shape{kind: shapeInt}},
		func(r *reader, n *yaml.Node, m *signalMatch) { m.min, _ = r.positive(n, 1<<22) },
	},
	{
		field{name: "max", doc: "The highest process id, for type: pid_range.", shape: shape{kind: shapeInt}},
		func(r *reader, n *yaml.Node, m *signalMatch) { m.max, _ = r.positive(n, 1<<22) },
	},
}

// checkTarget checks what the keys of a target say together.
func checkTarget(r *reader, n *yaml.Node, m *signalMatch) {
	switch {
	case m.kind == "process" && m.pattern == nil:
		r.fail(n, "", "type: process needs a pattern")
	case m.kind == "pid_range" && (m.min == 0 || m.max == 0 || m.min > m.max):
		r.fail(n, "", "type: pid_range needs min and max, min not above max")
	case m.kind != "pid_range" && (m.min != 0 || m.max != 0):
		r.fail(n, "", "min and max are for type: pid_range")
	}
}

// covers lists, for each type of target in a rule, the words of a request it
// is about.
var covers = map[string][]string{
	"self": {"self"}, "children": {"children"}, "descendants": {"children", "descendants"}, "siblings": {"siblings"},
	"session": {"self", "children", "descendants", "siblings", "session", "parent"},
	"parent":  {"parent"}, "external": {"external", "system"}, "system": {"system"},
}

// about reports whether the rule can be about a signal to a target of a kind,
// and whether it is about each of them.
func (m *signalMatch) about(number int, target string) (some, all bool) {
	if m.signals&signalBit(number) == 0 {
		return false, false
	}
	switch m.kind {
	case "process", "pid_range", "user":
		return true, false
	}
	some = slices.Contains(covers[m.kind], target)
	return some, some && m.pattern == nil
}

// AllowsSignal reports whether a signal to a target of a kind, a word of
// [SignalRequest], is allowed without a record, whatever the processes are. If it
// is not, rule is the first that can decide otherwise; nil: the default does.
func (p *Policy) AllowsSignal(number int, target string) (allowed bool, rule *Rule) {
	if number < 0 || number > maxSignal || covers[target] == nil {
		return false, nil
	}
	for _, rule := range p.groups[GroupSignal].rules {
		some, all := rule.signal.about(number, target)
		switch {
		case some && rule.Effect != Allow:
			return false, rule
		case all:
			return true, nil
		}
	}
	return p.fallback(defaultSignal).Effect == Allow, nil
}

// matches reports whether the rule is about the request.
func (m *signalMatch) matches(q *SignalRequest) bool {
	if q.Signal < 0 || q.Signal > maxSignal || m.signals&signalBit(q.Signal) == 0 {
		return false
	}
	if m.pattern != nil && !m.pattern.Match(q.Name) {
		return false
	}
	switch m.kind {
	case "process":
		return true
	case "pid_range":
		return q.PID >= m.min && q.PID <= m.max
	case "user":
		return q.SameUser
	default:
		return slices.Contains(covers[m.kind], q.Target)
	}
}
