package controller

import (
	"errors"
	"strings"
	"testing"
	"time"

	"agentsh/internal/wire"
)

func TestAnAgentThatDidNotSucceedIsNeverSuccess(t *testing.T) {
	tests := []struct {
		name string
		exit wire.Exit
		err  error
		code int
		says string
	}{
		{"status 0", wire.Exit{Kind: wire.ExitExited}, nil, 0, ""},
		{"another status", wire.Exit{Kind: wire.ExitExited, Code: 3}, nil, ExitAgentFailed, "status 3"},
		{"a status that looks like a timeout", wire.Exit{Kind: wire.ExitExited, Code: 124}, nil, ExitAgentFailed, "status 124"},
		{"a signal", wire.Exit{Kind: wire.ExitSignaled, Signal: 9}, nil, ExitAgentFailed, "signal 9"},
		{"out of memory", wire.Exit{Kind: wire.ExitOOM, Signal: 9}, nil, ExitAgentFailed, "out of memory"},
		{"the deadline", wire.Exit{Kind: wire.ExitDeadline}, nil, ExitTimeout, "within 5m0s"},
		{
			"denied",
			wire.Exit{Kind: wire.ExitDenied, Message: "no", Rule: &wire.RuleAt{Name: "r", File: "p.yaml", Line: 1, Column: 2}},
			nil,
			ExitAgentFailed,
			"no (r p.yaml:1:2)",
		},
		{"not started", wire.Exit{Kind: wire.ExitSpawnFailed, Code: 127, Message: "x: not found"}, nil, ExitAgentFailed, "x: not found"},
		{"lost", wire.Exit{Kind: wire.ExitLost, Message: "gone"}, nil, ExitSandbox, "gone"},
		{"an end that is not known", wire.Exit{Kind: wire.ExitExited}, errors.New("channel closed"), ExitSandbox, "channel closed"},
		{"a kind that is not known", wire.Exit{Kind: "surprise"}, nil, ExitSandbox, "lost"},
		{"no kind at all", wire.Exit{}, nil, ExitSandbox, "lost"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := agentFailure(tt.exit, tt.err, 5*time.Minute)
			if tt.code == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var f *Failure
			if !errors.As(err, &f) || f.Code != tt.code || !strings.Contains(f.Err.Error(), tt.says) {
				t.Errorf("err = %v, want code %d and %q", err, tt.code, tt.says)
			}
		})
	}
}
