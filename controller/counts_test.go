package controller

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"agentsh/internal/wire"
)

func TestCommandsOfOperatorsAreNotCounted(t *testing.T) {
	count := newCounts(nil)
	for i, e := range []wire.Event{
		{Type: wire.EventCommand, Phase: "begin", Command: "run-1", Decision: "allow"},
		{Type: wire.EventExec, Command: "run-1", Argv: []string{"ls"}, Decision: "allow"},
		{Type: wire.EventCommand, Phase: "begin", Command: "operator-1", By: "operator root", Decision: "deny"},
		{Type: wire.EventExec, Command: "operator-1", Argv: []string{"rm"}, Decision: "deny"},
		{Type: wire.EventExec, Command: "operator-1", Argv: []string{"ps"}, Decision: "allow"},
		{Type: wire.EventExec, Command: "run-1", Argv: []string{"kill"}, Decision: "deny"},
	} {
		e.Seq = uint64(i + 1)
		count.add(e)
	}
	var r Result
	count.into(&r)
	if r.Commands != 1 || r.Refusals != 1 || len(r.Refused) != 1 || r.Refused[0].What != "kill" {
		t.Errorf("%+v", r)
	}
}

// endless is a log without an end.
type endless string

func (e endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		n += copy(p[n:], e)
	}
	return n, nil
}

func TestAnAuditLogOfAHostileSupervisorIsBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		log  io.Reader
		says string
	}{
		"a line without an end": {endless("x"), "a line has more than 4194304 bytes"},
		"a deep value":          {strings.NewReader(strings.Repeat("[", 1_000_000)), "line 1: "},
		"no object":             {strings.NewReader("{}\nnull x\n"), "line 2: "},
	} {
		t.Run(name, func(t *testing.T) {
			if err := newCounts(nil).read(tt.log); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("a log without an end", func(t *testing.T) {
		log := &bounded{ReadCloser: io.NopCloser(endless("x")), left: 1 << 20}
		if n, err := io.Copy(io.Discard, log); err == nil || n > 1<<20 || !strings.Contains(err.Error(), "more than 4294967296 bytes") {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
}

func TestCountsAreBounded(t *testing.T) {
	count := newCounts(nil)
	long := strings.Repeat("x", wire.MaxMessage/2)
	for i := range maxOperators + 10 {
		count.add(wire.Event{Seq: uint64(i + 1), Type: wire.EventCommand, By: "operator", Command: fmt.Sprint(i)})
	}
	count.add(wire.Event{Seq: 1_000_000, Type: wire.EventCommand, By: "operator", Command: long})
	count.add(wire.Event{
		Seq: 1_000_001, Type: wire.EventExec, Decision: "deny", Path: long, Message: long, Hint: long, Rule: &wire.RuleAt{Name: long, File: long},
	})
	if n := len(count.operators); n != maxOperators || count.operators[long] {
		t.Errorf("%d commands of operators", n)
	}
	var r Result
	count.into(&r)
	if len(r.Refused) != 1 {
		t.Fatalf("%d refusals", len(r.Refused))
	}
	one := r.Refused[0]
	if n := len(one.What) + len(one.Message) + len(one.Hint) + len(one.Rule.Name) + len(one.Rule.File); n > 5*maxReason {
		t.Errorf("a refusal of %d bytes", n)
	}
}
