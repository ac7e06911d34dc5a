package harness

import (
	"os"
	"path/filepath"
	"testing"
)

// write lays out a tree of files below a fresh directory.
func write(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestASmallHarnessLoads(t *testing.T) {
	dir := write(t, map[string]string{
		"harness/a.yaml": "agent: agents/a.md\nrole: r\nruntime: command\ncommand: [sh, -c, 'echo hi']\nenv:\n  sandbox:\n    A: ${B}\n  both: {C: 1}\ntimeout_minutes: 5\n",
		"agents/a.md":    "x",
	})
	h, ps := Load(filepath.Join(dir, "harness/a.yaml"), Options{})
	if ps.HasErrors() {
		t.Fatal(ps)
	}
	x, ps := h.Expand(func(string) (string, bool) { return "it's", true })
	if ps.HasErrors() {
		t.Fatal(ps)
	}
	files, ps := x.Files()
	if ps.HasErrors() {
		t.Fatal(ps)
	}
	if got := string(files[0].Data); got != "A='it'\\''s'\nC='1'\n" {
		t.Fatalf("%q", got)
	}
	if h.TimeoutMinutes.V != 5 || h.Command[1].V != "-c" || h.Path(h.Agent) != h.Root+"/agents/a.md" {
		t.Fatal(h)
	}
}
