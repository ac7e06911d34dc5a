package statedir

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"agentsh/internal/layout"
)

// TestATemporaryFileIsSweptAfterItsProcess has one that goes on, one whose process has gone, one that was never made and
// a note that was not written.
func TestATemporaryFileIsSweptAfterItsProcess(t *testing.T) {
	dir := t.TempDir()
	state, err := Open(layout.State(filepath.Join(dir, "state")))
	if err != nil {
		t.Fatal(err)
	}
	makeOne := func(name string) *Temporary {
		t.Helper()
		made, err := state.Temporary(filepath.Join(dir, name))
		if err == nil && name != "never-" {
			err = os.MkdirAll(filepath.Join(made.Path, "below"), 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	alive, left, never, done := makeOne("alive-"), makeOne("left-"), makeOne("never-"), makeOne("done-")
	if err := os.WriteFile(filepath.Join(state.state.Temporary(), "empty"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []*Temporary{left, never} { // a lock ends with its process
		if err := gone.note.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := done.Remove(); err != nil {
		t.Error(err)
	}
	for _, dryRun := range []bool{true, false} {
		if found, err := state.SweepTemporary(dryRun); err != nil || !slices.Equal(found, []string{left.Path}) {
			t.Errorf("dry run %t: %v %v", dryRun, found, err)
		}
	}
	if found, err := state.SweepTemporary(false); err != nil || len(found) > 0 {
		t.Error(found, err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*-*"))
	if err != nil || !slices.Equal(files, []string{alive.Path}) {
		t.Error(files, err)
	}
	if notes, err := os.ReadDir(state.state.Temporary()); err != nil || len(notes) != 1 {
		t.Error(notes, err)
	}
	if err := alive.Keep(); err != nil {
		t.Error(err)
	}
	if err := alive.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(alive.Path); err != nil {
		t.Error("a file that was kept is removed: ", err)
	}
}
