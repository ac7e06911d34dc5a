package supervisor

import "agentsh/internal/wire"

// redact replaces what a command chose or what names a file by digests.
// Sentences go: they quote both. What is left is who, when, which program or
// operation by its kind, the decision, the rule and the end.
func redact(e *wire.Event, digest func(string) string) {
	hide := func(s *string) {
		if *s != "" {
			*s = digest(*s)
		}
	}
	if e.Type == wire.EventSession {
		return
	}
	argv := make([]string, len(e.Argv))
	for i, arg := range e.Argv {
		argv[i] = digest(arg)
	}
	e.Argv = argv
	hide(&e.Path)
	hide(&e.Target)
	if e.Process != nil {
		p := *e.Process
		hide(&p.Exe)
		hide(&p.Cwd)
		e.Process = &p
	}
	if e.Net != nil {
		n := *e.Net
		hide(&n.Address)
		e.Net = &n
	}
	e.Message, e.Hint = "", ""
	if e.Exit != nil {
		x := *e.Exit
		x.Message, x.Hint = "", ""
		e.Exit = &x
	}
}
