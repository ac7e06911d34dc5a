package policy

import "agentsh/internal/wire"

// SSH says what people may do in a session by ssh. The zero value permits nothing.
type SSH struct {
	Sessions   *Switch // commands, shells and file transfer; nil: not given
	Forwarding *Switch // connections from the session; nil: not given
}

// SSH returns what people may do in a session by ssh.
func (p *Policy) SSH() SSH { return p.def.SSH }

// Permits reports whether a command may run that was requested in a way, one of the
// values of [wire.ExecRequest.Via]. If not, the diagnostic says why.
func (s SSH) Permits(via string) (bool, Diagnostic) {
	key, on := "", (*Switch)(nil)
	switch via {
	case "":
		return true, Diagnostic{}
	case wire.ViaSSH:
		key, on = "sessions", s.Sessions
	case wire.ViaForward:
		key, on = "forwarding", s.Forwarding
	default:
		return false, Diagnostic{Rule: "default", Message: "no policy permits such a way into the session"}
	}
	d := Diagnostic{
		Rule: "ssh." + key, Message: "the policy does not permit ssh." + key, Hint: "if you may change the policy, add ssh: {" + key + ": true}",
	}
	if on != nil {
		d.Pos = on.Pos
	}
	return on != nil && on.On, d
}

// settings returns the keys that are on.
func (s SSH) settings() []Setting {
	var out []Setting
	if s.Sessions != nil && s.Sessions.On {
		out = append(out, Setting{Key: "ssh.sessions", Pos: s.Sessions.Pos})
	}
	if s.Forwarding != nil && s.Forwarding.On {
		out = append(out, Setting{Key: "ssh.forwarding", Pos: s.Forwarding.Pos})
	}
	return out
}
