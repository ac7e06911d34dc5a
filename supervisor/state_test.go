package supervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// They are recorded beside the start, and a start that fails waits for that, too.
func TestNoSessionBeginsWithoutTheFilesOfDeniedPrograms(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	cfg, _ := testConfig(t, testPolicy)
	cfg.Environment.Path += ":/" + strings.Repeat("x", 300) // no name is that long
	s, err := Open(context.Background(), cfg)
	if err == nil {
		err = s.Close()
	}
	if !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("the session began: %v", err)
	}
}
