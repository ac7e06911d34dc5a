package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

// TestFileEventsNameTheirCommandAndProcess: also of a process that is gone at
// once, of one whose parent is gone, and of two commands at the same time.
func TestFileEventsNameTheirCommandAndProcess(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	b := openBox(t, testPolicy)
	guarded := filepath.Join(b.workspace, "guarded")
	for _, name := range []string{"one", "two", "orphan"} {
		if err := os.MkdirAll(filepath.Join(guarded, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for id, script := range map[string]string{
		"one":    "for i in 1 2 3 4 5; do touch guarded/one/$i; done",
		"two":    "for i in 1 2 3 4 5; do touch guarded/two/$i; done",
		"orphan": "(setsid sh -c 'sleep 0.1; touch guarded/orphan/1; touch done' &) ; until test -e done; do :; done",
	} {
		wg.Go(func() {
			b.request(t, wire.ExecRequest{ID: id, Argv: []string{"sh", "-c", script}})
		})
	}
	wg.Wait()
	seen := map[string]int{}
	for _, e := range b.events(t, func(e wire.Event) bool { return e.Type == wire.EventFile && e.Decision == "deny" }) {
		name := strings.Split(strings.TrimPrefix(e.Path, guarded+"/"), "/")[0]
		if e.Path == "" || e.Op == "stat" {
			continue
		}
		seen[name]++
		if e.Command != name {
			t.Errorf("%s %s is said to be of command %q", e.Op, e.Path, e.Command)
		}
		if p := e.Process; p == nil || p.PID == 0 || p.StartTime == 0 || p.Mark != 0 { // what it ran is known while it lives
			t.Errorf("%s %s: process %+v", e.Op, e.Path, p)
		}
	}
	if seen["one"] < 5 || seen["two"] < 5 || seen["orphan"] < 1 {
		t.Errorf("events %v", seen)
	}
}

// TestRulesMatchThePathInside: the workspace lies elsewhere outside.
func TestRulesMatchThePathInside(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	for _, pattern := range []string{"/workspace", "${PROJECT_ROOT}", "${WORKSPACE}"} {
		cfg, log := testConfig(t, testPolicy)
		outside := cfg.Files.Governed[0].Backing
		cfg.Files.Governed[0].Path, cfg.Cwd = "/workspace", "/workspace"
		text := strings.NewReplacer("'${WORKSPACE}/guarded', '${WORKSPACE}/guarded/**'", "'"+pattern+"/guarded/**'",
			"'${WORKSPACE}', '${WORKSPACE}/**'", "'"+pattern+"/**'").Replace(testPolicy)
		var err error
		cfg.Policy, err = syntax.Load(policy.Source{Name: "test.yaml", Data: []byte(text)}, syntax.Options{Vars: map[string]string{
			"WORKSPACE": "/workspace", "PROJECT_ROOT": "/workspace", "HOME": "/home/sandbox", "TMPDIR": "/tmp"}})
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		b := &box{Session: s, workspace: outside, log: log, audit: cfg.Audit}
		exit, out := b.run(t, "sh", "-c", "pwd; echo a >a; mkdir guarded || echo refused; ls "+outside)
		if !strings.HasPrefix(out, "/workspace\nrefused\n") || exit.Code == 0 {
			t.Errorf("%s: %+v, %q", pattern, exit, out)
		}
		if _, err := os.Stat(filepath.Join(outside, "a")); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
