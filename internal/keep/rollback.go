package keep

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// Kinds of [wire.Change] as the file server names them.
const (
	changeCreated  = "created"
	changeModified = "modified"
	changeDeleted  = "deleted"
)

// Diff is what changed in the workspace since a checkpoint, sorted by path. With
// until it is what changed from the one checkpoint to the other.
func (c *Checkpoints) Diff(id, until string) ([]wire.Change, error) {
	_, from, err := c.read(id, true)
	if err != nil {
		return nil, err
	}
	var to *listing
	if until != "" {
		_, to, err = c.read(until, true)
	} else {
		to, err = c.look(from)
	}
	if err != nil {
		return nil, err
	}
	return compare(from, to), nil
}

// look reads what the workspace holds now, as far as it may differ from known.
func (c *Checkpoints) look(known *listing) (*listing, error) {
	old := known.byPath()
	return scan(c.root, func(dir int, name string, e *Entry) error {
		if was := old[string(e.Path)]; was != nil && known.xattrs && len(was.Link) == 0 && e.untouched(was, known.at) {
			e.SHA256, e.Xattrs = was.SHA256, was.Xattrs
			return nil
		}
		return steady(dir, name, e, func(f *os.File) (string, error) { return digest(f) })
	})
}

// same reports whether two files are alike in all that a rollback restores. Times
// of directories are set in any case.
func (e *Entry) same(other *Entry) bool {
	return e.sameAttributes(other) && e.sameContent(other) && (e.Type == typeDir || e.Mtime == other.Mtime)
}

func (e *Entry) sameAttributes(other *Entry) bool {
	return e.Mode == other.Mode && e.UID == other.UID && e.GID == other.GID
}

func (e *Entry) sameContent(other *Entry) bool {
	return e.sameType(other) && e.SHA256 == other.SHA256 && string(e.Target) == string(other.Target) && string(e.Link) == string(other.Link)
}

// compare lists what made the second listing of the first. Times alone are no
// change.
func compare(from, to *listing) []wire.Change {
	old := from.byPath()
	xattrs := from.xattrs && to.xattrs
	out := []wire.Change{}
	add := func(e *Entry, kind string) { out = append(out, wire.Change{Path: string(e.Path), Kind: kind}) }
	for i := range to.entries {
		e := &to.entries[i]
		was := old[string(e.Path)]
		delete(old, string(e.Path))
		switch {
		case was == nil:
			add(e, changeCreated)
		case !was.sameContent(e) || !was.sameAttributes(e) || xattrs && !sameXattrs(was.Xattrs, e.Xattrs):
			if len(e.Path) > 0 {
				add(e, changeModified)
			}
		}
	}
	for _, e := range old {
		add(e, changeDeleted)
	}
	slices.SortFunc(out, func(a, b wire.Change) int { return compareText(a.Path, b.Path) })
	return out
}

func compareText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// View is a checkpoint whose files can be read.
type View struct {
	c       *Checkpoints
	entries map[string]*Entry
}

// View reads a checkpoint.
func (c *Checkpoints) View(id string) (*View, error) {
	_, l, err := c.read(id, true)
	if err != nil {
		return nil, err
	}
	return &View{c, l.byPath()}, nil
}

// Open opens what a regular file held; fs.ErrNotExist is in the chain of the error
// when there was none.
func (v *View) Open(path string) (*os.File, error) {
	if e := v.entries[path]; e != nil && e.Type == typeFile {
		return os.Open(v.c.object(e.SHA256))
	}
	return nil, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
}

// unfinished is the checkpoint that a broken-off rollback was about; empty: none.
func (c *Checkpoints) unfinished() (string, error) {
	data, err := os.ReadFile(filepath.Join(c.dir, rollbackName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	var id string
	if err == nil {
		err = json.Unmarshal(data, &id)
	}
	if err != nil {
		return "", fmt.Errorf("checkpoints: %w", err)
	}
	return id, nil
}

func (c *Checkpoints) unfinishedError(id string) error {
	if id == "" {
		return nil
	}
	return fmt.Errorf("a rollback to checkpoint %s was broken off: do it again first", id)
}

// Rollback makes the workspace what it was at a checkpoint: content, names, modes,
// owners, times, links, extended attributes, and returns what it changed. Each file
// changes in one step. What is needed is read and compared with its digest before anything is
// touched. A rollback that is broken off is done again; until then no checkpoint
// is made. Sockets and devices are not made again. hold is as in Create.
func (c *Checkpoints) Rollback(id string, hold func() (release func([]wire.Change) error, err error)) ([]wire.Change, error) {
	_, want, err := c.read(id, true)
	if err != nil {
		return nil, err
	}
	if err := c.check(want); err != nil {
		return nil, fmt.Errorf("rollback: %w", err)
	}
	release, err := hold()
	if err != nil {
		return nil, err
	}
	done, err := c.rollback(id, want)
	if err = errors.Join(err, release(done)); err != nil {
		return done, fmt.Errorf("rollback: %w", err)
	}
	return done, nil
}

func (c *Checkpoints) rollback(id string, want *listing) ([]wire.Change, error) {
	have, err := c.look(want)
	if err != nil {
		return nil, err
	}
	if err := statedir.WriteJSON(filepath.Join(c.dir, rollbackName), id); err != nil {
		return nil, err
	}
	r := rollback{c: c, want: want.byPath(), have: have.byPath(), xattrs: want.xattrs}
	if err := errors.Join(r.remove(have), r.make(want)); err != nil {
		return r.done, err
	}
	if err := syncAt(int(c.root.Fd())); err != nil {
		return r.done, err
	}
	return r.done, errors.Join(os.Remove(filepath.Join(c.dir, rollbackName)), c.syncDir())
}

// syncAt writes everything of the filesystem of a directory to the disk.
func syncAt(dir int) error {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	return unix.Syncfs(fd)
}

// check reads all content that a checkpoint needs.
func (c *Checkpoints) check(l *listing) error {
	seen := map[string]bool{}
	for i := range l.entries {
		sum := l.entries[i].SHA256
		if sum == "" || seen[sum] {
			continue
		}
		seen[sum] = true
		f, err := os.Open(c.object(sum))
		if err != nil {
			return err
		}
		got, err := digest(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		if got != sum {
			return fmt.Errorf("stored content of %s is damaged", l.entries[i].Path)
		}
	}
	return nil
}

// rollback is one in progress.
type rollback struct {
	c          *Checkpoints
	want, have map[string]*Entry
	xattrs     bool // the checkpoint has them
	done       []wire.Change
}

func (r *rollback) note(path, kind string) {
	r.done = append(r.done, wire.Change{Path: path, Kind: kind})
}

// at opens the directory of a path.
func (r *rollback) at(path string) (fd int, name string, err error) {
	dir, name := split(path)
	fd, err = OpenBeneath(r.c.root, dir, false)
	return fd, name, err
}

// remove removes what the checkpoint does not have, or has as something else,
// what is in directories first.
func (r *rollback) remove(have *listing) error {
	for _, e := range slices.Backward(have.entries) {
		path := string(e.Path)
		want := r.want[path]
		if want != nil && want.sameType(&e) {
			continue
		}
		fd, name, err := r.at(path)
		if err != nil {
			return err
		}
		flags := 0
		if e.Type == typeDir {
			flags = unix.AT_REMOVEDIR
		}
		err = unix.Unlinkat(fd, name, flags)
		closeFD(fd)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove %s: %w", path, err)
		}
		delete(r.have, path)
		r.note(path, changeDeleted)
	}
	return nil
}

// make makes what is missing or differs, directories before what is in them, and
// gives the directories their attributes last.
func (r *rollback) make(want *listing) error {
	for i := range want.entries {
		if err := r.makeOne(&want.entries[i]); err != nil {
			return fmt.Errorf("restore %s: %w", want.entries[i].Path, err)
		}
	}
	for _, e := range slices.Backward(want.entries) {
		if e.Type != typeDir || len(e.Path) == 0 {
			continue
		}
		fd, name, err := r.at(string(e.Path))
		if err != nil {
			return err
		}
		err = r.attributes(&e).set(fd, name)
		closeFD(fd)
		if err != nil {
			return fmt.Errorf("restore %s: %w", e.Path, err)
		}
	}
	return nil
}

func (r *rollback) makeOne(e *Entry) error {
	path := string(e.Path)
	have := r.have[path]
	if !e.restored() || path == "" || have != nil && have.same(e) && (!r.xattrs || sameXattrs(have.Xattrs, e.Xattrs)) {
		return nil
	}
	fd, name, err := r.at(path)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	switch {
	case e.Type == typeDir:
		if have == nil {
			err = unix.Mkdirat(fd, name, 0o700)
		}
	case len(e.Link) > 0:
		err = r.link(e, fd, name)
	case e.Type == typeSymlink:
		err = placeLink(fd, name, e)
	case e.Type == typeFIFO:
		err = r.fifo(e, fd, name, have != nil)
	case have != nil && have.sameContent(e):
		err = r.attributes(e).set(fd, name)
	default:
		err = r.file(e, fd, name)
	}
	if err != nil {
		return err
	}
	switch {
	case have == nil:
		r.note(path, changeCreated)
	case e.Type != typeDir:
		r.note(path, changeModified)
	}
	return nil
}

// attributes are those of an entry as far as the checkpoint has them.
func (r *rollback) attributes(e *Entry) attributes {
	a := e.attributes()
	if r.xattrs && (e.Type == typeFile || e.Type == typeDir) {
		a.xattrs = &e.Xattrs
	}
	return a
}

// fifo makes a FIFO, or gives one its attributes.
func (r *rollback) fifo(e *Entry, dir int, name string, there bool) error {
	if !there {
		if err := unix.Mknodat(dir, name, unix.S_IFIFO|0o600, 0); err != nil {
			return err
		}
	}
	return r.attributes(e).set(dir, name)
}

// file puts a regular file in place. Other names of what was there keep what
// they have.
func (r *rollback) file(e *Entry, dir int, name string) error {
	from, err := os.Open(r.c.object(e.SHA256))
	if err != nil {
		return err
	}
	defer from.Close()
	return placeFile(dir, name, r.attributes(e), true, func(to *os.File) error { return copyContent(to, from) })
}

// link gives the file that another path leads to one name more.
func (r *rollback) link(e *Entry, dir int, name string) error {
	from, first, err := r.at(string(e.Link))
	if err != nil {
		return err
	}
	defer closeFD(from)
	temp := tempName()
	if err := unix.Linkat(from, first, dir, temp, 0); err != nil {
		return err
	}
	err = unix.Renameat(dir, temp, dir, name)
	_ = unix.Unlinkat(dir, temp, 0) // still there when both names were one file already, see rename(2)
	return err
}

// placeLink puts a symbolic link in place.
func placeLink(dir int, name string, e *Entry) error {
	temp := tempName()
	if err := unix.Symlinkat(string(e.Target), dir, temp); err != nil {
		return err
	}
	err := errors.Join(chown(dir, temp, e.UID, e.GID), e.attributes().times(dir, temp))
	if err == nil {
		err = unix.Renameat(dir, temp, dir, name)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, temp, 0) // the failure is what the caller hears
	}
	return err
}
