package syntax

import (
	"strings"
	"time"

	"agentsh/internal/mistake"
	"agentsh/internal/strictyaml"
	"agentsh/policy"
	"agentsh/policy/glob"
)

// draft is a rule that is being parsed.
type draft struct {
	rule     *policy.Rule
	redirect *strictyaml.Node // redirect_to, for its position in problems
	timeout  *strictyaml.Node
	wait     time.Duration
	selected bool // the rule has a condition
	settings []policy.Setting
	patterns []located // args_patterns, compiled when the decision is known
}

// commonKeys returns the keys that every rule has. effects are the decisions
// that the group allows.
func commonKeys(effects ...policy.Effect) []key[draft] {
	words := make([]string, len(effects))
	for i, e := range effects {
		words[i] = e.String()
	}
	return []key[draft]{
		{field{name: "name", doc: "Names the rule in decisions, events and tests.", required: true}, readRuleName},
		{field{name: "description", doc: "Says what the rule is for."}, func(r *reader, n *strictyaml.Node, d *draft) {
			d.rule.Description, _ = r.Text(n)
		}},
		{field{name: "decision", doc: "What happens to a request the rule matches.", shape: shape{words: words}, required: true},
			func(r *reader, n *strictyaml.Node, d *draft) {
				if i, ok := r.Word(n, "decision", words); ok {
					d.rule.Effect = effects[i]
				}
			}},
		{
			field{name: "message", doc: "Shown to the person or agent whose request was denied; {{.Path}} and the like are filled in."},
			readMessage,
		},
		{
			field{
				name:  "timeout",
				doc:   "How long decision: approve waits for an answer before it denies; for other command rules, how long the command may run.",
				shape: shape{kind: shapeDuration},
			},
			func(r *reader, n *strictyaml.Node, d *draft) {
				d.timeout = n
				d.wait, _ = r.Duration(n)
			},
		},
		{
			field{
				name:  "accept_warnings",
				doc:   "Codes of warnings of policy check that are known and accepted; they are not printed.",
				shape: listOf(shape{words: warningCodes}),
			},
			func(r *reader, n *strictyaml.Node, d *draft) {
				for _, l := range r.texts(n) {
					if i, ok := r.Word(l.node, "code of a warning", warningCodes); ok {
						d.rule.Accepted = append(d.rule.Accepted, warningCodes[i])
					}
				}
			},
		},
	}
}

func readRuleName(r *reader, n *strictyaml.Node, d *draft) {
	s, ok := r.Text(n)
	if !ok {
		return
	}
	if s == "" || len(s) > 128 || s == "default" || strings.ContainsAny(s, "\n\r\t") {
		r.Fail(n, "", "a rule name is 1 to 128 characters on one line and not \"default\"")
		return
	}
	d.rule.Name = s
}

func readMessage(r *reader, n *strictyaml.Node, d *draft) {
	s, ok := r.Text(n)
	if !ok {
		return
	}
	m, err := parseMessage(s)
	if err != nil {
		r.Fail(n, "", "message: %v", err)
		return
	}
	d.rule.Message, d.rule.Template = s, m
}

// readRules parses the list of rules of one group.
func readRules(
	g policy.Group,
	keys []key[draft],
	start func(*policy.Rule),
	finish func(*reader, *strictyaml.Node, *draft),
) func(*reader, *strictyaml.Node, *document) {
	what := "a " + g.String() + " rule"
	return func(r *reader, n *strictyaml.Node, doc *document) {
		doc.given[g] = true
		doc.rules[g] = make([]*policy.Rule, 0, len(n.Content))
		r.Items(n, func(item *strictyaml.Node) {
			d := &draft{rule: &policy.Rule{Group: g, Pos: r.pos(item)}}
			start(d.rule)
			readObject(r, item, what, keys, d)
			if item.Kind != strictyaml.Mapping {
				return
			}
			finishRule(r, item, d)
			finish(r, item, d)
			doc.rules[g] = append(doc.rules[g], d.rule)
			doc.settings = append(doc.settings, d.settings...)
		})
	}
}

// finishRule checks the keys of one rule in combination.
func finishRule(r *reader, n *strictyaml.Node, d *draft) {
	rule := d.rule
	switch {
	case rule.Effect == policy.Redirect && d.redirect == nil:
		r.Fail(n, "", "decision: redirect without redirect_to")
	case rule.Effect != policy.Redirect && d.redirect != nil:
		r.Fail(d.redirect, "", "redirect_to is for decision: redirect")
	}
	if d.timeout == nil || d.wait == 0 {
		return
	}
	switch {
	case rule.Effect == policy.Approve:
		rule.ApproveTimeout = d.wait
	case rule.Group == policy.GroupCommand:
		if rule.Limits == nil {
			rule.Limits = &policy.Limits{}
		}
		rule.Limits.CommandTimeout = d.wait
		d.settings = append(d.settings, policy.Setting{Key: "resource_limits.command_timeout", Pos: r.pos(d.timeout)})
	default:
		r.Fail(d.timeout, "", "timeout is for decision: approve")
	}
}

// pattern expands and compiles one glob.
func (r *reader) pattern(n *strictyaml.Node, kind glob.Kind, text string) *glob.Glob {
	if kind == glob.Path && r.mistaken(n, mistake.Path(text)) {
		return nil
	}
	expanded, err := expand(text, r.vars, glob.Quote)
	if err != nil {
		r.Fail(n, "", "pattern %q: %v", strictyaml.Shorten(text), err)
		return nil
	}
	g, err := glob.Compile(kind, expanded)
	if err != nil {
		r.Fail(n, "", "pattern %q: %v", strictyaml.Shorten(text), err)
		return nil
	}
	return g
}

// paths reads a list of path globs.
func (r *reader) paths(n *strictyaml.Node) []*glob.Glob {
	var out []*glob.Glob
	for _, l := range r.texts(n) {
		if g := r.pattern(l.node, glob.Path, l.text); g != nil {
			out = append(out, g)
		}
	}
	return out
}

// mistaken reports a known mistake, if there is one.
func (r *reader) mistaken(n *strictyaml.Node, f mistake.Finding) bool {
	if f.Found() {
		r.Fail(n, f.Hint, "%s", f.Message)
	}
	return f.Found()
}

// names parses a list of entries that are base names or, with a slash, paths.
// line says that args stand beside them.
func (r *reader) names(list []located, line bool) []policy.ProgramName {
	out := make([]policy.ProgramName, 0, len(list))
	for _, l := range list {
		kind := glob.Text
		if strings.Contains(l.text, "/") || strings.HasPrefix(l.text, "${") {
			kind = glob.Path
		}
		switch l.text {
		case "":
			r.Fail(l.node, "", "an empty name matches nothing")
			continue
		case ".", "..":
			r.Fail(l.node, "", "%s is never the name of a program", l.text)
			continue
		case "**":
			r.Fail(l.node, `write "*"`, "** is for paths")
			continue
		}
		if r.mistaken(l.node, mistake.Program(l.text, line)) {
			continue
		}
		text := l.text
		if text == "[" { // the program, not the start of a set
			text = `\[`
		}
		if g := r.pattern(l.node, kind, text); g != nil {
			out = append(out, policy.ProgramName{Glob: g, WholePath: kind == glob.Path})
		}
	}
	return out
}
