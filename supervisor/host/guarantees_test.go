package host

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/wire"
	"agentsh/supervisor/probe"
)

func TestASessionSaysWhichGroupsItHolds(t *testing.T) {
	gone := errors.New("gone")
	without := func(names ...string) probe.Missing {
		m := probe.Missing{}
		for _, name := range names {
			m[name] = gone
		}
		return m
	}
	nested := without(probe.NestedCommands, probe.Namespaces, probe.ExecVerify, probe.FileServer)
	plain := without(probe.Namespaces, probe.FileServer)
	tests := []struct {
		name string
		h    held
		not  []string          // held groups are all others but builtins
		how  map[string]string // parts
	}{
		{"everything works", held{scopes: true}, nil, map[string]string{
			wire.GroupSignals: "Landlock scopes beneath", wire.GroupNetwork: "a network of its own", wire.GroupLimits: "and control groups"}},
		{"neither scopes nor control groups", held{missing: without(probe.Cgroup)}, nil, map[string]string{
			wire.GroupSignals: "those with rules by process are notified", wire.GroupLimits: "control groups are not there"}},
		{"a shared network with rules", held{shared: true, proxy: true}, nil, map[string]string{wire.GroupNetwork: "Landlock refuses TCP"}},
		{"a shared network without rules", held{shared: true}, []string{wire.GroupNetwork}, nil},
		{"a network of the place", held{shared: true, by: true}, []string{wire.GroupNetwork, wire.GroupCredentials}, map[string]string{
			wire.GroupNetwork: "the place of the sandbox decides"}},
		{"no file server", held{missing: without(probe.FileServer)}, []string{wire.GroupRepositories}, map[string]string{
			wire.GroupWorkspace: "mounts, for whole trees"}},
		{"no namespaces", held{missing: plain}, []string{wire.GroupRepositories, wire.GroupUnixSockets}, map[string]string{
			wire.GroupFiles: "Landlock:", wire.GroupNetwork: "the filter refuses every socket but UNIX"}},
		{"no namespaces, with rules about the network", held{missing: plain, proxy: true},
			[]string{wire.GroupRepositories, wire.GroupUnixSockets}, map[string]string{wire.GroupNetwork: "Landlock refuses TCP"}},
		{"no engine", held{missing: nested, scopes: true}, []string{wire.GroupCommands, wire.GroupRepositories, wire.GroupSignals,
			wire.GroupNetwork, wire.GroupUnixSockets, wire.GroupEnvNested}, map[string]string{wire.GroupFiles: "Landlock:"}},
		{"no engine, a shared network with rules", held{missing: nested, shared: true, proxy: true}, []string{wire.GroupCommands,
			wire.GroupRepositories, wire.GroupSignals, wire.GroupNetwork, wire.GroupUnixSockets, wire.GroupEnvNested}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			groups := tt.h.groups()
			if len(groups) != 12 {
				t.Errorf("%d groups", len(groups))
			}
			for _, g := range groups {
				want := !slices.Contains(tt.not, g.Group) && g.Group != wire.GroupBuiltins
				if g.Held != want || g.How == "" || !strings.Contains(g.How, tt.how[g.Group]) {
					t.Errorf("%+v", g)
				}
			}
		})
	}
}
