package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/beneath"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// free is the freeze of a workspace without sessions.
func free() (*Freeze, error) {
	return &Freeze{Release: func([]wire.Change) error { return nil }}, nil
}

// openCheckpoints makes a workspace with its checkpoints.
func openCheckpoints(t *testing.T, store *Store) (work string, c *Checkpoints) {
	t.Helper()
	work = filepath.Join(t.TempDir(), "work")
	must(t, os.MkdirAll(work, 0o755))
	c, err := store.Checkpoints(work)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return work, c
}

// picture describes a tree: everything that a rollback restores.
func picture(t *testing.T, root string) string {
	t.Helper()
	var out []string
	inodes := map[uint64][]string{}
	must(t, filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == root {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%q %o %d %d %d", rel, st.Mode, st.Uid, st.Gid, st.Mtim.Nano())
		switch {
		case d.Type().IsRegular():
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", data)
			inodes[st.Ino] = append(inodes[st.Ino], rel)
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			line += " -> " + target
		}
		out = append(out, line)
		return nil
	}))
	for _, names := range inodes {
		if len(names) > 1 {
			out = append(out, fmt.Sprintf("links %q", names))
		}
	}
	sort.Strings(out)
	return strings.Join(out, "\n")
}

// disturb does random things to a tree.
func disturb(t *testing.T, r *rand.Rand, root string) {
	t.Helper()
	name := func() string {
		parts := []string{root}
		for range 1 + r.Intn(3) {
			parts = append(parts, string(rune('a'+r.Intn(4))))
		}
		return filepath.Join(parts...)
	}
	for range 30 {
		a, b := name(), name()
		_ = os.MkdirAll(filepath.Dir(a), 0o755) // a file may be in the way: then another thing happens
		switch r.Intn(9) {
		case 0, 1, 2:
			_ = os.WriteFile(a, []byte(fmt.Sprint(r.Intn(1000))), 0o644)
		case 3:
			_ = os.RemoveAll(a)
		case 4:
			_ = os.Rename(a, b)
		case 5:
			_ = os.Link(a, b)
		case 6:
			_ = os.Symlink("somewhere", a)
		case 7:
			_ = os.Chmod(a, os.FileMode(0o600+r.Intn(0o200)))
		case 8:
			_ = os.Chtimes(a, time.Time{}, time.Unix(int64(r.Intn(1e9)), int64(r.Intn(1e9))))
		}
	}
}

func TestARollbackRestoresEverything(t *testing.T) {
	for seed := range int64(40) {
		r := rand.New(rand.NewSource(seed))
		work, c := openCheckpoints(t, newStore(t))
		disturb(t, r, work)
		before := picture(t, work)
		one, err := c.Create("", free)
		must(t, err)
		for range 3 {
			disturb(t, r, work)
			_, err = c.Rollback(one.ID, free)
			must(t, err)
			if after := picture(t, work); after != before {
				t.Fatalf("seed %d: before\n%s\nafter\n%s", seed, before, after)
			}
		}
		if list, err := c.Diff(one.ID, ""); err != nil || len(list) > 0 {
			t.Errorf("seed %d: %v, %v", seed, list, err)
		}
	}
}

func TestOnlyWhatChangedIsStored(t *testing.T) {
	work, c := openCheckpoints(t, newStore(t))
	long := time.Now().Add(-time.Hour)
	for i := range 10 {
		name := filepath.Join(work, fmt.Sprint(i))
		must(t, os.WriteFile(name, []byte(strings.Repeat(fmt.Sprint(i), 1000)), 0o644))
		must(t, os.Chtimes(name, long, long))
	}
	one, err := c.Create("first", free)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(work, "3"), []byte("changed"), 0o644))
	two, err := c.Create("second", free)
	must(t, err)
	if one.Stored != 10_000 || two.Stored != 7 || two.Bytes != 9007 {
		t.Errorf("stored %+v, then %+v", one, two)
	}
	list, err := c.Diff(one.ID, two.ID)
	if err != nil || len(list) != 1 || list[0] != (wire.Change{Path: "3", Kind: "modified"}) {
		t.Errorf("diff %v, %v", list, err)
	}
	v, err := c.View(one.ID)
	must(t, err)
	f, err := v.Open("3")
	must(t, err)
	defer f.Close()
	if data, _ := io.ReadAll(f); string(data) != strings.Repeat("3", 1000) {
		t.Errorf("holds %q", data)
	}
	must(t, c.Delete(one.ID))
	objects, err := os.ReadDir(filepath.Join(c.dir, objectsName))
	must(t, err)
	if len(objects) != 10 {
		t.Errorf("%d objects are left", len(objects))
	}
	if _, err := c.Rollback(two.ID, free); err != nil {
		t.Error(err)
	}
}

func TestABrokenOffRollbackIsDoneAgain(t *testing.T) {
	work, c := openCheckpoints(t, newStore(t))
	must(t, os.Mkdir(filepath.Join(work, "d"), 0o755))
	must(t, os.WriteFile(filepath.Join(work, "d/a"), []byte("a"), 0o644))
	before := picture(t, work)
	one, err := c.Create("", free)
	must(t, err)
	// What a process killed in the middle leaves: the word that it began, and a
	// file under a name of its own.
	must(t, os.WriteFile(filepath.Join(c.dir, rollbackName), []byte(`"`+one.ID+`"`), 0o600))
	must(t, os.WriteFile(filepath.Join(work, "d", beneath.TempName()), []byte("par"), 0o600))
	must(t, os.WriteFile(filepath.Join(c.dir, objectsName, beneath.TempName()), []byte("par"), 0o600))
	if list, err := c.List(); err != nil || len(list) != 1 || !list[0].Unfinished {
		t.Errorf("listed %+v, %v", list, err)
	}
	if _, err := c.Create("", free); err == nil || !strings.Contains(err.Error(), "broken off") {
		t.Errorf("created: %v", err)
	}
	_, err = c.Rollback(one.ID, free)
	must(t, err)
	if after := picture(t, work); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	must(t, c.sweep())
	if list, err := c.List(); err != nil || list[0].Unfinished {
		t.Errorf("listed %+v, %v", list, err)
	}
	if objects, _ := os.ReadDir(filepath.Join(c.dir, objectsName)); len(objects) != 1 {
		t.Errorf("objects %v", objects)
	}
}

func TestAFullDiskLeavesNothingHalf(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	store, err := OpenStore(filepath.Join(dir, "keep"))
	must(t, err)
	work, c := openCheckpoints(t, store)
	must(t, os.WriteFile(filepath.Join(work, "small"), []byte("s"), 0o644))
	one, err := c.Create("", free)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(work, "big"), bytes.Repeat([]byte("x"), 1<<20), 0o644))
	if _, err := c.Create("", free); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v, want ENOSPC", err)
	}
	if left, _ := filepath.Glob(filepath.Join(c.dir, "*", beneath.TempPrefix+"*")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if list, err := c.List(); err != nil || len(list) != 1 || list[0].ID != one.ID {
		t.Errorf("listed %v, %v", list, err)
	}
	if _, err := c.Rollback(one.ID, free); err != nil {
		t.Error(err)
	}
}

func TestDamagedContentIsSeenBeforeAnythingIsTouched(t *testing.T) {
	work, c := openCheckpoints(t, newStore(t))
	must(t, os.WriteFile(filepath.Join(work, "a"), []byte("a"), 0o644))
	one, err := c.Create("", free)
	must(t, err)
	objects, err := os.ReadDir(filepath.Join(c.dir, objectsName))
	must(t, err)
	must(t, os.WriteFile(c.object(objects[0].Name()), []byte("b"), 0o600))
	must(t, os.WriteFile(filepath.Join(work, "new"), nil, 0o644))
	if _, err := c.Rollback(one.ID, free); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(filepath.Join(work, "new")); err != nil {
		t.Error(err)
	}
}

// TestAFileWrittenDuringACheckpointIsSavedCompletely: or the checkpoint is refused.
func TestAFileWrittenDuringACheckpointIsSavedCompletely(t *testing.T) {
	work, c := openCheckpoints(t, newStore(t))
	name := filepath.Join(work, "a")
	must(t, os.WriteFile(name, []byte("one"), 0o644))
	changed := 0
	err := func() error {
		root, err := unix.Open(work, unix.O_PATH|unix.O_DIRECTORY, 0)
		must(t, err)
		defer beneath.CloseFD(root)
		e := Entry{Path: []byte("a")}
		return readStable(root, "a", &e, reading{digest: func(f *os.File) (string, error) {
			if changed++; changed < 3 {
				must(t, os.WriteFile(name, []byte(fmt.Sprint("other", strings.Repeat("x", changed))), 0o644))
			}
			return digest(f)
		}})
	}()
	must(t, err)
	if changed != 3 {
		t.Errorf("read %d times", changed)
	}
	if _, err := c.Create("", free); err != nil {
		t.Error(err)
	}
}
