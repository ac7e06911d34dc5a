package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"agentsh/internal/beneath"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// unfinished returns the checkpoint of an interrupted rollback; empty: none.
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
	return fmt.Errorf("a rollback to checkpoint %s was broken off: do it again first (agentsh checkpoint rollback %s)", id, id)
}

// Rollback restores the workspace to a checkpoint: content, names, modes,
// owners, times, links and extended attributes. It returns its changes.
//
// It first reads all needed content and compares digests, then calls freeze.
// Each file changes in one step. It stops with [ErrFreezeEnded] when the freeze
// ends, and with [beneath.ErrReplaced] when another process writes to the
// workspace. An interrupted rollback must be repeated before a new checkpoint
// is created. Sockets and devices are not restored.
func (c *Checkpoints) Rollback(id string, freeze func() (*Freeze, error)) ([]wire.Change, error) {
	_, want, err := c.read(id, true)
	if err != nil {
		return nil, err
	}
	if err := c.check(want); err != nil {
		return nil, fmt.Errorf("rollback: %w", err)
	}
	frozen, err := c.freeze(freeze)
	if err != nil {
		return nil, err
	}
	done, err := c.rollback(id, want, frozen)
	if released := frozen.Release(done); !errors.Is(err, ErrFreezeEnded) { // which says it already
		err = errors.Join(err, released)
	}
	if err != nil {
		return done, fmt.Errorf("rollback: %w", err)
	}
	return done, nil
}

func (c *Checkpoints) rollback(id string, want *listing, frozen *Freeze) ([]wire.Change, error) {
	have, err := c.look(want)
	if err != nil {
		return nil, err
	}
	if err := statedir.WriteJSON(filepath.Join(c.dir, rollbackName), id); err != nil {
		return nil, err
	}
	r := rollback{c: c, frozen: frozen, want: want.byPath(), have: have.byPath(), xattrs: want.xattrs, made: map[string]beneath.Inode{}}
	if err := r.run(have, want); err != nil {
		return r.done, err
	}
	if err := syncAt(int(c.root.Fd())); err != nil {
		return r.done, err
	}
	if err := frozen.check(); err != nil {
		return r.done, err
	}
	return r.done, errors.Join(os.Remove(filepath.Join(c.dir, rollbackName)), c.syncDir())
}

// syncAt writes all data of a directory's filesystem to the disk.
func syncAt(dir int) error {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer beneath.CloseFD(fd)
	return unix.Syncfs(fd)
}

// check reads all content of a checkpoint and compares the digests.
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
		got, err := digestLike(f, sum)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		if got != sum {
			return fmt.Errorf("stored content of %s is damaged", l.entries[i].Path)
		}
	}
	return nil
}

// rollback is a rollback in progress.
type rollback struct {
	c          *Checkpoints
	frozen     *Freeze
	want, have map[string]*Entry
	xattrs     bool                     // the checkpoint has them
	made       map[string]beneath.Inode // what was made, or put in the place of something
	done       []wire.Change
}

// run first removes, then creates, and sets the attributes of directories last.
func (r *rollback) run(have, want *listing) error {
	if err := r.remove(have); err != nil {
		return err
	}
	if err := r.make(want); err != nil {
		return err
	}
	return r.directories(want)
}

// inode returns the inode that a path must lead to now.
func (r *rollback) inode(path string) beneath.Inode {
	if made, ok := r.made[path]; ok {
		return made
	}
	if have := r.have[path]; have != nil {
		return have.inode()
	}
	return beneath.Inode{}
}

func (r *rollback) note(path string, kind wire.ChangeKind) {
	r.done = append(r.done, wire.Change{Path: wire.Name(path), Kind: kind})
}

// at opens the parent directory of a path.
func (r *rollback) at(path string) (fd int, name string, err error) {
	dir, name := beneath.Split(path)
	fd, err = beneath.OpenDir(r.c.root, dir, false)
	return fd, name, err
}

// remove removes entries that the checkpoint does not have or has with another
// type, the content of a directory before the directory.
func (r *rollback) remove(have *listing) error {
	for _, e := range slices.Backward(have.entries) {
		if err := r.frozen.check(); err != nil {
			return err
		}
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
		if e.Type == beneath.TypeDir {
			flags = unix.AT_REMOVEDIR
		}
		err = unix.Unlinkat(fd, name, flags)
		beneath.CloseFD(fd)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove %s: %w", path, err)
		}
		delete(r.have, path)
		r.note(path, wire.Deleted)
	}
	return nil
}

// make creates what is missing or differs, a directory before its content.
func (r *rollback) make(want *listing) error {
	for i := range want.entries {
		err := r.frozen.check()
		if err == nil {
			err = r.makeOne(&want.entries[i])
		}
		if err != nil {
			return fmt.Errorf("restore %s: %w", want.entries[i].Path, err)
		}
	}
	return nil
}

// directories sets the attributes of all directories.
func (r *rollback) directories(want *listing) error {
	for _, e := range slices.Backward(want.entries) {
		if e.Type != beneath.TypeDir || len(e.Path) == 0 {
			continue
		}
		err := r.frozen.check()
		if err == nil {
			err = r.directory(&e)
		}
		if err != nil {
			return fmt.Errorf("restore %s: %w", e.Path, err)
		}
	}
	return nil
}

func (r *rollback) directory(e *Entry) error {
	fd, name, err := r.at(string(e.Path))
	if err != nil {
		return err
	}
	defer beneath.CloseFD(fd)
	return r.adjust(e, fd, name)
}

func (r *rollback) makeOne(e *Entry) error {
	path := string(e.Path)
	have := r.have[path]
	if !e.restored() || path == "" || r.isThere(e, have) {
		return nil
	}
	fd, name, err := r.at(path)
	if err != nil {
		return err
	}
	defer beneath.CloseFD(fd)
	switch {
	case e.Type == beneath.TypeDir:
		if have == nil {
			err = r.makeDir(path, fd, name)
		}
	case len(e.Link) > 0:
		err = r.link(e, fd, name)
	case e.Type == beneath.TypeSymlink:
		err = beneath.CreateLink(fd, name, e.Target, e.attributes(), true)
	case e.Type == beneath.TypeFIFO:
		err = r.fifo(e, fd, name, have != nil)
	case have != nil && have.sameContent(e) && !e.gains(have):
		err = r.adjust(e, fd, name)
	default:
		err = r.file(e, fd, name)
	}
	if err != nil {
		return err
	}
	switch {
	case have == nil:
		r.note(path, wire.Created)
	case e.Type != beneath.TypeDir:
		r.note(path, wire.Modified)
	}
	return nil
}

// isThere reports whether the workspace already has the wanted entry.
func (r *rollback) isThere(e, have *Entry) bool {
	if _, remade := r.made[string(e.Link)]; remade {
		return false
	}
	return have != nil && have.same(e) && (!r.xattrs || beneath.SameXattrs(have.Xattrs, e.Xattrs))
}

// gains reports whether a regular file would get another owner or a set-user-ID
// bit. Such a file is created anew, because a command that has the old one open
// could write to it later.
func (e *Entry) gains(have *Entry) bool {
	return e.UID != have.UID || e.GID != have.GID || e.Mode&(unix.S_ISUID|unix.S_ISGID) != 0
}

// attributes returns the attributes that the checkpoint has of an entry.
func (r *rollback) attributes(e *Entry) beneath.Attributes {
	a := e.attributes()
	if r.xattrs && (e.Type == beneath.TypeFile || e.Type == beneath.TypeDir) {
		a.Xattrs = &e.Xattrs
	}
	return a
}

// adjust sets the attributes of a file that was listed or created before.
func (r *rollback) adjust(e *Entry, dir int, name string) error {
	there, err := beneath.OpenSame(dir, name, r.inode(string(e.Path)))
	if err != nil {
		return err
	}
	defer there.Close()
	return there.Set(r.attributes(e))
}

func (r *rollback) makeDir(path string, dir int, name string) error {
	made, err := beneath.MakeDir(dir, name)
	if err != nil {
		return err
	}
	defer made.Close()
	r.made[path] = beneath.InodeOf(&made.Stat)
	return nil
}

// fifo creates a FIFO, or sets the attributes of an existing one.
func (r *rollback) fifo(e *Entry, dir int, name string, there bool) error {
	if there {
		return r.adjust(e, dir, name)
	}
	if err := unix.Mknodat(dir, name, unix.S_IFIFO|0o600, 0); err != nil {
		return err
	}
	made, err := beneath.OpenMade(dir, name, unix.S_IFIFO)
	if err != nil {
		return err
	}
	defer made.Close()
	return made.Set(r.attributes(e))
}

// file puts a regular file in place. Other hard links of the old file keep the
// old content.
func (r *rollback) file(e *Entry, dir int, name string) error {
	from, err := os.Open(r.c.object(e.SHA256))
	if err != nil {
		return err
	}
	defer from.Close()
	made, err := beneath.CreateFile(dir, name, r.attributes(e), true, func(to *os.File) error { return beneath.CopyContent(to, from) })
	r.made[string(e.Path)] = made
	return err
}

// link creates a hard link to the file at another path.
func (r *rollback) link(e *Entry, dir int, name string) error {
	from, first, err := r.at(string(e.Link))
	if err != nil {
		return err
	}
	defer beneath.CloseFD(from)
	temp := beneath.TempName()
	if err := unix.Linkat(from, first, dir, temp, 0); err != nil {
		return err
	}
	linked, err := beneath.OpenSame(dir, temp, r.inode(string(e.Link)))
	if err == nil {
		linked.Close()
		err = unix.Renameat(dir, temp, dir, name)
	}
	_ = unix.Unlinkat(dir, temp, 0) // still there when both names were one file already, see rename(2)
	return err
}
