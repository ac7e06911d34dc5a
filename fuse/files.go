package fuse

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"agentsh/fuse/changes"
	"agentsh/fuse/follow"
	"agentsh/fuse/tree"
	"agentsh/internal/snapshot"
)

// files accesses the files of one mount by path and records their changes. A
// redirected name is accessed and recorded at its target.
type files struct {
	path      string // inside the sandbox, absolute and clean
	backing   tree.Backing
	redirects redirects
	record    *changes.Record
	owner     Owner
	edits     *follow.Edits // of processes outside the session; nil: they are not noticed
	previous  *previous     // nil: the previous content of changed files is not stored
}

// follow returns the files and the path that rel refers to after redirection.
func (f *files) follow(rel string) (*files, string) {
	if to, ok := f.redirects.find(rel); ok {
		return to.mount.files, to.rel
	}
	return f, rel
}

// redirected reports whether rel is redirected.
func (f *files) redirected(rel string) bool { return f.redirects.has(rel) }

// exchanged records the exchange of two names.
func (f *files) exchanged(a, b string) { f.record.Exchanged(a, b) }

// locate opens the directory that contains the file of rel.
func (f *files) locate(rel string) (tree.Entry, error) {
	to, rel := f.follow(rel)
	return to.backing.Locate(rel)
}

// openDir opens the directory of rel.
func (f *files) openDir(rel string) (tree.Entry, error) {
	to, rel := f.follow(rel)
	return to.backing.OpenDir(rel)
}

// openFile opens the file of rel itself.
func (f *files) openFile(rel string, flags int) (int, error) {
	to, rel := f.follow(rel)
	return to.backing.OpenFile(rel, flags)
}

func (f *files) created(rel string) {
	to, rel := f.follow(rel)
	to.record.Created(rel)
}

func (f *files) modified(rel string) {
	to, rel := f.follow(rel)
	to.record.Modified(rel)
}

func (f *files) deleted(rel string) {
	to, rel := f.follow(rel)
	to.record.Deleted(rel)
}

func (f *files) watched(rel string, was changes.Stamp) {
	to, rel := f.follow(rel)
	to.record.Watched(rel, was)
}

// renamed records the move of a file or directory. replaced says that the new name
// existed before.
func (f *files) renamed(from, to string, dir, replaced bool) {
	if f.redirected(from) || f.redirected(to) {
		f.deleted(from)
		f.created(to)
		return
	}
	f.record.Renamed(from, to, dir, replaced)
}

// inside returns the path of rel inside the sandbox.
func (f *files) inside(rel string) string {
	switch {
	case rel == "":
		return f.path
	case f.path == "/":
		return "/" + rel
	}
	return f.path + "/" + rel
}

// openList opens a directory by its path. Opening "." in it would need search permission,
// but a listing needs read permission only.
func (f *files) openList(rel string) (int, error) {
	return f.openFile(rel, unix.O_RDONLY|unix.O_DIRECTORY)
}

// giveOwner sets the owner of a new entry to the outside identity of the sandbox user.
// A directory with the set-group-id bit passes on its group; the kernel did that when
// it created the entry.
func (f *files) giveOwner(p made, st *unix.Stat_t) error {
	if err := p.Stat(st); err != nil {
		return err
	}
	uid, gid := f.owner.OutsideUID, f.owner.OutsideGID
	if st.Uid == uid && st.Gid == gid || f.owner.User != 0 {
		return nil
	}
	var dir unix.Stat_t
	if err := (tree.Entry{DirFD: p.DirFD}).Stat(&dir); err != nil {
		return err
	}
	if dir.Mode&unix.S_ISGID != 0 {
		gid = dir.Gid
	}
	if st.Uid == uid && st.Gid == gid {
		return nil
	}
	var err error
	if p.fd >= 0 { // the host may have moved or replaced the name
		err = unix.Fchown(p.fd, int(uid), int(gid))
	} else {
		err = unix.Fchownat(p.DirFD, p.Name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return err
	}
	return p.Stat(st)
}

// savePrevious stores the content of the file at p unless the session has already
// changed it under one of its names. The content serves only to show differences, so a
// failure is ignored.
func (f *files) savePrevious(names []string, p tree.Entry) {
	if f.previous == nil {
		return
	}
	for _, rel := range names {
		from, unchanged := f.unchanged(rel)
		if !unchanged {
			continue
		}
		f.previous.mu.Lock()
		_ = f.previous.store.Save(from, p.DirFD, p.Name)
		f.previous.mu.Unlock()
	}
}

// unchanged reports whether the session has not changed the file at rel. It also
// returns the path that the file had in the baseline.
func (f *files) unchanged(rel string) (from string, unchanged bool) {
	if f.redirected(rel) {
		return "", false
	}
	return f.record.Unchanged(rel)
}

// sameFile reports whether two results of stat describe the same file.
func sameFile(a, b *unix.Stat_t) bool { return a.Dev == b.Dev && a.Ino == b.Ino }

// errno converts an error of a system call into the number for the kernel.
func errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if e, ok := err.(syscall.Errno); ok { //nolint:errorlint // x/sys returns bare numbers
		return e
	}
	return syscall.EIO
}

// PreviousName is the name of a donated descriptor: the directory that stores the
// previous content of changed files of the first mount.
const PreviousName = "previous"

// previous stores the previous content of changed files.
type previous struct {
	mu    sync.Mutex
	store *snapshot.Previous
}
