package policy

import (
	"fmt"
	"strings"
)

// explain returns the diagnostic of a request that was not allowed.
func (p *Policy) explain(r Request, d Decision, why reason) Diagnostic {
	g := Diagnostic{Rule: "default"}
	if d.Rule != nil {
		g.Rule, g.Pos = d.Rule.Name, d.Rule.Pos
	}
	switch {
	case why.text != "":
		g.Message = why.text
		if why.about != "" {
			g.Message += ": " + shown(why.about)
		}
	case d.Rule != nil && d.Rule.Message != "":
		g.Message = d.Rule.Template.render(r, d.Rule.Name)
	case d.Rule != nil && d.Effect == Approve:
		g.Message = fmt.Sprintf("rule %s asks a person about %s", d.Rule.Name, describe(r, why))
	case d.Rule != nil:
		g.Message = fmt.Sprintf("%s is %s by rule %s", describe(r, why), participle(d.Effect), d.Rule.Name)
	default:
		g.Message = fmt.Sprintf("no rule allows %s", describe(r, why))
	}
	g.Message += why.note
	g.Hint = p.hint(r, d)
	return g
}

func participle(e Effect) string {
	switch e {
	case Redirect:
		return "redirected"
	case SoftDelete:
		return "kept in the trash"
	case Absorb:
		return "absorbed"
	default:
		return "denied"
	}
}

// describe returns a description of a request for messages.
func describe(r Request, why reason) string {
	switch r := r.(type) {
	case *CommandRequest:
		if why.about != "" {
			return "running " + shown(why.about)
		}
		return "running " + shown(r.Called)
	case *FileRequest:
		return r.Op.String() + " of " + shown(r.Path)
	case *NetworkRequest:
		host := r.Host()
		if r.Port == 0 { // a lookup of the name
			return "reaching " + shown(host)
		}
		if r.Method != "" {
			return fmt.Sprintf("%s of %s at %s port %d", shown(r.Method), shown(r.Path), shown(host), r.Port)
		}
		return fmt.Sprintf("reaching %s port %d", shown(host), r.Port)
	case *UnixSocketRequest:
		return shown(r.Op) + " of socket " + shown(r.Path)
	case *SignalRequest:
		return signalName(r.Signal) + " to " + shown(r.Target)
	}
	return "the request"
}

// shown replaces control characters in names that commands choose. Terminals
// and logs must not receive them.
func shown(s string) string {
	if len(s) > 200 {
		s = s[:200] + "..."
	}
	for _, c := range s {
		if c < ' ' || c == 0x7f || c == '�' || c >= 0x80 && c < 0xa0 {
			return strings.Trim(fmt.Sprintf("%q", s), `"`)
		}
	}
	return s
}
