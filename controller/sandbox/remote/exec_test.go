package remote

import (
	"errors"
	"io"
	"testing"

	"agentsh/controller/sandbox"
)

func TestTheCauseOfAnExecIsTheMostExact(t *testing.T) {
	died := func() error { return &sandbox.End{Kind: sandbox.EndDied, Text: "ended with status 125"} }
	for name, c := range map[string]struct {
		why   error
		says  string
		cause string
		kind  sandbox.EndKind
	}{
		"nobody knows":              {nil, "", "", ""},
		"the engine knows":          {errors.New("no answer"), "", "no answer", ""},
		"agentsh says why":          {errors.New("no answer"), "agentsh: /home is missing\n", "/home is missing", ""},
		"the place died":            {died(), "", "ended with status 125", sandbox.EndDied},
		"agentsh says why it died":  {died(), "agentsh: /home is missing\n", "ended with status 125: /home is missing", sandbox.EndDied},
		"agentsh says it was full":  {nil, "agentsh: memory was full\n", "memory was full", sandbox.EndMemory},
		"the place may come back":   {&sandbox.End{Kind: sandbox.EndNode, Text: "no node"}, "agentsh: cut\n", "cut", ""},
		"it was removed meanwhile":  {&sandbox.End{Kind: sandbox.EndRemoved, Text: "gone"}, "agentsh: cut\n", "gone", sandbox.EndRemoved},
		"the engine refuses to say": {&sandbox.End{Kind: sandbox.EndRefused, Text: "no right"}, "agentsh: cut\n", "cut", ""},
	} {
		s, err := NewExec(func() {})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Cause(); err != nil {
			t.Errorf("%s: a cause before the end: %v", name, err)
		}
		_, _ = io.WriteString(&s.Messages, c.says)
		s.End(c.why)
		s.Kill()
		got, end := s.Cause(), (*sandbox.End)(nil)
		said, kind := "", sandbox.EndKind("")
		if got != nil {
			said = got.Error()
		}
		if errors.As(got, &end) {
			kind = end.Kind
		}
		if said != c.cause || kind != c.kind {
			t.Errorf("%s: %v (%+v), want %q of kind %q", name, got, end, c.cause, c.kind)
		}
	}
}
