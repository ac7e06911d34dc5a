package syntax

import (
	"agentsh/internal/mistake"
	"agentsh/internal/strictyaml"
	"agentsh/policy"
	"agentsh/policy/glob"
)

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
	return append(commonKeys(policy.Allow, policy.Deny, policy.Audit, policy.Approve, policy.Redirect, policy.Absorb), []key[draft]{
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
			func(r *reader, n *strictyaml.Node, d *draft) {
				readObject(r, n, "target", targetKeys, d.rule.Signal)
				checkTarget(r, n, d.rule.Signal)
			},
		},
		{field{name: "redirect_to", doc: "The signal that is sent instead."}, func(r *reader, n *strictyaml.Node, d *draft) {
			d.redirect = n
			s, ok := r.Text(n)
			if !ok {
				return
			}
			number, ok := policy.ParseSignal(s)
			if !ok && r.mistaken(n, mistake.Signal(s)) {
				return
			}
			if !ok {
				r.Fail(n, strictyaml.DidYouMean(s, policy.SignalWords()), "unknown signal %q", strictyaml.Shorten(s))
			}
			d.rule.Redirect = &policy.RedirectTo{Signal: number}
		}},
		{
			field{
				name:  "fallback",
				doc:   "What another program would do where it cannot enforce the rule; here no session starts with such a rule.",
				shape: shape{words: fallbackWords},
			},
			func(r *reader, n *strictyaml.Node, d *draft) {
				if _, ok := r.Word(n, "fallback", fallbackWords); ok {
					d.settings = append(d.settings, policy.Setting{Key: "signal_rules.fallback", Pos: r.pos(n)})
				}
			},
		},
	}...)
}

var fallbackWords = []string{"allow", "deny", "audit", "approve"}

var readSignalRules = func(r *reader, n *strictyaml.Node, doc *document) {
	readRules(
		policy.GroupSignal,
		signalKeys(),
		func(rule *policy.Rule) { rule.Signal = &policy.SignalSelector{} },
		func(*reader, *strictyaml.Node, *draft) {},
	)(
		r,
		n,
		doc,
	)
}

func readSignals(r *reader, n *strictyaml.Node, d *draft) {
	for _, l := range r.texts(n) {
		set, ok := policy.ParseSignals(l.text)
		if !ok && r.mistaken(l.node, mistake.Signal(l.text)) {
			continue
		}
		if !ok {
			r.Fail(l.node, strictyaml.DidYouMean(l.text, policy.SignalWords()), "unknown signal %q", strictyaml.Shorten(l.text))
		}
		d.rule.Signal.Signals |= set
	}
}

var targetKeys = []key[policy.SignalSelector]{
	{
		field{name: "type", doc: "What the target is to the sender.", shape: shape{words: targetWords}, required: true},
		func(r *reader, n *strictyaml.Node, m *policy.SignalSelector) {
			if i, ok := r.Word(n, "target type", targetWords); ok {
				m.Target = targetWords[i]
			}
		},
	},
	{
		field{name: "pattern", doc: "A glob of the base name of the target's program, for type: process."},
		func(r *reader, n *strictyaml.Node, m *policy.SignalSelector) {
			if s, ok := r.Text(n); ok {
				m.Program = r.pattern(n, glob.Text, s)
			}
		},
	},
	{
		field{name: "min", doc: "The lowest process id, for type: pid_range.", shape: shape{kind: shapeInt}},
		func(r *reader, n *strictyaml.Node, m *policy.SignalSelector) { m.MinPID, _ = r.positive(n, 1<<22) },
	},
	{
		field{name: "max", doc: "The highest process id, for type: pid_range.", shape: shape{kind: shapeInt}},
		func(r *reader, n *strictyaml.Node, m *policy.SignalSelector) { m.MaxPID, _ = r.positive(n, 1<<22) },
	},
}

// checkTarget checks the keys of a target in combination.
func checkTarget(r *reader, n *strictyaml.Node, m *policy.SignalSelector) {
	switch {
	case m.Target == "process" && m.Program == nil:
		r.Fail(n, "", "type: process needs a pattern")
	case m.Target == "pid_range" && (m.MinPID == 0 || m.MaxPID == 0 || m.MinPID > m.MaxPID):
		r.Fail(n, "", "type: pid_range needs min and max, min not above max")
	case m.Target != "pid_range" && (m.MinPID != 0 || m.MaxPID != 0):
		r.Fail(n, "", "min and max are for type: pid_range")
	}
}
