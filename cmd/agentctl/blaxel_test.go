package main

import (
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/internal/blaxeldouble"
)

// atBlaxel has the runs of a fixture at a double of Blaxel.
func atBlaxel(t *testing.T, agent, more string) (*fixture, *blaxeldouble.Double) {
	t.Helper()
	d := blaxeldouble.New(t)
	p := newFixture(t, agent, "image: "+blaxeldouble.Image+"\nbackend: blaxel\n"+more)
	for _, name := range []string{"BL_API_URL", "BL_API_KEY", "BL_WORKSPACE", "BL_REGION"} {
		p.setenv = append(p.setenv, name+"="+d.Getenv(name))
	}
	return p, d
}

func TestRunsAtADoubleOfBlaxel(t *testing.T) {
	p, d := atBlaxel(
		t,
		`{ env; echo "key: $(cat /opt/agentsh/place.key)"; } >a.txt; git commit -qam changed`,
		"container: {memory_mb: 2048}\n",
	)
	r, code := p.run()
	if code != 0 || r.Backend != "blaxel" || r.Image == nil || r.Image.Name != blaxeldouble.Image || len(r.Commits) != 1 {
		t.Fatalf("exit code %d: %+v, image %+v", code, r.Error, r.Image)
	}
	if said := p.git("show", r.Branch+":a.txt"); strings.Contains(said, blaxeldouble.Key) ||
		!strings.HasSuffix(strings.TrimSpace(said), "\nkey:") {
		t.Errorf("the sandbox shows keys:\n%s", said)
	}
	if left := d.Names(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if out, errs, code := p.try("", "lint", "--repo", "repo", "harness.yaml"); code != 0 {
		t.Errorf("lint: %d %s %s", code, out, errs)
	}
}

func TestBlaxelTakesNoContainer(t *testing.T) {
	p, _ := atBlaxel(t, "true", "container: {memory_mb: 2048, pids: 100}\n")
	out, errs, code := p.try("", "lint", "--repo", "repo", "harness.yaml")
	if code != controller.ExitConfiguration || !strings.Contains(out+errs, "container.pids: the backend blaxel takes memory_mb alone") {
		t.Errorf("%d %s %s", code, out, errs)
	}
}
