package host

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"agentsh/supervisor"
	"agentsh/supervisor/probe"
)

func TestTheKeyContainerAppliesInContainersOnly(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	defer func(marks []string) { containerMarks = marks }(containerMarks)
	containerMarks = []string{mark}
	configured := supervisor.OperatorConfig{Policy: "/p.yaml", Degraded: []probe.Setting{{Name: probe.Cgroup, At: "c.yaml:1:1"}}}
	configured.Container.Degraded = []probe.Setting{{Name: probe.LandlockScopes, At: "c.yaml:2:1"}}
	got, told, err := InContainer(configured)
	if err != nil || told != "" || !reflect.DeepEqual(got, configured) {
		t.Errorf("outside a container: %+v %q %v", got, told, err)
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, _, err = InContainer(configured)
	if want := slices.Concat(configured.Degraded, configured.Container.Degraded); err != nil || !reflect.DeepEqual(got.Degraded, want) {
		t.Errorf("in a container: %+v %v", got.Degraded, err)
	}
}

func TestInAContainerAPolicyOfTheOperatorStays(t *testing.T) {
	const theirs, ours = packagedDefault, "/etc/agentsh/ours.yaml"
	defer func(name string) { machinePolicy = name }(machinePolicy)
	machinePolicy = filepath.Join(t.TempDir(), "policy.yaml")
	for name, tt := range map[string]struct{ configured, inContainer, want string }{
		"the packages' configuration":            {theirs, packagedPlain, packagedPlain},
		"no policy":                              {"", packagedPlain, packagedPlain},
		"an operator's policy":                   {ours, packagedPlain, ours},
		"an operator's policy for containers":    {theirs, ours, ours},
		"an operator's policies for both":        {"/etc/agentsh/host.yaml", ours, ours},
		"an operator's policy, none for another": {ours, "", ours},
	} {
		if got := containerPolicy(tt.configured, tt.inContainer); got != tt.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if err := os.WriteFile(machinePolicy, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := containerPolicy("", packagedPlain); got != machinePolicy {
		t.Errorf("the machine's policy: %q", got)
	}
}
