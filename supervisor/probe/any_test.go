package probe

import "testing"

// The word any stands for every mechanism, at its own place.
func TestAnyStandsForEveryMechanism(t *testing.T) {
	degraded := []Setting{{Landlock, "c.yaml:1:2"}, {AnyMechanism, "c.yaml:1:12"}}
	for _, name := range Mechanisms() {
		if !Allowed(name, degraded) {
			t.Errorf("%s is not allowed", name)
		}
	}
	out := expand(degraded)
	if len(out) != 1+len(Mechanisms()) || out[0].At != "c.yaml:1:2" || out[1].At != "c.yaml:1:12" {
		t.Errorf("expanded: %+v", out)
	}
	if Allowed(Namespaces, []Setting{{ExecVerify, ""}}) || !Allowed(FileServer, []Setting{{NestedCommands, ""}}) {
		t.Error("what a mechanism includes")
	}
}
