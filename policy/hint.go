package policy

import (
	"fmt"
	"slices"
	"strings"
)

// mostNamed is how many allowed things a hint names, and mostText about how many
// bytes it has.
const (
	mostNamed = 8
	mostText  = 200
)

// hint says what would be allowed instead of a request that was not.
func (p *Policy) hint(r Request, d Decision) string {
	if d.Effect == Approve {
		if p.approvals.Via == "" {
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
			return "" // the rule says what to do; other forms of the program are about something else
		}
		return p.commandHint(r)
	case *FileRequest:
		return p.fileHint(r)
	case *NetworkRequest:
		return p.networkHint()
	case *UnixSocketRequest:
		return namedHint("allowed sockets: ", p.permitted(GroupUnixSocket, func(rule *Rule) []string {
			return patternTexts(append(slices.Clone(rule.socket.paths), rule.socket.abstract...))
		}))
	case *SignalRequest:
		return p.signalHint(r)
	}
	return ""
}

// permitted lists what the permitting rules of a group name, in file order, no
// more than a hint needs: denials can be frequent.
func (p *Policy) permitted(g Group, texts func(*Rule) []string) []string {
	var out []string
	for _, rule := range p.groups[g].rules {
		if !rule.Effect.permits() {
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

// brief cuts a long pattern.
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

// commandHint names the forms of the same program a rule permits, or else the
// programs that are.
func (p *Policy) commandHint(q *CommandRequest) string {
	rules := p.groups[GroupCommand].rules
	for _, name := range [...]string{q.Path, q.Called} {
		if name == "" {
			continue
		}
		id := p.commands.first(name, func(id int32) bool { return rules[id].Effect.permits() && rules[id].command.form() != "" })
		if id != none {
			return fmt.Sprintf("rule %s allows %s %s", rules[id].Name, shown(base(name)), rules[id].command.form())
		}
	}
	names := p.permitted(GroupCommand, func(rule *Rule) []string {
		texts := make([]string, len(rule.command.entries))
		for i, e := range rule.command.entries {
			texts[i] = e.glob.String()
		}
		return texts
	})
	if slices.Contains(names, "*") {
		return "" // every other program: that helps nobody
	}
	return namedHint("allowed programs: ", names)
}

// form says what a rule asks of a request beside the program.
func (c *commandMatch) form() string {
	var parts []string
	if c.words != nil {
		words := make([]string, len(c.words))
		for i := range c.words {
			words[i] = c.words[i].source
		}
		parts = append(parts, strings.TrimSpace("with the arguments "+brief(strings.Join(words, " "))))
	}
	if len(c.sources) > 0 {
		parts = append(parts, "with arguments like "+strings.Join(c.sources, " or "))
	}
	if c.depth.max == 0 {
		parts = append(parts, "when the operator asks for it")
	} else if c.depth.min > 0 {
		parts = append(parts, "when another command starts it")
	}
	if len(c.cwd) > 0 {
		parts = append(parts, "in "+strings.Join(patternTexts(c.cwd), " or "))
	}
	return strings.Join(parts, ", ")
}

// fileHint names the operations that are allowed on the path, or else where
// the operation is.
func (p *Policy) fileHint(q *FileRequest) string {
	var allowed FileOp
	if cleanPath(q.Path) {
		allowed = p.allowedAt(q.Path)
	}
	if allowed != 0 {
		return "allowed there: " + strings.ReplaceAll(allowed.String(), ",", ", ")
	}
	return namedHint(q.Op.String()+" is allowed at ", p.permitted(GroupFile, func(rule *Rule) []string {
		if rule.file.ops&q.Op == 0 {
			return nil
		}
		return patternTexts(rule.file.paths)
	}))
}

// allowedAt is the set of operations a path permits, found in one pass over
// the rules about it.
func (p *Policy) allowedAt(name string) FileOp {
	var allowed FileOp
	open := OpAll
	rules := p.groups[GroupFile].rules
	for last := int32(-1); open != 0; {
		id := p.files.First(name, none, func(id int32) bool { return id > last && rules[id].file.ops&open != 0 })
		if id == none {
			break
		}
		if rules[id].Effect.permits() {
			allowed |= rules[id].file.ops & open
		}
		open &^= rules[id].file.ops
		last = id
	}
	if p.fallback(defaultFileRead).Permits() {
		allowed |= open & fileReads
	}
	if p.fallback(defaultFileWrite).Permits() {
		allowed |= open &^ fileReads
	}
	return allowed
}

func (p *Policy) networkHint() string {
	return namedHint("allowed destinations: ", p.permitted(GroupNetwork, func(rule *Rule) []string {
		m := rule.network
		texts := patternTexts(m.domains)
		for _, c := range slices.Concat(m.addresses, m.cidrs) {
			texts = append(texts, c.String())
		}
		if len(m.methods) > 0 {
			for i := range texts {
				texts[i] += " (" + strings.Join(m.methods, ", ") + ")"
			}
		}
		return texts
	}))
}

func (p *Policy) signalHint(q *SignalRequest) string {
	var targets []string
	for _, rule := range p.groups[GroupSignal].rules {
		if q.Signal >= 0 && q.Signal <= maxSignal && rule.Effect.permits() && rule.signal.signals&signalBit(q.Signal) != 0 {
			targets = append(targets, rule.signal.kind)
		}
	}
	return namedHint(signalName(q.Signal)+" is allowed to: ", targets)
}
