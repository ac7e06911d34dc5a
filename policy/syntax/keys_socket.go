package syntax

import (
	"strings"

	"agentsh/internal/mistake"
	"agentsh/internal/strictyaml"
	"agentsh/policy"
	"agentsh/policy/glob"
)

func socketKeys() []key[draft] {
	words := append(append([]string{}, policy.SocketOps...), "*")
	return append(commonKeys(policy.Allow, policy.Deny, policy.Audit, policy.Approve), []key[draft]{
		{
			field{
				name:     "paths",
				doc:      "Globs of absolute paths of sockets, links resolved, or @name for an abstract socket.",
				shape:    listOf(shape{}),
				required: true,
			},
			readSocketPaths,
		},
		{
			field{
				name:  "operations",
				doc:   "The operations the rule is about; without it all of them. A session refuses listen: whoever may bind may listen.",
				shape: listOf(shape{words: words}),
			},
			func(r *reader, n *strictyaml.Node, d *draft) {
				d.rule.Socket.Ops = 0
				for _, l := range r.texts(n) {
					switch i, ok := r.Word(l.node, "operation", words); {
					case ok && words[i] == "*":
						d.rule.Socket.Ops = policy.AllSocketOps
					case ok:
						d.rule.Socket.Ops |= 1 << i
						if words[i] == "listen" {
							d.settings = append(d.settings, policy.Setting{Key: "unix_socket_rules.operations.listen", Pos: r.pos(l.node)})
						}
					}
				}
			},
		},
	}...)
}

func readSocketPaths(r *reader, n *strictyaml.Node, d *draft) {
	s := d.rule.Socket
	for _, l := range r.texts(n) {
		if r.mistaken(l.node, mistake.Socket(l.text)) {
			continue
		}
		if strings.HasPrefix(l.text, "@") {
			if g := r.pattern(l.node, glob.Text, l.text); g != nil {
				s.Abstract = append(s.Abstract, g)
			}
			continue
		}
		if l.text == "**" || l.text == "*" {
			s.Abstract = append(s.Abstract, anyText)
			s.Paths = append(s.Paths, anyPath)
			continue
		}
		if g := r.pattern(l.node, glob.Path, l.text); g != nil {
			s.Paths = append(s.Paths, g)
		}
	}
}

var (
	anyText = mustGlob(glob.Text, "**")
	anyPath = mustGlob(glob.Path, "**")
)

func mustGlob(kind glob.Kind, pattern string) *glob.Glob {
	g, err := glob.Compile(kind, pattern)
	if err != nil {
		panic("policy: built-in pattern " + pattern + ": " + err.Error())
	}
	return g
}

var readSocketRules = func(r *reader, n *strictyaml.Node, doc *document) {
	readRules(policy.GroupUnixSocket, socketKeys(), func(rule *policy.Rule) {
		rule.Socket = &policy.SocketSelector{Ops: policy.AllSocketOps}
	}, func(*reader, *strictyaml.Node, *draft) {})(r, n, doc)
}
