package probe

import (
	"errors"
	"fmt"
	"testing"
)

// The word any stands for every mechanism but the one that takes the place of another, at
// its own place.
func TestAnyStandsForEveryMechanism(t *testing.T) {
	degraded := []Setting{{Landlock, "c.yaml:1:2"}, {AnyMechanism, "c.yaml:1:12"}}
	for _, name := range Mechanisms() {
		if !Allowed(name, degraded) {
			t.Errorf("%s is not allowed", name)
		}
	}
	out := expand(degraded)
	if len(out) != len(Mechanisms()) || out[0].At != "c.yaml:1:2" || out[1].At != "c.yaml:1:12" {
		t.Errorf("expanded: %+v", out)
	}
	if Allowed(Namespaces, []Setting{{ExecVerify, ""}}) || !Allowed(FileServer, []Setting{{NestedCommands, ""}}) {
		t.Error("what a mechanism includes")
	}
}

func TestMappedFilesAreChosenByTheirName(t *testing.T) {
	works := map[string]bool{"fuse": true, primitiveMapping: false}
	for name := range works {
		c := find(name)
		try := c.try
		t.Cleanup(func() { c.try = try })
		c.try = func() (string, error) {
			if !works[name] {
				return "", errors.New("not here")
			}
			return "", nil
		}
	}
	survey := func(names ...string) string {
		missing, err := Survey(WithFallbacks(nil, names), Session{})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(missing.Has(FileServer), missing.Has(MappedFiles))
	}
	for _, c := range []struct {
		want  string
		names []string
	}{
		{"true false", []string{FileServer}},
		{"false true", []string{MappedFiles}},
		{"false true", []string{MappedFiles, FileServer}},
		{"true false", []string{AnyMechanism}},
		{"false true", []string{AnyMechanism, MappedFiles}},
	} {
		if got := survey(c.names...); got != c.want {
			t.Errorf("degraded %v: missing %s, not %s", c.names, got, c.want)
		}
	}
	if got := FallbackFor(primitiveMapping); got != FileServer {
		t.Errorf("the fallback is %s", got)
	}
	works["fuse"] = false
	if got := survey(FileServer, MappedFiles); got != "true false" {
		t.Errorf("without FUSE missing %s", got)
	}
	works["fuse"], works[primitiveMapping] = true, true
	if got := survey(FileServer, MappedFiles); got != "false false" {
		t.Errorf("with all of FUSE missing %s", got)
	}
}
