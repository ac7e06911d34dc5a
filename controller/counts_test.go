package controller

import (
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
