package controller

import (
	"reflect"
	"testing"

	"agentsh/controller/sandbox"
	"agentsh/internal/wire"
)

// judging is a double of a backend whose place holds rules.
type judging struct {
	sandbox.Backend
	holds map[string]string
}

func (j judging) Holds() map[string]string { return j.holds }

func TestEachGroupOfRulesHasAHolder(t *testing.T) {
	hello := wire.Hello{Guarantees: []wire.Guarantee{
		{Group: wire.GroupCommands, How: "the first program"},
		{Group: wire.GroupFiles, Held: true, How: "Landlock"},
		{Group: wire.GroupEnv, Held: true, How: "one place"},
		{Group: wire.GroupNetwork, How: "nothing"},
	}}
	tests := []struct {
		name string
		b    sandbox.Backend
		want []Guarantee
	}{
		{"a backend that holds nothing", nil, []Guarantee{
			{wire.GroupCommands, "not held", "the first program"}, {wire.GroupFiles, "agentsh", "Landlock"},
			{wire.GroupEnv, "agentsh", "one place"}, {wire.GroupNetwork, "not held", "nothing"},
		}},
		{"a place that judges", judging{holds: map[string]string{
			wire.GroupFiles: "OpenShell", wire.GroupNetwork: "OpenShell", "inference": "OpenShell",
		}}, []Guarantee{
			{wire.GroupCommands, "not held", "the first program"}, {wire.GroupFiles, "agentsh and OpenShell", "Landlock"},
			{wire.GroupEnv, "agentsh", "one place"}, {wire.GroupNetwork, "OpenShell", "by agentsh only this: nothing"},
			{"inference", "OpenShell", ""},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 { // what the backend says is not changed
				if got := guarantees(hello, tt.b); !reflect.DeepEqual(got, tt.want) {
					t.Errorf("%+v", got)
				}
			}
		})
	}
	if got := guarantees(wire.Hello{}, nil); got != nil {
		t.Errorf("a supervisor that does not say it: %+v", got)
	}
	many := wire.Hello{Guarantees: make([]wire.Guarantee, 5000)}
	if got := guarantees(many, nil); len(got) != maxGuarantees {
		t.Errorf("%d groups", len(got))
	}
}
