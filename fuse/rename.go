package fuse

import (
	"errors"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/device"
	"agentsh/fuse/tree"
	"agentsh/policy"
)

// renamer answers RENAME.
type renamer struct {
	tree      *tree.Tree
	files     *files
	access    *access
	kernel    *kernel
	repos     *repositories
	soft      *softDeletes
	redirect  *redirector
	noOpenDir bool // the kernel lists without handles
}

// maxMovedEntries bounds the entries that are checked when a directory is renamed and
// the rules differ between its entries.
const maxMovedEntries = 100_000

// movement is one entry that is about to be renamed.
type movement struct {
	from, to string // relative to the mount
	st       unix.Stat_t
	at       tree.Entry
	keep     *verdict // the replaced entry is saved in the trash by this soft_delete
	away     *verdict // the new name is redirected
}

// rename moves an entry or exchanges two entries. It evaluates the rules for both
// names, also for an entry that is replaced. Below a directory it evaluates every
// entry whose rules may differ.
func (o *renamer) rename(in *gofuse.RenameIn, oldName, newName string) gofuse.Status {
	if in.Flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 {
		return gofuse.EINVAL
	}
	o.tree.Moves.Lock()
	defer o.tree.Moves.Unlock()
	oldParent, from, code := childPath(o.tree, in.NodeId, oldName)
	if !code.Ok() {
		return code
	}
	newParent, to, code := childPath(o.tree, in.Newdir, newName)
	if !code.Ok() {
		return code
	}
	src := movement{from: from, to: to}
	dst := movement{from: to, to: from}
	exists, err := o.locateBoth(&src, &dst)
	defer src.at.Close()
	defer dst.at.Close()
	if err != nil {
		return gofuse.Status(errno(err))
	}
	exchange := in.Flags&unix.RENAME_EXCHANGE != 0
	if code := o.permitMove(in.Pid, &src, &dst, exists, exchange); !code.Ok() {
		return code
	}
	sent := src.away != nil && !o.files.redirected(to)
	if sent {
		if exists, err = o.moveAway(in.Pid, &src, &dst); err != nil {
			return gofuse.Status(errno(err))
		}
	}
	if in.Flags&unix.RENAME_NOREPLACE != 0 && exists {
		return gofuse.Status(unix.EEXIST)
	}
	if exists && !exchange && sameFile(&src.st, &dst.st) {
		return gofuse.OK // both are names of one file: rename(2) does nothing
	}
	if code := o.repos.rename(in.Pid, &src, &dst, exchange); !code.Ok() {
		if sent {
			o.files.redirects.drop(to)
		}
		return code
	}
	gone, err := o.replace(in, &src, &dst, exists && !exchange)
	if err != nil {
		if sent {
			o.files.redirects.drop(to)
		}
		return gofuse.Status(errno(err))
	}
	a, b := tree.Link{Parent: oldParent, Name: oldName}, tree.Link{Parent: newParent, Name: newName}
	if exchange {
		o.tree.Exchange(a, b)
		o.files.exchanged(from, to)
		o.forgetListings(from)
		o.forgetListings(to)
		return gofuse.OK
	}
	if exists {
		o.tree.Unlink(newParent, newName, gone)
	}
	o.tree.Move(a, b)
	o.files.renamed(from, to, src.st.Mode&unix.S_IFMT == unix.S_IFDIR, exists)
	o.forgetListings(to)
	return gofuse.OK
}

// forgetListings makes the kernel drop its cached listings of a moved directory and of
// all directories below it. It does so where listing is not allowed for the whole tree
// or names may be omitted. It holds no lock that the kernel needs.
func (o *renamer) forgetListings(rel string) {
	whole := func(op policy.FileOp) bool {
		v := o.access.rules.now().policy.Tree(o.files.inside(rel), op)
		return v.Uniform && v.Effect == policy.Allow
	}
	lists := whole(policy.OpList)
	if whole(policy.OpStat) && (lists || !o.noOpenDir && whole(policy.OpRead)) {
		return
	}
	n, unknown := o.tree.Walk(rel)
	if unknown != "" {
		return
	}
	for _, known := range o.tree.Below(n) {
		if known.Kind == unix.S_IFDIR {
			o.kernel.NotifyInode(known.ID)
		}
	}
}

// replace renames. If it replaced a file that had no other name, it returns a
// descriptor of that file for the tree. Otherwise it returns 0.
func (o *renamer) replace(in *gofuse.RenameIn, src, dst *movement, replaces bool) (gone int, err error) {
	var kept string
	if replaces {
		o.files.savePrevious([]string{dst.from}, dst.at)
		if gone, err = dst.at.PinLastName(&dst.st); err != nil {
			return 0, err
		}
		if dst.keep != nil {
			kept, err = o.soft.save(in.Pid, *dst.keep, dst.at)
		}
	}
	if err == nil {
		err = unix.Renameat2(src.at.DirFD, src.at.Name, dst.at.DirFD, dst.at.Name, uint(in.Flags))
	}
	if err != nil {
		o.soft.undo(kept)
		if gone != 0 {
			tree.CloseFD(gone)
		}
		return 0, err
	}
	return gone, nil
}

// locateBoth opens the directories of both names and reports whether the new name
// exists.
func (o *renamer) locateBoth(src, dst *movement) (exists bool, err error) {
	if src.at, err = o.files.locate(src.from); err != nil {
		return false, err
	}
	if err := src.at.Stat(&src.st); err != nil {
		return false, err
	}
	if dst.at, err = o.files.locate(dst.from); err != nil {
		return false, err
	}
	switch err := dst.at.Stat(&dst.st); {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.ENOENT):
		return false, nil
	default:
		return false, err
	}
}

// permitMove evaluates the rules for the entry at the old name and for the entry at
// the new one. For an exchange it evaluates both directions.
func (o *renamer) permitMove(tid uint32, src, dst *movement, exists, exchange bool) gofuse.Status {
	if exists && !exchange {
		if code := o.permitReplace(tid, src, dst); !code.Ok() {
			return code
		}
	}
	if code := o.permitTree(tid, src); !code.Ok() {
		return code
	}
	if exchange && exists {
		if src.away != nil {
			return o.access.apply(tid, o.files.inside(src.from), *src.away)
		}
		if code := o.permitTree(tid, dst); !code.Ok() || dst.away == nil {
			return code
		}
		return o.access.apply(tid, o.files.inside(dst.from), *dst.away)
	}
	return gofuse.OK
}

// moveAway redirects the new name of a rename, so that the entry moves to the target.
func (o *renamer) moveAway(tid uint32, src, dst *movement) (exists bool, err error) {
	if err := o.redirect.send(tid, *src.away, false); err != nil {
		return false, err
	}
	src.at.Close()
	dst.at.Close()
	src.at, dst.at = tree.Entry{}, tree.Entry{}
	return o.locateBoth(src, dst)
}

// permitReplace evaluates the removal of the entry at the new name. A file is
// overwritten, a directory is removed. If deleting it is a soft_delete, it is saved in
// the trash.
func (o *renamer) permitReplace(tid uint32, src, dst *movement) gofuse.Status {
	if code := o.access.permit(tid, o.files.inside(src.from), query{policy.OpRename, dst.from}); !code.Ok() {
		return code
	}
	lost := query{policy.OpWrite, dst.from}
	if dst.st.Mode&unix.S_IFMT == unix.S_IFDIR {
		lost.op = policy.OpRmdir
	}
	v := o.access.strictest(tid, lost)
	if v.dec.Effect == policy.Allow || v.dec.Effect == policy.Audit {
		if d := o.access.decide(query{policy.OpDelete, dst.from}); d.dec.Effect == policy.SoftDelete {
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
	return o.access.apply(tid, o.files.inside(src.from), v)
}

// permitTree evaluates the rules for one moved entry. For a directory it also
// evaluates all entries below it whose rules may differ.
func (o *renamer) permitTree(tid uint32, mv *movement) gofuse.Status {
	if code := o.permitOne(tid, mv.from, mv.to, mv.st.Mode, mv); !code.Ok() {
		return code
	}
	if mv.st.Mode&unix.S_IFMT != unix.S_IFDIR || o.access.alike(mv.from, mv.to) {
		return gofuse.OK
	}
	p, err := o.files.openDir(mv.from)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer p.Close()
	left := maxMovedEntries
	return o.permitBelow(tid, mv.from, mv.to, p, &left)
}

// permitOne evaluates the move of one entry: removal at the old name, creation at the
// new one, and no escape from a denial at the old name. The renamed entry itself, mv,
// may move to a redirected name. Entries below it may not.
func (o *renamer) permitOne(tid uint32, from, to string, mode uint32, mv *movement) gofuse.Status {
	v := o.access.strictest(tid, query{policy.OpRename, from}, query{policy.OpRename, to}, query{createOp(mode), to})
	if v.dec.Effect == policy.Redirect && mv != nil {
		mv.away = &v
	} else if code := o.access.apply(tid, o.files.inside(to), v); !code.Ok() {
		return code
	}
	return o.access.keepDenials(tid, from, to)
}

// permitBelow evaluates the entries of an open directory, deepest last.
func (o *renamer) permitBelow(tid uint32, from, to string, dir tree.Entry, left *int) gofuse.Status {
	names, err := entries(dir, left)
	if err != nil {
		if errors.Is(err, unix.E2BIG) {
			return o.access.refuse(tid, query{policy.OpRename, from}, "the directory has too many entries to check its rename",
				"rename the directories in it one by one")
		}
		return gofuse.Status(errno(err))
	}
	for _, e := range names {
		oldRel, newRel := tree.Join(from, e.Name), tree.Join(to, e.Name)
		if code := o.permitOne(tid, oldRel, newRel, e.Mode, nil); !code.Ok() {
			return code
		}
		if e.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		fd, err := unix.Openat(dir.DirFD, e.Name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return gofuse.Status(errno(err))
		}
		sub := tree.OwnedEntry(fd)
		code := o.permitBelow(tid, oldRel, newRel, sub, left)
		sub.Close()
		if !code.Ok() {
			return code
		}
	}
	return gofuse.OK
}

// entries lists a directory with the file types, at most *left of them.
func entries(dir tree.Entry, left *int) ([]gofuse.DirEntry, error) {
	fd, err := tree.Reopen(dir.DirFD, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer tree.CloseFD(fd)
	var out []gofuse.DirEntry
	buf := make([]byte, 16<<10)
	for {
		size, err := device.Retry(func() (int, error) { return unix.Getdents(fd, buf) })
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
				if err := (tree.Entry{DirFD: fd, Name: e.Name}).Stat(&st); err != nil {
					return nil, err
				}
				e.Mode = st.Mode & unix.S_IFMT
			}
			out = append(out, e)
		}
	}
}

// remover answers UNLINK and RMDIR.
type remover struct {
	tree   *tree.Tree
	files  *files
	access *access
	soft   *softDeletes
}

// unlink removes a name.
func (o *remover) unlink(h *gofuse.InHeader, name string) gofuse.Status {
	return o.remove(h, name, policy.OpDelete, 0)
}

// rmdir removes an empty directory.
func (o *remover) rmdir(h *gofuse.InHeader, name string) gofuse.Status {
	return o.remove(h, name, policy.OpRmdir, unix.AT_REMOVEDIR)
}

func (o *remover) remove(h *gofuse.InHeader, name string, op policy.FileOp, flags int) gofuse.Status {
	o.tree.Moves.RLock()
	defer o.tree.Moves.RUnlock()
	parent, rel, code := childPath(o.tree, h.NodeId, name)
	if !code.Ok() {
		return code
	}
	v := o.access.strictest(h.Pid, query{op, rel})
	soft := v.dec.Effect == policy.SoftDelete
	if !soft {
		if code := o.access.apply(h.Pid, "", v); !code.Ok() {
			return code
		}
	}
	p, err := o.files.locate(rel)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer p.Close()
	var st unix.Stat_t
	if err := p.Stat(&st); err != nil {
		return gofuse.Status(errno(err))
	}
	gone, err := p.PinLastName(&st)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	o.files.savePrevious([]string{rel}, p)
	var kept string
	if soft {
		kept, err = o.soft.save(h.Pid, v, p)
	}
	if err == nil {
		err = unix.Unlinkat(p.DirFD, p.Name, flags)
	}
	if err != nil {
		o.soft.undo(kept)
		if gone != 0 {
			tree.CloseFD(gone)
		}
		return gofuse.Status(errno(err))
	}
	o.tree.Unlink(parent, name, gone)
	o.files.deleted(rel)
	return gofuse.OK
}
