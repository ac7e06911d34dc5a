package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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
	t.Parallel()
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
	t.Parallel()
	p, _ := atBlaxel(t, "true", "container: {memory_mb: 2048, pids: 100}\n")
	out, errs, code := p.try("", "lint", "--repo", "repo", "harness.yaml")
	if code != controller.ExitConfiguration || !strings.Contains(out+errs, "container.pids: the backend blaxel takes memory_mb alone") {
		t.Errorf("%d %s %s", code, out, errs)
	}
}

// TestAnImageForBlaxelIsBuilt builds one, and runs in it.
func TestAnImageForBlaxelIsBuilt(t *testing.T) {
	t.Parallel()
	p, d := atBlaxel(t, "git commit -q --allow-empty -m changed", "")
	p.write("app/Dockerfile", "FROM debian:13\nCOPY a.txt /a.txt\n", 0o644)
	p.write("app/a.txt", "a\n", 0o644)
	p.write("app/b.log", "b\n", 0o644)
	p.write("app/.dockerignore", "*.log\n", 0o644)
	out, errs, code := p.try("", "image", "build", "app", "--for", "blaxel", "--name", "app")
	if code != 0 || out != "image: sandbox/app:1\n" || !strings.Contains(errs, "app: BUILDING\n") ||
		!strings.Contains(errs, "1 names were left out") {
		t.Fatalf("%d %q %s", code, out, errs)
	}
	if strings.Contains(out+errs, blaxeldouble.Key) || strings.Contains(out+errs, blaxeldouble.Signature) {
		t.Errorf("secrets are shown: %s%s", out, errs)
	}
	p.write("harness.yaml", strings.Replace(p.readFile(p.path("harness.yaml")), blaxeldouble.Image, "sandbox/app:1", 1), 0o644)
	r, code := p.run()
	if code != 0 || r.Image == nil || r.Image.Name != "sandbox/app:1" {
		t.Errorf("exit code %d: %+v", code, r.Error)
	}
	if left := d.Names(); !slices.Equal(left, []string{"app"}) {
		t.Errorf("left: %q", left)
	}
	p.write("empty/a.txt", "", 0o644)
	for _, tt := range []struct {
		args, says string
		code       int
	}{
		{"app --for blaxel", "--name", controller.ExitConfiguration},
		{"--for blaxel --name x", "--from", controller.ExitConfiguration},
		{"app --for moon", "write vm or blaxel", controller.ExitConfiguration},
		{"app --kernel x --for blaxel", "--kernel is not for images", controller.ExitConfiguration},
		{"app --name x", "--name is not for images of the backend vm\nagentctl: hint: add --for blaxel", controller.ExitConfiguration},
		{"empty --for blaxel --to e.zip", "has no Dockerfile: write one, or name an image with --from IMAGE", controller.ExitConfiguration},
		{"none --for blaxel --name x --memory 5", "--memory 5: a sandbox at Blaxel has 512 to 65536 MiB of memory\nagentctl: hint: write --memory 4096",
			controller.ExitConfiguration},
		{"app --for blaxel --name x --memory 0", "write --memory 4096", controller.ExitConfiguration},
		{"app --for blaxel --name x --memory=-4096", "write --memory 4096", controller.ExitConfiguration},
		{"app --for blaxel --name x --memory 4194304", "write --memory 4096", controller.ExitConfiguration},
		{"app --for blaxel --name agentsh-x", "not beginning with", controller.ExitConfiguration},
		{"app/a.txt --for blaxel --name x", "no FROM", controller.ExitConfiguration},
		{"--from no --for blaxel --to app.zip", "written to", 0},
		{"--from no --for blaxel --to app.zip", "app.zip is there: remove it, or name another file", controller.ExitConfiguration},
		{"--from no --for blaxel --to b.zip --name x", "--name is for an image that is sent", controller.ExitConfiguration},
		{"--from no --for blaxel --to c.zip --json", `"archive": "c.zip"`, 0},
	} {
		out, errs, code := p.try("", append([]string{"image", "build"}, strings.Fields(tt.args)...)...)
		if code != tt.code || !strings.Contains(out+errs, tt.says) {
			t.Errorf("%s: %d %s%s", tt.args, code, out, errs)
		}
	}
}

// TestARunThroughAPrivatePreview has a place behind a preview of Blaxel that wants a token.
func TestARunThroughAPrivatePreview(t *testing.T) {
	t.Parallel()
	d := blaxeldouble.New(t)
	key := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32))) + "\n"
	p := newFixture(t, "git commit -q --allow-empty -m changed", "backend: socket\nconnect: ADDRESS\nconnect_key: place.key\n")
	address, token, err := d.Place(filepath.Join(p.bin, "agentsh"), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	p.write("harness.yaml", strings.Replace(p.readFile(p.path("harness.yaml")), "ADDRESS", address, 1), 0o644)
	p.write("place.key", key, 0o600)
	_, errs, code := p.try("", p.runArgs()...)
	if code != controller.ExitSandbox || !strings.Contains(errs, "the gateway before the place answers 401") {
		t.Errorf("without a token: %d %s", code, errs)
	}
	p.write("place.key", key+"X-Blaxel-Preview-Token: "+token+"\n", 0o600)
	r, code := p.run()
	if code != 0 || len(r.Commits) != 1 {
		t.Fatalf("exit code %d: %+v", code, r.Error)
	}
	err = filepath.WalkDir(p.dir, func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && e.Name() != "place.key" {
			var data []byte
			if data, err = os.ReadFile(name); bytes.Contains(data, []byte(token)) {
				t.Errorf("%s has the token", name)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestLintKnowsTheMemoryOfBlaxel: no account and no repository are needed for it.
func TestLintKnowsTheMemoryOfBlaxel(t *testing.T) {
	t.Parallel()
	p, _ := atBlaxel(t, "true", "container: {memory_mb: 64}\n")
	before, _, _ := strings.Cut(p.read("harness.yaml"), "container:")
	at := fmt.Sprintf("harness.yaml:%d:24: ", strings.Count(before, "\n")+1)
	const want = "container.memory_mb: 64: a sandbox at Blaxel has 512 to 65536 MiB of memory"
	if r, code := p.run(); code != controller.ExitConfiguration || r.Error == nil ||
		!strings.Contains(r.Error.Message, at+"backend blaxel: "+want) {
		t.Errorf("the run: %d %+v", code, r.Error)
	}
	for _, args := range [][]string{{"lint", "harness.yaml"}, {"lint", "--repo", "repo", "harness.yaml"}} {
		out, errs, code := p.try("", args...)
		if code != controller.ExitConfiguration || !strings.Contains(out+errs, at+"error: backend blaxel: "+want) {
			t.Errorf("%s: %d %s%s", args, code, out, errs)
		}
	}
}
