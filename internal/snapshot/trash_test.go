package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/beneath"
	"agentsh/internal/trash"
	"agentsh/internal/wire"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kept is a session of a store in a test, with its workspace and trash.
type kept struct {
	*Session
	work  string
	trash *trash.Trash
	root  int
}

func newKept(t *testing.T, store *Store, id string) *kept {
	t.Helper()
	k := &kept{work: filepath.Join(t.TempDir(), "work")}
	must(t, os.MkdirAll(k.work, 0o755))
	var err error
	k.Session, err = store.NewSession(Record{Session: id, Started: time.Now(), Workspace: []wire.Governed{{Backing: k.work, Path: "/w"}}})
	must(t, err)
	t.Cleanup(func() { _ = k.Close() })
	dir, err := k.TrashDir()
	must(t, err)
	k.trash, err = trash.Open(dir, trash.Limits{Bytes: 1 << 20, Entries: 10}, id)
	must(t, err)
	k.root, err = unix.Open(k.work, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { beneath.CloseFD(k.root) })
	return k
}

func newStore(t *testing.T) *Store {
	t.Helper()
	store, err := OpenStore(filepath.Join(t.TempDir(), "keep"))
	must(t, err)
	return store
}

// put writes a file of the workspace and keeps it.
func (k *kept) put(t *testing.T, name, text string, link bool) string {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(k.work, name), []byte(text), 0o640))
	id, err := k.trash.Save(k.root, name, link, trash.Entry{Path: wire.Name("/w/" + name), Op: "delete"})
	must(t, err)
	return id
}

func TestRestoredFilesAreUnchanged(t *testing.T) {
	for _, link := range []bool{true, false} {
		k := newKept(t, newStore(t), "one")
		name := filepath.Join(k.work, "a")
		long := time.Unix(1600000000, 5000)
		must(t, os.WriteFile(name, []byte("text"), 0o600))
		must(t, os.Chmod(name, 0o751))
		must(t, os.Chtimes(name, time.Time{}, long))
		id, err := k.trash.Save(k.root, "a", link, trash.Entry{Path: "/w/a", Op: "delete"})
		must(t, err)
		must(t, os.Remove(name))
		must(t, k.trash.Close())
		if _, err := k.Restore(id, false); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(name)
		must(t, err)
		if data, _ := os.ReadFile(name); string(data) != "text" || info.Mode().Perm() != 0o751 || !info.ModTime().Equal(long) {
			t.Errorf("link %v: %q, %v, %v", link, data, info.Mode(), info.ModTime())
		}
		if list, err := k.Trash(); err != nil || len(list) != 0 {
			t.Errorf("left: %v, %v", list, err)
		}
		if left, _ := filepath.Glob(filepath.Join(k.work, ".agentsh*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestRestoringDoesNotFollowLinksOfTheWorkspace(t *testing.T) {
	k := newKept(t, newStore(t), "one")
	outside := t.TempDir()
	must(t, os.Mkdir(filepath.Join(k.work, "d"), 0o755))
	id := k.put(t, "d/a", "text", true)
	must(t, os.RemoveAll(filepath.Join(k.work, "d")))
	must(t, os.Symlink(outside, filepath.Join(k.work, "d")))
	must(t, k.trash.Close())
	if _, err := k.Restore(id, true); !errors.Is(err, unix.ELOOP) {
		t.Errorf("got %v, want ELOOP", err)
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("written outside: %v", left)
	}
}

func TestATrashHasOneUser(t *testing.T) {
	k := newKept(t, newStore(t), "one")
	id := k.put(t, "a", "text", true)
	if err := k.Purge(id); !errors.Is(err, trash.ErrInUse) {
		t.Errorf("got %v, want trash.ErrInUse", err)
	}
	if !k.Running() {
		t.Error("the session is not said to run")
	}
	must(t, k.trash.Close())
	must(t, k.Purge(id))
}

func TestAKilledWriterLeavesNothingHalf(t *testing.T) {
	k := newKept(t, newStore(t), "one")
	id := k.put(t, "a", "text", false)
	dir := filepath.Join(k.dir, trashName)
	manifest := filepath.Join(dir, "manifest.jsonl")
	must(t, k.trash.Close())
	must(t, os.WriteFile(filepath.Join(dir, "00000002"), []byte("par"), 0o600)) // killed before its line
	f, err := os.OpenFile(manifest, os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString(`{"id":"00000003","ty`) // killed in it
	must(t, errors.Join(err, f.Close()))
	if list, err := k.Trash(); err != nil || len(list) != 1 || list[0].ID != id {
		t.Errorf("listed %v, %v", list, err)
	}
	d, err := k.TrashDir()
	must(t, err)
	k.trash, err = trash.Open(d, trash.Limits{Bytes: 100, Entries: 10}, "one")
	must(t, err)
	defer k.trash.Close()
	next := k.put(t, "b", "more", false)
	list, err := k.Trash()
	must(t, err)
	if len(list) != 2 || list[1].ID != next {
		t.Errorf("listed %v", list)
	}
	names, err := os.ReadDir(dir)
	must(t, err)
	if len(names) != 3 {
		t.Errorf("the trash holds %v", names)
	}
}

func TestTheTrashOfAllSessionsCounts(t *testing.T) {
	store := newStore(t)
	k := newKept(t, store, "one")
	k.put(t, "a", "12345", true)
	left, err := store.TrashLeft(trash.Limits{Bytes: 10, Entries: 3})
	must(t, err)
	if left != (trash.Limits{Bytes: 5, Entries: 2}) {
		t.Errorf("left %+v", left)
	}
}

func TestOldSessionsWithoutFilesAreRemoved(t *testing.T) {
	store := newStore(t)
	full := newKept(t, store, "full")
	full.put(t, "a", "1", true)
	must(t, full.Close())
	running, err := store.NewSession(Record{Session: "running", Started: time.Now()})
	must(t, err)
	defer running.Close()
	begin := func(n int) {
		one, err := store.NewSession(Record{Session: fmt.Sprintf("s%03d", n), Started: time.Now()})
		must(t, err)
		must(t, one.Close())
	}
	for n := range maxSessions + sweepEvery - 1 {
		begin(n)
	}
	all, err := store.Sessions()
	must(t, err)
	var names []string
	for _, one := range all {
		names = append(names, one.Session)
	}
	if len(all) != maxSessions+2 || names[0] != "full" || names[1] != "running" || slices.Contains(names, "s000") {
		t.Errorf("%d sessions: %v", len(all), names)
	}
	for n := range 4 * sweepEvery {
		begin(1000 + n)
	}
	if all, err = store.Sessions(); err != nil || len(all) < maxSessions+2 || len(all) > maxSessions+2+sweepEvery {
		t.Errorf("%d sessions later, %v", len(all), err)
	}
}
