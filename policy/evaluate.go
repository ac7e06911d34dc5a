package policy

// Evaluate returns the decision on one request, and its explanation. It is pure
// and safe for concurrent use. An allow decision allocates no memory unless a
// rule matches joined arguments. A malformed request is denied.
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

// reason explains a denial that the rule's message does not explain. It is a
// sentence or empty. about is the program or address concerned.
type reason struct {
	text  string
	about string
	note  string // appended to the message
}

// cleanPath reports whether a path is absolute and clean. It compares like
// path.Clean but does not allocate.
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
