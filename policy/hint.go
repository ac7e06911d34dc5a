package policy

import (
	"fmt"
	"slices"
	"strings"
)

// mostNamed is the maximum number of items in a hint. mostText is its
// approximate maximum length in bytes.
const (
	mostNamed = 8
	mostText  = 200
)

// hint describes allowed alternatives to a request that was not allowed.
func (p *Policy) hint(r Request, d Decision) string {
	if d.Effect == Approve {
		if p.def.Approvals.Via == "" {
			return "have a person asked: add approvals to the policy, as in 'approvals: {via: tty}'"
		}
		return "a person can approve it; without an answer it is denied"
	}
	if d.Rule != nil && d.Rule.Redirect != nil && d.Rule.Redirect.Command != "" {
		return "run " + d.Rule.Redirect.Command + " instead"
	}
	switch r := r.(type) {
	case *CommandRequest:
		if d.Rule != nil && d.Rule.Message != "" {
			return "" // the rule's message says what to do; other rules for the program do not apply
		}
		return p.commands.hint(r)
	case *FileRequest:
		return p.files.hint(r)
	case *NetworkRequest:
		return p.network.hint()
	case *UnixSocketRequest:
		return namedHint("allowed sockets: ", permitted(p.sockets.rules, func(rule *Rule) []string {
			return patternTexts(append(slices.Clone(rule.Socket.Paths), rule.Socket.Abstract...))
		}))
	case *SignalRequest:
		return p.signals.hint(r)
	}
	return ""
}

// permitted lists the items that the allow rules of a group name, in file
// order. It stops when a hint has enough, because denials can be frequent.
func permitted(rules []*Rule, texts func(*Rule) []string) []string {
	var out []string
	for _, rule := range rules {
		if !rule.Effect.Permits() {
			continue
		}
		for _, text := range texts(rule) {
			if !slices.Contains(out, text) {
				out = append(out, text)
			}
		}
		if len(out) > mostNamed {
			break
		}
	}
	return out
}

func namedHint(lead string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	text := lead
	for i, name := range names {
		if i == mostNamed || i > 0 && len(text)+len(name) > mostText {
			return text + " and others"
		}
		if i > 0 {
			text += ", "
		}
		text += brief(name)
	}
	return text
}

// brief truncates a long pattern.
func brief(text string) string {
	if len(text) <= mostText {
		return text
	}
	return strings.ToValidUTF8(text[:mostText], "") + "..."
}

func patternTexts[T fmt.Stringer](globs []T) []string {
	out := make([]string, len(globs))
	for i, g := range globs {
		out[i] = g.String()
	}
	return out
}

// hint lists the allowed argument forms of the same program. If there are none
// it lists the allowed programs.
func (c *commandRules) hint(q *CommandRequest) string {
	rules := c.rules
	for _, name := range [...]string{q.Path, q.Called} {
		if name == "" {
			continue
		}
		id := c.index.first(name, func(id int32) bool { return rules[id].Effect.Permits() && rules[id].Command.form() != "" })
		if id != none {
			return fmt.Sprintf("rule %s allows %s %s", rules[id].Name, shown(base(name)), rules[id].Command.form())
		}
	}
	names := permitted(c.rules, func(rule *Rule) []string {
		texts := make([]string, len(rule.Command.Programs))
		for i, e := range rule.Command.Programs {
			texts[i] = e.Glob.String()
		}
		return texts
	})
	if slices.Contains(names, "*") {
		return "" // every other program is allowed: a list would not help
	}
	return namedHint("allowed programs: ", names)
}

// form describes the conditions of a rule other than the program.
func (c *CommandSelector) form() string {
	var parts []string
	if c.Args != nil {
		words := make([]string, len(c.Args))
		for i := range c.Args {
			words[i] = c.Args[i].Text
		}
		parts = append(parts, strings.TrimSpace("with the arguments "+brief(strings.Join(words, " "))))
	}
	if len(c.PatternTexts) > 0 {
		parts = append(parts, "with arguments like "+strings.Join(c.PatternTexts, " or "))
	}
	if c.Depth.Max == 0 {
		parts = append(parts, "when the operator asks for it")
	} else if c.Depth.Min > 0 {
		parts = append(parts, "when another command starts it")
	}
	if len(c.Dirs) > 0 {
		parts = append(parts, "in "+strings.Join(patternTexts(c.Dirs), " or "))
	}
	return strings.Join(parts, ", ")
}

// hint lists the operations that are allowed on the path. If there are none it
// lists the paths where the operation is allowed.
func (f *fileRules) hint(q *FileRequest) string {
	var allowed FileOp
	if cleanPath(q.Path) {
		allowed = f.allowedAt(q.Path)
	}
	if allowed != 0 {
		return "allowed there: " + strings.ReplaceAll(allowed.String(), ",", ", ")
	}
	return namedHint(q.Op.String()+" is allowed at ", permitted(f.rules, func(rule *Rule) []string {
		if rule.File.Ops&q.Op == 0 {
			return nil
		}
		return patternTexts(rule.File.Paths)
	}))
}

// allowedAt returns the operations that are allowed on a path. It reads the
// matching rules once.
func (f *fileRules) allowedAt(name string) FileOp {
	var allowed FileOp
	open := OpAll
	rules := f.rules
	for last := int32(-1); open != 0; {
		id := f.paths.First(name, none, func(id int32) bool { return id > last && rules[id].File.Ops&open != 0 })
		if id == none {
			break
		}
		if rules[id].Effect.Permits() {
			allowed |= rules[id].File.Ops & open
		}
		open &^= rules[id].File.Ops
		last = id
	}
	if f.read.Permits() {
		allowed |= open & fileReads
	}
	if f.write.Permits() {
		allowed |= open &^ fileReads
	}
	return allowed
}

func (n *networkRules) hint() string {
	return namedHint("allowed destinations: ", permitted(n.rules, func(rule *Rule) []string {
		m := rule.Network
		texts := patternTexts(m.Domains)
		for _, c := range slices.Concat(m.Addresses, m.CIDRs) {
			texts = append(texts, c.String())
		}
		if len(m.Methods) > 0 {
			for i := range texts {
				texts[i] += " (" + strings.Join(m.Methods, ", ") + ")"
			}
		}
		return texts
	}))
}

func (s *signalRules) hint(q *SignalRequest) string {
	var targets []string
	for _, rule := range s.rules {
		if q.Signal >= 0 && q.Signal <= maxSignal && rule.Effect.Permits() && rule.Signal.Signals&signalBit(q.Signal) != 0 {
			targets = append(targets, rule.Signal.Target)
		}
	}
	return namedHint(signalName(q.Signal)+" is allowed to: ", targets)
}
