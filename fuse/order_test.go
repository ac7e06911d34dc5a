package fuse

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// hostOrder is a workspace whose host makes one change and then another. A command that
// sees the second one must see the first.
type hostOrder struct {
	dir, back    string   // in the session and on the host
	open, unread *os.File // of the session: d/b, and e/unread, which is not read
	lock         *os.File // of the host: d/b, locked
}

// firstChanges are made in the directory d.
var firstChanges = append([]edit{
	{"create a directory", func(t *testing.T, d string) {
		must(t, os.Mkdir(d+"/d/absent1", 0o755))
		writeText(t, d+"/d/absent1/in", "in\n")
	}},
	{"create a link", func(t *testing.T, d string) { must(t, os.Symlink("a", d+"/d/absent1")) }},
	{"create two files", func(t *testing.T, d string) {
		writeText(t, d+"/d/absent1", "one\n")
		writeText(t, d+"/d/absent2", "two\n")
	}},
	{"rename to an absent name", func(t *testing.T, d string) { must(t, os.Rename(d+"/d/a", d+"/d/absent1")) }},
	{"rename a directory to an absent name", func(t *testing.T, d string) { must(t, os.Rename(d+"/d/sub", d+"/d/absent1")) }},
	{"rename from elsewhere", func(t *testing.T, d string) { must(t, os.Rename(d+"/e/z", d+"/d/absent2")) }},
	{"replace a link", func(t *testing.T, d string) {
		must(t, os.Symlink("b", d+"/d/.l"))
		must(t, os.Rename(d+"/d/.l", d+"/d/link"))
	}},
	{"exchange", func(t *testing.T, d string) {
		must(t, unix.Renameat2(unix.AT_FDCWD, d+"/d/a", unix.AT_FDCWD, d+"/d/b", unix.RENAME_EXCHANGE))
	}},
	{"remove a link", func(t *testing.T, d string) { must(t, os.Remove(d+"/d/link")) }},
	{"mode of a directory", func(t *testing.T, d string) { must(t, os.Chmod(d+"/d/sub", 0o711)) }},
}, slices.DeleteFunc(slices.Clone(treeEdits), func(e edit) bool {
	return e.name == "write through a mapping" || e.name == "hard link" // raise no event, see decision 0045
})...)

// secondChange is a change of the host, and how a command sees it.
type secondChange struct {
	name string
	do   func(t *testing.T, o *hostOrder)
	see  func(t *testing.T, o *hostOrder) bool
}

const readOfOpenFile = "read of an open file"

var secondChanges = []secondChange{
	{"open of a removed file", func(t *testing.T, o *hostOrder) {
		must(t, os.Remove(o.back+"/e/removed"))
	}, func(t *testing.T, o *hostOrder) bool {
		_, err := os.ReadFile(o.dir + "/e/removed")
		return errors.Is(err, unix.ENOENT)
	}},
	{"lookup in the same directory", func(t *testing.T, o *hostOrder) {
		writeText(t, o.back+"/d/unasked", "")
	}, func(t *testing.T, o *hostOrder) bool {
		_, err := os.Lstat(o.dir + "/d/unasked")
		return err == nil
	}},
	{"lookup of a new file", func(t *testing.T, o *hostOrder) {
		writeText(t, o.back+"/e/unasked", "")
	}, func(t *testing.T, o *hostOrder) bool {
		_, err := os.Lstat(o.dir + "/e/unasked")
		return err == nil
	}},
	{"create in the same directory", func(t *testing.T, o *hostOrder) {
		writeText(t, o.back+"/d/unasked", "text")
	}, func(t *testing.T, o *hostOrder) bool {
		f, err := os.OpenFile(o.dir+"/d/unasked", os.O_CREATE|os.O_RDWR, 0o644)
		must(t, err)
		defer f.Close()
		size, err := f.Seek(0, 2)
		return err == nil && size == 4
	}},
	{"removal in the same directory", func(t *testing.T, o *hostOrder) {
		must(t, os.Remove(o.back+"/d/gone"))
	}, func(t *testing.T, o *hostOrder) bool {
		return errors.Is(os.Remove(o.dir+"/d/gone"), unix.ENOENT)
	}},
	{"listing of a new directory", func(t *testing.T, o *hostOrder) {
		must(t, os.Mkdir(o.back+"/f/in", 0o755))
	}, func(t *testing.T, o *hostOrder) bool {
		list, err := os.ReadDir(o.dir + "/f")
		return err == nil && len(list) == 2
	}},
	{readOfOpenFile, func(t *testing.T, o *hostOrder) {
		f, err := os.OpenFile(o.back+"/e/unread", os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteString("second")
		must(t, errors.Join(err, f.Close()))
	}, func(t *testing.T, o *hostOrder) bool {
		buf := make([]byte, 6)
		_, err := o.unread.ReadAt(buf, 0)
		return err == nil && string(buf) == "second"
	}},
	{"a lock that was released", func(t *testing.T, o *hostOrder) {
		must(t, unix.Flock(int(o.lock.Fd()), unix.LOCK_UN))
	}, func(t *testing.T, o *hostOrder) bool {
		return unix.Flock(int(o.open.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	}},
}

// TestChangesOfTheHostAreSeenInTheirOrder: the host makes a change, then another one that
// a command sees. The command then sees the first one too: in the listing, by name, by
// attributes and in the content. No goroutine reads the events of the changes here: only
// the request by which the command sees the second change.
func TestChangesOfTheHostAreSeenInTheirOrder(t *testing.T) {
	all := os.Getenv("COHERENCE_ROUNDS") != ""
	for _, o := range []options{{}, {plain: true}, {cold: true}, {plain: true, cold: true}} {
		o.noEventReader = true
		s := start(t, o)
		for n, second := range secondChanges {
			if second.name == readOfOpenFile && !o.cold {
				continue // what is in memory was read at the open
			}
			for i, first := range firstChanges {
				for k, sight := range orderSights {
					if !all && (i+k)%len(secondChanges) != n {
						continue // every first change, every second one and every sight is tried
					}
					t.Run(fmt.Sprintf("%s, then %s, plain %v, cold %v, by %s", first.name, second.name, o.plain, o.cold, sight.name), func(t *testing.T) {
						rel := fmt.Sprintf("%s/%d/%s", second.name, i, sight.name)
						must(t, os.MkdirAll(s.back(rel), 0o755))
						o := newHostOrder(t, s.path(rel), s.back(rel))
						first.do(t, o.back)
						second.do(t, o)
						if !second.see(t, o) {
							t.Fatal("the second change is not seen")
						}
						if inside, outside := sight.of(t, o.dir), sight.of(t, o.back); inside != outside {
							t.Errorf("inside:\n%s\noutside:\n%s", inside, outside)
						}
					})
				}
			}
		}
	}
}

// newHostOrder makes a workspace of which the kernel caches all.
func newHostOrder(t *testing.T, dir, back string) *hostOrder {
	o := &hostOrder{dir: dir, back: back}
	seedTree(t, back, map[string]string{"e/removed": "", "d/gone": "", "e/unread": "first!", "f/x": ""})
	seedEdited(t, back)
	for range 2 { // the second time from the cache
		for _, sight := range orderSights {
			sight.of(t, dir)
		}
	}
	var err error
	o.unread, err = os.Open(dir + "/e/unread")
	must(t, err)
	t.Cleanup(func() { o.unread.Close() })
	o.open, err = os.Open(dir + "/d/b")
	must(t, err)
	t.Cleanup(func() { o.open.Close() })
	o.lock, err = os.Open(back + "/d/b")
	must(t, err)
	t.Cleanup(func() { o.lock.Close() })
	must(t, unix.Flock(int(o.lock.Fd()), unix.LOCK_EX))
	return o
}

// orderSights are ways to look at the directories d and e. Each is tried first, before the
// requests of another one.
var orderSights = []struct {
	name string
	of   func(t *testing.T, dir string) string
}{
	{"name", func(t *testing.T, dir string) string {
		var out strings.Builder
		for _, name := range []string{
			"d/new", "d/absent1", "d/absent2", "d/made", "e/moved", "e/sub", "e/old", "d/a", "d/b", "d/link", "d/sub", "d/sub/x",
			"d/sub/deep/y", "d/large", "d/empty", "e/z", "d/a/in", "d", "e",
		} {
			var st unix.Stat_t
			err := unix.Lstat(filepath.Join(dir, name), &st)
			fmt.Fprintf(&out, "%s: %v", name, err)
			if err == nil {
				fmt.Fprintf(&out, " %o %d %d", st.Mode, st.Mtim.Nano(), st.Ino)
			}
			out.WriteByte('\n')
		}
		return out.String()
	}},
	{"listing", func(t *testing.T, dir string) string {
		var out strings.Builder
		for _, name := range []string{"d", "e", "d/sub", "e/sub"} {
			list, err := os.ReadDir(filepath.Join(dir, name))
			fmt.Fprintf(&out, "%s: %v %v\n", name, list, errors.Unwrap(err))
		}
		return out.String()
	}},
	{"content", func(t *testing.T, dir string) string {
		var out strings.Builder
		for _, name := range []string{"d/link", "d/sub/x", "d/a", "d/b", "d/large", "d/empty", "e/z"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			fmt.Fprintf(&out, "%s: %.20q %d %v\n", name, text, len(text), errors.Unwrap(err))
		}
		to, err := os.Readlink(filepath.Join(dir, "d/link"))
		fmt.Fprintf(&out, "%s %v\n", to, errors.Unwrap(err))
		return out.String()
	}},
}
