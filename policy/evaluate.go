package policy

// Evaluate decides one request. It is pure and safe for concurrent use; a
// decision that permits allocates nothing unless a rule looks at joined
// arguments. A request that cannot be understood is denied.
func (p *Policy) Evaluate(r Request) (Decision, Diagnostic) {
	var d Decision
	var why reason
	switch r := r.(type) {
	case *CommandRequest:
		d, why = p.commands.decide(r)
	case *FileRequest:
		d, why = p.files.decide(r)
	case *NetworkRequest:
		d, why = p.network.decide(r)
	case *UnixSocketRequest:
		d, why = p.sockets.decide(r)
	case *SignalRequest:
		d, why = p.signals.decide(r)
	default:
		return Decision{}, Diagnostic{Rule: "default", Message: "the request is of no known kind"}
	}
	if d.Permits() && d.Rule != nil {
		g := Diagnostic{Rule: d.Rule.Name, Pos: d.Rule.Pos, Message: d.Rule.Message}
		if len(d.Rule.Template) > 1 {
			g.Message = d.Rule.Template.render(r, d.Rule.Name)
		}
		return d, g
	}
	if d.Permits() {
		return d, Diagnostic{Rule: "default"}
	}
	return d, p.explain(r, d, why)
}

// reason is why a request was denied where that is not the rule's message: a
// sentence, or empty. about is the program or address it is about.
type reason struct {
	text  string
	about string
	note  string // added to the message
}

// cleanPath reports whether a path is absolute and in its shortest form. It is
// path.Clean without the allocation.
func cleanPath(s string) bool {
	if s == "" || s[0] != '/' {
		return false
	}
	if s == "/" {
		return true
	}
	for start := 1; ; {
		end := start
		for end < len(s) && s[end] != '/' {
			if s[end] == 0 {
				return false
			}
			end++
		}
		switch s[start:end] {
		case "", ".", "..":
			return false
		}
		if end == len(s) {
			return true
		}
		start = end + 1
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
