package controller

import (
	"maps"
	"slices"
	"testing"

	"agentsh/controller/harness"
	"agentsh/controller/runtime"
)

// The table of runtimes in package harness must agree with the traits of the
// adapters.
func TestTheHarnessKnowsTheOptionsOfEachRuntime(t *testing.T) {
	if known := slices.Sorted(maps.Keys(harness.Runtimes)); !slices.Equal(known, runtime.Names()) {
		t.Fatalf("the harness knows %v, there are %v", known, runtime.Names())
	}
	for name, takes := range harness.Runtimes {
		r, err := runtime.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, outside := r.(runtime.Outsider); outside != slices.Contains(harness.Outsiders, name) {
			t.Errorf("%s: works outside %v", name, outside)
		}
		traits := r.Traits()
		for leaf, has := range map[string]bool{"model": traits.Model, "effort": traits.Effort, "plugins.path": traits.Plugins,
			"security.sandbox_hooks": traits.Hooks, "mcp_servers": traits.Servers} {
			if slices.Contains(takes, leaf) != has {
				t.Errorf("%s: the harness says %v, the adapter takes %s: %v", name, takes, leaf, has)
			}
			if harness.Particular[leaf] == "" {
				t.Errorf("%s is in no table of what only some runtimes take", leaf)
			}
		}
	}
}
