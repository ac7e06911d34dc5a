package snapshot

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// busy writes to a file without a pause until stop is called.
func busy(t *testing.T, name string) (stop func()) {
	t.Helper()
	must(t, os.WriteFile(name, bytes.Repeat([]byte("x"), 64<<20), 0o644))
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	ask, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ask:
				return
			default:
				_, _ = f.WriteString("line\n") // the file is what the test looks at
			}
		}
	}()
	ended := false
	stop = func() {
		if !ended {
			ended = true
			close(ask)
			<-done
			_ = f.Close()
		}
	}
	t.Cleanup(stop)
	return stop
}

// objects are the names of all stored content.
func (c *Checkpoints) objects(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(c.dir, objectsName))
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestAFileThatIsWrittenUntilTheFreezeIsSaved has a file that changes during each reading before it.
func TestAFileThatIsWrittenUntilTheFreezeIsSaved(t *testing.T) {
	work, c := openCheckpoints(t, newStore(t))
	stop := busy(t, filepath.Join(work, "log"))
	one, err := c.Create("", func() (*Freeze, error) {
		stop()
		return free()
	})
	must(t, err)
	info, err := os.Stat(filepath.Join(work, "log"))
	must(t, err)
	if one.Bytes != info.Size() || one.Stored != one.Bytes {
		t.Errorf("%d bytes, %d stored: the file has %d", one.Bytes, one.Stored, info.Size())
	}
	if kept := c.objects(t); len(kept) != 1 {
		t.Errorf("kept %q: more than the file", kept)
	}
}

// TestARefusedCheckpointStoresNothing has a file that changes during each reading, before the freeze and in it.
func TestARefusedCheckpointStoresNothing(t *testing.T) {
	work, c := openCheckpoints(t, newStore(t))
	must(t, os.WriteFile(filepath.Join(work, "small"), []byte("s"), 0o644))
	one, err := c.Create("", free)
	must(t, err)
	before := c.objects(t)
	must(t, os.WriteFile(filepath.Join(work, "new"), []byte("new"), 0o644))
	busy(t, filepath.Join(work, "log"))
	if _, err := c.Create("", free); err == nil || !strings.Contains(err.Error(), "log: it is written all the time") {
		t.Errorf("got %v", err)
	}
	if after := c.objects(t); !slices.Equal(before, after) {
		t.Errorf("stored %q, before %q", after, before)
	}
	done, err := c.Rollback(one.ID, free)
	must(t, err)
	if text := fmt.Sprint(done); !strings.Contains(text, "log") || !strings.Contains(text, "new") {
		t.Errorf("the rollback removed %s", text)
	}
	if left, _ := os.ReadDir(work); len(left) != 1 {
		t.Errorf("left %v", left)
	}
}

// TestARollbackReplacesAFileThatIsWrittenAllTheTime has it in the checkpoint, too: who has it open keeps the old one.
func TestARollbackReplacesAFileThatIsWrittenAllTheTime(t *testing.T) {
	work, c := openCheckpoints(t, newStore(t))
	must(t, os.WriteFile(filepath.Join(work, "log"), []byte("s"), 0o644))
	one, err := c.Create("", free)
	must(t, err)
	busy(t, filepath.Join(work, "log"))
	done, err := c.Rollback(one.ID, free)
	must(t, err)
	if len(done) != 1 || done[0].Kind != wire.Modified {
		t.Errorf("changed %v", done)
	}
	if got, err := os.ReadFile(filepath.Join(work, "log")); err != nil || string(got) != "s" {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestAFullDiskIsGivenBack has a disk that a checkpoint fills: what it stored is removed.
func TestAFullDiskIsGivenBack(t *testing.T) {
	store, err := OpenStore(filepath.Join(onTmpfs(t), "keep"))
	must(t, err)
	work, c := openCheckpoints(t, store)
	for i := range 10 {
		must(t, os.WriteFile(filepath.Join(work, fmt.Sprint(i)), bytes.Repeat([]byte{byte(i + 1)}, 10<<20), 0o644))
	}
	if _, err := c.Create("", free); err == nil || !strings.Contains(err.Error(), unix.ENOSPC.Error()) {
		t.Errorf("got %v", err)
	}
	if kept := c.objects(t); len(kept) > 0 {
		t.Errorf("kept %d files", len(kept))
	}
}

// TestNamesOfACheckpointAreBounded has few files with long names: each directory repeats the names of those above it.
func TestNamesOfACheckpointAreBounded(t *testing.T) {
	work, c := openCheckpoints(t, newStore(t))
	one, err := c.Create("", free)
	must(t, err)
	root, err := os.OpenRoot(work)
	must(t, err)
	defer func() { _ = root.Close() }()
	for range 1100 { // 250 + 500 + ... bytes
		must(t, root.Mkdir(strings.Repeat("d", 250), 0o755))
		below, err := root.OpenRoot(strings.Repeat("d", 250))
		must(t, err)
		must(t, root.Close())
		root = below
	}
	const says = "names of the files have more than 128 MiB"
	if _, err := c.Create("", free); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("a checkpoint: %v", err)
	}
	if _, err := c.Rollback(one.ID, free); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("a rollback: %v", err)
	}
	if _, err := c.Create(strings.Repeat("n", 2000), free); err == nil || !strings.Contains(err.Error(), "name") {
		t.Errorf("a long name: %v", err)
	}
}

// TestALinkHoldsItsTargetAlone has links whose targets are short, in the memory of a listing.
func TestALinkHoldsItsTargetAlone(t *testing.T) {
	work, c := openCheckpoints(t, newStore(t))
	must(t, os.Symlink("short", filepath.Join(work, "link")))
	l, err := c.look(&listing{})
	must(t, err)
	for _, e := range l.entries {
		if cap(e.Target) > 64 {
			t.Errorf("%s holds %d bytes", e.Path, cap(e.Target))
		}
	}
}
