package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestTheTrashOfARunComesOutAndIsRestored: what the agent deleted and wrote over
// is in the results, with its manifest.
func TestTheTrashOfARunComesOutAndIsRestored(t *testing.T) {
	t.Parallel()
	t.Run("local", func(t *testing.T) { trashOfARun(t, false) })
	t.Run("elsewhere", func(t *testing.T) { trashOfARun(t, true) })
}

func trashOfARun(t *testing.T, elsewhere bool) {
	t.Helper()
	p := newFixture(
		t,
		`mkdir docs; echo one >docs/a.md; ln -s a.md docs/link; rm docs/a.md docs/link; echo two >docs/a.md; echo three >docs/a.md; rm a.txt`,
		"",
	)
	if elsewhere {
		p.elsewhere()
	}
	policy := strings.Replace(
		p.read("policy.yaml"),
		"  - name: workspace\n",
		"  - {name: pages, paths: ['${PROJECT_ROOT}/docs/**'], operations: [delete, rmdir, write], decision: soft_delete}\n  - name: workspace\n",
		1,
	)
	p.write("policy.yaml", policy, 0o644)
	r, code := p.run()
	if code != 0 || r.Trashed != 3 {
		t.Fatalf("exit %d, %d files in the trash: %+v", code, r.Trashed, r.Error)
	}
	trash := func(args ...string) (string, error) {
		cmd := exec.Command(p.bin+"/agentsh", append([]string{"trash"}, args...)...)
		cmd.Dir = p.dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := trash("list", "--from", "out/trash", "--json")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var list []struct{ ID, Path, Type string }
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 3 || !strings.HasSuffix(list[0].Path, "/repo/docs/a.md") ||
		list[1].Type != "symlink" {
		t.Fatalf("%v %+v", err, list)
	}
	if out, err := trash("restore", "--from", "out/trash", list[0].ID); err == nil || !strings.Contains(out, "--to") {
		t.Errorf("without --to: %v %s", err, out)
	}
	if err := os.Mkdir(p.path("back"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := trash("restore", "--from", "out/trash", "--to", "back", list[1].ID, list[0].ID); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	found, err := exec.Command("find", p.path("back"), "-type", "f", "-o", "-type", "l").Output()
	if err != nil || !strings.Contains(string(found), "/repo/docs/a.md\n") || !strings.Contains(string(found), "/repo/docs/link\n") {
		t.Errorf("%v %s", err, found)
	}
	if got, err := exec.Command("sh", "-c", "cat $(find "+p.path("back")+" -name a.md)").Output(); err != nil || string(got) != "one\n" {
		t.Errorf("%v %q", err, got)
	}
	if out, err := trash("purge", "--from", "out/trash", "--all"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := trash("list", "--from", "out/trash"); err != nil || out != "" {
		t.Errorf("after the purge: %v %s", err, out)
	}
}

// TestARunWithoutATrashHasNoDirectoryForIt in its results.
func TestARunWithoutATrashHasNoDirectoryForIt(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "rm a.txt", "")
	if r, code := p.run(); code != 0 || r.Trashed != 0 {
		t.Fatalf("exit %d: %+v", code, r)
	}
	if _, err := os.Lstat(p.path("out/trash")); err == nil {
		t.Error("out/trash is there")
	}
}
