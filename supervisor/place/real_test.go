package place

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/wire"
)

// A sandbox that was killed left files in the directory of the machine. The next sandbox has the
// directory when they are collected.
func TestFilesOfALivingSandboxAreLeftBehind(t *testing.T) {
	root, dir := t.TempDir(), filepath.Join(t.TempDir(), "dead")
	if err := errors.Join(os.Mkdir(filepath.Join(root, "image"), 0o755), os.Mkdir(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	boot := wire.Bootstrap{Governed: []wire.Governed{{Path: root}}, Home: filepath.Join(root, "home")}
	dead := &sandbox{dir: dir}
	if err := dead.useReal(&boot); err != nil {
		t.Fatal(err)
	}
	if err := dead.locked.Close(); err != nil { // it was killed
		t.Fatal(err)
	}
	dead = &sandbox{dir: dir}

	living := &sandbox{dir: t.TempDir()}
	next := wire.Bootstrap{Governed: []wire.Governed{{Path: root}}, Home: filepath.Join(root, "other")}
	if err := living.useReal(&next); err != nil {
		t.Fatal(err)
	}
	third := &sandbox{dir: t.TempDir()}
	if err := third.useReal(&wire.Bootstrap{Governed: []wire.Governed{{Path: root}}}); !errors.Is(err, errInUse) {
		t.Errorf("a third sandbox: %v", err)
	}
	if err := dead.remove(); !errors.Is(err, errInUse) || !strings.Contains(err.Error(), "agentctl gc --all") {
		t.Errorf("collected: %v", err)
	}
	for _, name := range []string{"image", "home", "other"} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(living.leaveReal(), dead.remove()); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]bool{"image": true, "home": false, "other": false} {
		if _, err := os.Lstat(filepath.Join(root, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the sandbox: %v", err)
	}
}
