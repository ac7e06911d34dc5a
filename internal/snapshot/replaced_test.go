package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/beneath"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// outside makes files that no rollback may touch, and tells whether they are as
// they were made.
func outside(t *testing.T) (dir string, same func() bool) {
	t.Helper()
	dir = t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("outside"), 0o600))
	mark(t, filepath.Join(dir, "file"), "outside")
	must(t, os.Mkdir(filepath.Join(dir, "dir"), 0o700))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	long := time.Unix(1_500_000_000, 0)
	must(t, os.Chtimes(filepath.Join(dir, "file"), long, long))
	before := picture(t, dir) + marks(t, dir)
	return dir, func() bool { return picture(t, dir)+marks(t, dir) == before }
}

func marks(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var out strings.Builder
	for _, e := range entries {
		e, err := openEntryAt(filepath.Join(dir, e.Name()))
		must(t, err)
		list, err := beneath.Xattrs(e.FD)
		must(t, err)
		e.Close()
		fmt.Fprintf(&out, "%q", list)
	}
	return out.String()
}

func openEntryAt(name string) (beneath.Entry, error) {
	fd, err := unix.Open(filepath.Dir(name), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return beneath.Entry{}, err
	}
	defer beneath.CloseFD(fd)
	return beneath.OpenEntry(fd, filepath.Base(name))
}

// TestNothingOutsideIsTouchedWhenTheFreezeEnds: whatever of the workspace leads
// outside when attributes are set, they are those of the workspace or none.
func TestNothingOutsideIsTouchedWhenTheFreezeEnds(t *testing.T) {
	testenv.Need(t, testenv.Root)
	disturbances := map[string]func(name string) error{
		"mode":      func(name string) error { return os.Chmod(name, 0o711) },
		"owner":     func(name string) error { return os.Lchown(name, 1234, 1234) },
		"time":      func(name string) error { return os.Chtimes(name, time.Time{}, time.Unix(1_400_000_000, 0)) },
		"attribute": func(name string) error { return unix.Setxattr(name, "user.mark", []byte("new"), 0) },
		"gone":      os.RemoveAll,
	}
	for what, disturb := range disturbances {
		for _, kind := range []string{"file", "dir", "fifo"} {
			if what == "attribute" && kind == "fifo" {
				continue // has none
			}
			t.Run(what+" of a "+kind, func(t *testing.T) {
				out, same := outside(t)
				work, c := openCheckpoints(t, newStore(t))
				name := filepath.Join(work, kind)
				must(t, os.WriteFile(filepath.Join(work, "file"), []byte("inside"), 0o644))
				must(t, os.Mkdir(filepath.Join(work, "dir"), 0o755))
				must(t, unix.Mkfifo(filepath.Join(work, "fifo"), 0o644))
				one, err := c.Create("", free)
				must(t, err)
				must(t, disturb(name))
				_, want, err := c.read(one.ID, true)
				must(t, err)
				have, err := c.look(want)
				must(t, err)
				must(t, os.RemoveAll(name))
				must(t, os.Symlink(filepath.Join(out, kind), name))
				r := rollback{c: c, frozen: &Freeze{}, want: want.byPath(), have: have.byPath(), xattrs: true, made: map[string]beneath.Inode{}}
				err = r.run(have, want)
				if !same() {
					t.Errorf("something outside changed; the rollback: %v", err)
				}
				if err == nil && (what != "owner" || kind != "file") && (what != "gone" || kind != "file") { // these are made anew
					t.Error("the rollback went on")
				}
			})
		}
	}
}

// TestARestoredFileIsNotTheOneThatWasOpen: a command that has a file open does not
// write to what is given to another owner, or executed as its owner.
func TestARestoredFileIsNotTheOneThatWasOpen(t *testing.T) {
	testenv.Need(t, testenv.Root)
	work, c := openCheckpoints(t, newStore(t))
	for _, name := range []string{"owned", "setuid", "linked"} {
		must(t, os.WriteFile(filepath.Join(work, name), []byte("good"), 0o755))
	}
	must(t, os.Chmod(filepath.Join(work, "setuid"), 0o755|os.ModeSetuid))
	must(t, os.Link(filepath.Join(work, "linked"), filepath.Join(work, "other")))
	must(t, os.Link(filepath.Join(work, "setuid"), filepath.Join(work, "setuid too")))
	mark(t, filepath.Join(work, "setuid"), "old")
	before := picture(t, work)
	one, err := c.Create("", free)
	must(t, err)
	var open []*os.File
	for _, name := range []string{"owned", "setuid", "linked"} {
		f, err := os.OpenFile(filepath.Join(work, name), os.O_WRONLY, 0)
		must(t, err)
		defer f.Close()
		open = append(open, f)
	}
	must(t, os.Chown(filepath.Join(work, "owned"), 1234, 1234))
	mark(t, filepath.Join(work, "setuid"), "new")
	must(t, os.Chown(filepath.Join(work, "linked"), 1234, 1234))
	_, err = c.Rollback(one.ID, free)
	must(t, err)
	for _, f := range open {
		_, err := f.WriteString("evil")
		must(t, err)
	}
	if after := picture(t, work); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

// TestARollbackStopsWhenItsFreezeEnds, at each of its steps, and is finished by
// doing it again.
func TestARollbackStopsWhenItsFreezeEnds(t *testing.T) {
	lost := make(chan struct{})
	close(lost)
	released := 0
	thawed := func() (*Freeze, error) {
		return &Freeze{Ended: lost, Release: func([]wire.Change) error { released++; return nil }}, nil
	}
	work, c := openCheckpoints(t, newStore(t))
	must(t, os.WriteFile(filepath.Join(work, "a"), []byte("old"), 0o644))
	one, err := c.Create("", free)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(work, "a"), []byte("new"), 0o644))
	must(t, os.WriteFile(filepath.Join(work, "b"), nil, 0o644))
	before := picture(t, work)
	if _, err := c.Rollback(one.ID, thawed); !errors.Is(err, ErrFreezeEnded) {
		t.Errorf("rollback: %v", err)
	}
	if after := picture(t, work); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	if list, err := c.List(); err != nil || !list[0].Unfinished {
		t.Errorf("listed %+v, %v", list, err)
	}
	_, err = c.Rollback(one.ID, free)
	must(t, err)
	if _, err := c.Create("", thawed); !errors.Is(err, ErrFreezeEnded) {
		t.Errorf("create: %v", err)
	}
	if list, err := c.List(); err != nil || len(list) != 1 || released != 2 {
		t.Errorf("listed %+v, %v, released %d times", list, err, released)
	}
	// A rollback asks at each step: what came with the first one does not go on.
	_, want, err := c.read(one.ID, true)
	must(t, err)
	r := rollback{c: c, frozen: &Freeze{Ended: lost}, want: want.byPath(), made: map[string]beneath.Inode{}}
	for what, step := range map[string]func(*listing) error{"remove": r.remove, "make": r.make, "directories": r.directories} {
		l := want
		if what == "directories" {
			l = &listing{entries: []Entry{{Path: []byte("d"), Type: beneath.TypeDir}}}
		}
		if err := step(l); !errors.Is(err, ErrFreezeEnded) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestNoSessionBeginsInAFrozenWorkspace, nor above or below it, and one does when
// the freeze has ended.
func TestNoSessionBeginsInAFrozenWorkspace(t *testing.T) {
	store := newStore(t)
	work, c := openCheckpoints(t, store)
	at := func(id, dir string) error {
		s, err := store.NewSession(Record{Session: id, Workspace: []wire.Governed{{Backing: dir, Path: "/w"}}})
		if err == nil {
			err = s.Close()
		}
		return err
	}
	must(t, at("previous", work))
	_, err := c.Create("", func() (*Freeze, error) {
		for i, dir := range []string{work, filepath.Join(work, "below"), filepath.Dir(work)} {
			if err := at(fmt.Sprint("during", i), dir); !errors.Is(err, ErrFrozen) ||
				!strings.Contains(err.Error(), fmt.Sprint("kill -9 ", os.Getpid())) {
				t.Errorf("%s: %v", dir, err)
			}
		}
		must(t, at("elsewhere", work+"-other"))
		return free()
	})
	must(t, err)
	must(t, at("after", work))
	if list, err := store.Sessions(); err != nil || len(list) != 3 {
		t.Errorf("sessions %v, %v", list, err)
	}
}
