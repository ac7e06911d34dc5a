package policy

import (
	"strings"

	"gopkg.in/yaml.v3"

	"agentsh/policy/glob"
)

// socketMatch is what a Unix socket rule selects.
type socketMatch struct {
	paths    []*glob.Glob // absolute paths
	abstract []*glob.Glob // names with their @
	ops      uint8        // bits by socketOps
}

var socketOps = []string{"connect", "bind", "listen", "sendto"}

func socketKeys() []key[draft] {
	words := append(append([]string{}, socketOps...), "*")
	return append(commonKeys(Allow, Deny, Audit, Approve), []key[draft]{
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
			func(r *reader, n *yaml.Node, d *draft) {
				d.rule.socket.ops = 0
				for _, l := range r.texts(n) {
					switch i, ok := r.word(l.node, "operation", words); {
					case ok && words[i] == "*":
						d.rule.socket.ops = allSocketOps
					case ok:
						d.rule.socket.ops |= 1 << i
						if words[i] == "listen" {
							d.settings = append(d.settings, Setting{Key: "unix_socket_rules.operations.listen", Pos: r.pos(l.node)})
						}
					}
				}
			},
		},
	}...)
}

const allSocketOps = 1<<4 - 1

func readSocketPaths(r *reader, n *yaml.Node, d *draft) {
	s := d.rule.socket
	for _, l := range r.texts(n) {
		if strings.HasPrefix(l.text, "@") {
			if g := r.pattern(l.node, glob.Text, l.text); g != nil {
				s.abstract = append(s.abstract, g)
			}
			continue
		}
		if l.text == "**" || l.text == "*" {
			s.abstract = append(s.abstract, anyText)
			s.paths = append(s.paths, anyPath)
			continue
		}
		if g := r.pattern(l.node, glob.Path, l.text); g != nil {
			s.paths = append(s.paths, g)
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

var readSocketRules = func(r *reader, n *yaml.Node, doc *document) {
	readRules(GroupUnixSocket, socketKeys(), func(rule *Rule) {
		rule.socket = &socketMatch{ops: allSocketOps}
	}, func(*reader, *yaml.Node, *draft) {})(r, n, doc)
}

// governs reports whether the rule is about an operation. An unknown one
// matches rules that refuse and none that permits.
func (s *socketMatch) governs(op string, effect Effect) bool {
	for i, w := range socketOps {
		if w == op {
			return s.ops&(1<<i) != 0
		}
	}
	return !effect.permits()
}
