package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

// TestTheStateOfASessionIsNotInItsWorkspace has TMPDIR name a directory that
// commands work in.
func TestTheStateOfASessionIsNotInItsWorkspace(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	cfg, _ := testConfig(t, testPolicy)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(cfg.Cwd, link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{cfg.Cwd, link} {
		t.Setenv("TMPDIR", dir)
		s, err := Open(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		b := &box{Session: s, workspace: cfg.Cwd}
		if _, out := b.run(t, "ls", "-A"); out != "" {
			t.Errorf("commands see %q", out)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestAStateThatCommandsCouldChangeIsRefused has no better place for it.
func TestAStateThatCommandsCouldChangeIsRefused(t *testing.T) {
	cfg, _ := testConfig(t, testPolicy)
	s := &Session{cfg: cfg, state: &state{dir: filepath.Join(cfg.Cwd, "state")}}
	if err := os.Mkdir(s.state.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	v := &view{governed: []governed{{backing: cfg.Cwd}}}
	if err := s.keepsOut(v); err == nil || !strings.Contains(err.Error(), "set TMPDIR to a directory outside") {
		t.Errorf("%v", err)
	}
	s.state.dir = t.TempDir()
	if err := s.keepsOut(v); err != nil {
		t.Error(err)
	}
}
