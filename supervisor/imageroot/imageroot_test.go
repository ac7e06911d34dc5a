package imageroot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"agentsh/internal/layout"
)

// newRoot is a root in a directory of the test.
func newRoot(t *testing.T, files ...string) root {
	t.Helper()
	dir := t.TempDir()
	o := Options{Image: filepath.Join(dir, "none"), Dir: filepath.Join(dir, "state"), Files: files}
	return root{o, filepath.Join(o.Dir, "image")}
}

// What the supervisor reads in the root is put where the root has it.
func TestFilesAreShownInTheRoot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml") // below /tmp, which is a mount of its own
	if err := os.WriteFile(file, []byte("version: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRoot(t, file, file+".missing")
	if err := r.fill(); err != nil {
		t.Fatal(err)
	}
	want := r.upper(file)
	if rest, below := strings.CutPrefix(file, "/tmp/"); below {
		want = filepath.Join(r.path(tmpName), rest)
	}
	if text, err := os.ReadFile(want); err != nil || string(text) != "version: 1\n" {
		t.Errorf("%q, %v", text, err)
	}
	for _, dir := range []string{r.upper("/proc"), r.upper("/dev"), r.upper(r.Dir), r.path(workName), r.path(rootName)} {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// Servers are verified by the authorities of this machine, not by those of the image.
func TestTheAuthoritiesOfTheMachineAreShownInTheRoot(t *testing.T) {
	t.Setenv(authoritiesVar, "")
	r := newRoot(t)
	if err := r.fill(); err != nil {
		t.Fatal(err)
	}
	var want []byte
	for _, name := range layout.Authorities {
		if data, err := os.ReadFile(name); err == nil {
			want = data
			break
		}
	}
	if got, err := os.ReadFile(r.path(caName)); string(got) != string(want) || (err == nil) != (want != nil) {
		t.Errorf("%d bytes, want %d: %v", len(got), len(want), err)
	}
	own := filepath.Join(t.TempDir(), "own.pem")
	if err := os.WriteFile(own, []byte("own authorities\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(authoritiesVar, own)
	r = newRoot(t)
	if err := r.fill(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(r.path(caName)); err != nil || string(got) != "own authorities\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// A root that cannot be filled is an error with the file's name.
func TestARootThatCannotBeFilledIsAnError(t *testing.T) {
	r := newRoot(t)
	if err := os.WriteFile(r.Dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.fill(); !errors.Is(err, syscall.ENOTDIR) || !strings.Contains(err.Error(), r.Dir) {
		t.Errorf("the directory is a file: %v", err)
	}
	dir := t.TempDir()
	if err := newRoot(t, dir).fill(); !errors.Is(err, syscall.EISDIR) || !strings.Contains(err.Error(), dir) {
		t.Errorf("a file is a directory: %v", err)
	}
	r = newRoot(t)
	if err := os.MkdirAll(r.path(programName), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := r.fill(); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("the program is a directory: %v", err)
	}
}

// No overlay is mounted over an image that is not there.
func TestAnImageThatIsNotThereIsAnError(t *testing.T) {
	r := newRoot(t)
	if err := r.fill(); err != nil {
		t.Fatal(err)
	}
	if err := r.overlay(); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), r.Image) {
		t.Errorf("%v", err)
	}
}
