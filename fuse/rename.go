package fuse

import (
	"errors"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/policy"
)

// maxMovedEntries bounds the entries judged when a directory whose tree the
// rules do not treat alike is renamed.
const maxMovedEntries = 100_000

// contentOps are the operations another name could launder: what is denied under
// the old name must not be permitted under the new one.
const contentOps = policy.OpAll &^ (policy.OpRename | policy.OpCreate | policy.OpMkdir | policy.OpSymlink |
	policy.OpMknod | policy.OpLink)

// movement is one entry about to get another name.
type movement struct {
	from, to string // relative to the mount
	st       unix.Stat_t
	at       place
	keep     *verdict // it is replaced, and a soft_delete keeps it
	away     *verdict // its new name is redirected
}

// Rename moves an entry, or swaps two. Both names are judged, for an entry that
// is replaced too, and below a directory every entry whose rules may differ.
func (m *mount) Rename(_ <-chan struct{}, in *gofuse.RenameIn, oldName, newName string) gofuse.Status {
	if in.Flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 {
		return gofuse.EINVAL
	}
	m.tree.moves.Lock()
	defer m.tree.moves.Unlock()
	oldParent, from, code := m.child(in.NodeId, oldName)
	if !code.Ok() {
		return code
	}
	newParent, to, code := m.child(in.Newdir, newName)
	if !code.Ok() {
		return code
	}
	src := movement{from: from, to: to}
	dst := movement{from: to, to: from}
	exists, err := m.locateBoth(&src, &dst)
	defer src.at.close()
	defer dst.at.close()
	if err != nil {
		return gofuse.Status(errno(err))
	}
	exchange := in.Flags&unix.RENAME_EXCHANGE != 0
	if code := m.permitMove(in.Pid, &src, &dst, exists, exchange); !code.Ok() {
		return code
	}
	sent := src.away != nil && !m.backing.away.has(to)
	if sent {
		if exists, err = m.moveAway(in.Pid, &src, &dst); err != nil {
			return gofuse.Status(errno(err))
		}
	}
	if in.Flags&unix.RENAME_NOREPLACE != 0 && exists {
		return gofuse.Status(unix.EEXIST)
	}
	if exists && !exchange && inodeOf(&src.st) == inodeOf(&dst.st) {
		return gofuse.OK // two names of one file: rename(2) does nothing
	}
	if code := m.repos.rename(in.Pid, &src, &dst, exchange); !code.Ok() {
		if sent {
			m.backing.away.drop(to)
		}
		return code
	}
	gone, err := m.replace(in, &src, &dst, exists && !exchange)
	if err != nil {
		if sent {
			m.backing.away.drop(to)
		}
		return gofuse.Status(errno(err))
	}
	a, b := link{oldParent, oldName}, link{newParent, newName}
	if exchange {
		m.tree.exchange(a, b)
		m.changes.exchanged(from, to)
		m.forgetListings(from)
		m.forgetListings(to)
		return gofuse.OK
	}
	if exists {
		m.tree.unlink(newParent, newName, gone)
	}
	m.tree.move(a, b)
	m.changes.renamed(from, to, src.st.Mode&unix.S_IFMT == unix.S_IFDIR, exists)
	m.forgetListings(to)
	return gofuse.OK
}

// forgetListings drops the listings the kernel keeps of a directory that was
// moved and of all below it, where listing is not allowed as a whole or names may
// be left out. The rename itself holds no lock the kernel needs for that.
func (m *mount) forgetListings(rel string) {
	whole := func(op policy.FileOp) bool {
		v := m.rules.now().policy.Tree(m.inside(rel), op)
		return v.Uniform && v.Effect == policy.Allow
	}
	if whole(policy.OpStat) && (!m.noOpenDir || whole(policy.OpList)) {
		return
	}
	n, unknown := m.tree.walk(rel)
	if unknown != "" {
		return
	}
	for _, known := range m.tree.below(n) {
		if known.kind == unix.S_IFDIR {
			m.loop.notifyInode(known.id)
		}
	}
}

// replace renames, and returns a descriptor to keep of a replaced file that had
// no other name, or 0.
func (m *mount) replace(in *gofuse.RenameIn, src, dst *movement, replaces bool) (gone int, err error) {
	var kept string
	if replaces {
		m.rememberBefore([]string{dst.from}, dst.at)
		if gone, err = dst.at.lastName(&dst.st); err != nil {
			return 0, err
		}
		if dst.keep != nil {
			kept, err = m.softDelete(in.Pid, *dst.keep, dst.at)
		}
	}
	if err == nil {
		err = unix.Renameat2(src.at.dirfd, src.at.name, dst.at.dirfd, dst.at.name, uint(in.Flags))
	}
	if err != nil {
		m.keepUndone(kept)
		if gone != 0 {
			closeFD(gone)
		}
		return 0, err
	}
	return gone, nil
}

// locateBoth opens the directories of both names and reports whether the new
// name exists.
func (m *mount) locateBoth(src, dst *movement) (exists bool, err error) {
	if src.at, err = m.backing.locate(src.from); err != nil {
		return false, err
	}
	if err := src.at.stat(&src.st); err != nil {
		return false, err
	}
	if dst.at, err = m.backing.locate(dst.from); err != nil {
		return false, err
	}
	switch err := dst.at.stat(&dst.st); {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.ENOENT):
		return false, nil
	default:
		return false, err
	}
}

// permitMove judges the entry at the old name, what is at the new one, and both
// ways when they are exchanged.
func (m *mount) permitMove(tid uint32, src, dst *movement, exists, exchange bool) gofuse.Status {
	if exists && !exchange {
		if code := m.permitReplace(tid, src, dst); !code.Ok() {
			return code
		}
	}
	if code := m.permitTree(tid, src); !code.Ok() {
		return code
	}
	if exchange && exists {
		if src.away != nil {
			return m.settle(tid, m.inside(src.from), *src.away)
		}
		if code := m.permitTree(tid, dst); !code.Ok() || dst.away == nil {
			return code
		}
		return m.settle(tid, m.inside(dst.from), *dst.away)
	}
	return gofuse.OK
}

// moveAway sends the new name of a rename away, so that the entry moves there.
func (m *mount) moveAway(tid uint32, src, dst *movement) (exists bool, err error) {
	if err := m.sendAway(tid, *src.away, false); err != nil {
		return false, err
	}
	src.at.close()
	dst.at.close()
	src.at, dst.at = place{}, place{}
	return m.locateBoth(src, dst)
}

// permitReplace judges the loss of what is at the new name: a file is written
// over, a directory removed. Where deleting it is a soft_delete it is kept.
func (m *mount) permitReplace(tid uint32, src, dst *movement) gofuse.Status {
	if code := m.permit(tid, m.inside(src.from), ask{policy.OpRename, dst.from}); !code.Ok() {
		return code
	}
	lost := ask{policy.OpWrite, dst.from}
	if dst.st.Mode&unix.S_IFMT == unix.S_IFDIR {
		lost.op = policy.OpRmdir
	}
	v := m.weigh(tid, lost)
	if v.dec.Effect == policy.Allow || v.dec.Effect == policy.Audit {
		if d := m.decide(ask{policy.OpDelete, dst.from}); d.dec.Effect == policy.SoftDelete {
			v = d
		}
	}
	if v.dec.Effect == policy.Redirect {
		src.away = &v
		return gofuse.OK
	}
	if v.dec.Effect == policy.SoftDelete {
		v.op = policy.OpRename
		dst.keep = &v
		return gofuse.OK
	}
	return m.settle(tid, m.inside(src.from), v)
}

// permitTree judges one moved entry and, for a directory, all below it that
// the rules may treat differently from it.
func (m *mount) permitTree(tid uint32, mv *movement) gofuse.Status {
	if code := m.permitOne(tid, mv.from, mv.to, mv.st.Mode, mv); !code.Ok() {
		return code
	}
	if mv.st.Mode&unix.S_IFMT != unix.S_IFDIR || m.alike(mv.from, mv.to) {
		return gofuse.OK
	}
	p, err := m.backing.openDir(mv.from)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer p.close()
	left := maxMovedEntries
	return m.permitBelow(tid, mv.from, mv.to, p, &left)
}

// alike reports whether every entry that could be moved from one tree to the
// other would be judged like the directory itself: the rules treat neither tree
// in parts, and any kind of entry may be made in the second.
func (m *mount) alike(from, to string) bool {
	const made = policy.OpCreate | policy.OpMkdir | policy.OpSymlink | policy.OpMknod
	for op := policy.OpRead; op < policy.OpAll; op <<= 1 {
		a, b := m.rules.now().policy.Tree(m.inside(from), op), m.rules.now().policy.Tree(m.inside(to), op)
		if !a.Uniform || !b.Uniform || op&made != 0 && b.Effect != policy.Allow {
			return false
		}
	}
	return true
}

// permitOne judges the move of one entry: leaving the old name, coming to be at
// the new one, and not escaping a denial that holds at the old one.
// The rename itself, mv, may go to a redirected name; what is below it may not.
func (m *mount) permitOne(tid uint32, from, to string, mode uint32, mv *movement) gofuse.Status {
	v := m.weigh(tid, ask{policy.OpRename, from}, ask{policy.OpRename, to}, ask{createOp(mode), to})
	if v.dec.Effect == policy.Redirect && mv != nil {
		mv.away = &v
	} else if code := m.settle(tid, m.inside(to), v); !code.Ok() {
		return code
	}
	return m.keepDenials(tid, from, to)
}

// keepDenials refuses a second or other name under which something would be
// permitted that is denied under the first.
func (m *mount) keepDenials(tid uint32, from, to string) gofuse.Status {
	for op := policy.OpRead; op < policy.OpAll; op <<= 1 {
		if op&contentOps == 0 {
			continue
		}
		at := m.decide(ask{op, from})
		if at.dec.Permits() || at.dec.Effect == policy.Redirect && m.backing.away.has(from) {
			continue
		}
		if m.decide(ask{op, to}).dec.Permits() {
			at.dec.Effect = policy.Deny
			at.diag.Hint = "the new name would lift a denial that holds for the old one; copy the file if it may be read"
			m.report(tid, m.inside(to), at)
			return gofuse.EACCES
		}
	}
	return gofuse.OK
}

// permitBelow judges the entries of an open directory, deepest last.
func (m *mount) permitBelow(tid uint32, from, to string, dir place, left *int) gofuse.Status {
	names, err := entries(dir, left)
	if err != nil {
		if errors.Is(err, unix.E2BIG) {
			return m.refuse(tid, ask{policy.OpRename, from}, "the directory holds too many entries to judge its rename",
				"rename the directories in it one by one")
		}
		return gofuse.Status(errno(err))
	}
	for _, e := range names {
		oldRel, newRel := joinPath(from, e.Name), joinPath(to, e.Name)
		if code := m.permitOne(tid, oldRel, newRel, e.Mode, nil); !code.Ok() {
			return code
		}
		if e.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		fd, err := unix.Openat(dir.dirfd, e.Name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return gofuse.Status(errno(err))
		}
		sub := place{dirfd: fd, own: true}
		code := m.permitBelow(tid, oldRel, newRel, sub, left)
		sub.close()
		if !code.Ok() {
			return code
		}
	}
	return gofuse.OK
}

// entries lists a directory with the file types, at most *left of them.
func entries(dir place, left *int) ([]gofuse.DirEntry, error) {
	fd, err := reopen(dir.dirfd, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer closeFD(fd)
	var out []gofuse.DirEntry
	buf := make([]byte, 16<<10)
	for {
		size, err := retry(func() (int, error) { return unix.Getdents(fd, buf) })
		if err != nil || size == 0 {
			return out, err
		}
		for rest := buf[:size]; len(rest) > 0; {
			var e gofuse.DirEntry
			rest = rest[e.Parse(rest):]
			if e.Name == "." || e.Name == ".." {
				continue
			}
			if *left--; *left < 0 {
				return nil, unix.E2BIG
			}
			if e.Mode&unix.S_IFMT == 0 {
				var st unix.Stat_t
				if err := (place{dirfd: fd, name: e.Name}).stat(&st); err != nil {
					return nil, err
				}
				e.Mode = st.Mode & unix.S_IFMT
			}
			out = append(out, e)
		}
	}
}
