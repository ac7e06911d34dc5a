package fuse

import (
	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/device"
)

// dispatcher is the file system of one mount as go-fuse calls it. It has one method
// for each request, which calls the handler for that request. If a rule requires an
// approval, the dispatcher requests it and calls the handler again, see [asker].
type dispatcher struct {
	lockRequests
	*refusals

	asker   asker
	replays *replays

	lookups     *lookups
	setattr     *setattr
	data        *data
	directories *directories
	creator     *creator
	remover     *remover
	renamer     *renamer
	xattrs      *xattrs
}

var _ device.Handler = (*dispatcher)(nil)

// String returns the name of the filesystem.
func (d *dispatcher) String() string { return "agentsh" }

// Lookup answers LOOKUP: it finds an entry in a directory.
func (d *dispatcher) Lookup(_ <-chan struct{}, h *gofuse.InHeader, name string, out *gofuse.EntryOut) gofuse.Status {
	if code, replayed := d.replays.lookup(h, name, out); replayed {
		return code
	}
	return d.asker.decidedCached(h.Pid, func() gofuse.Status { return d.lookups.lookup(h, name, out) })
}

// GetAttr answers stat.
func (d *dispatcher) GetAttr(_ <-chan struct{}, in *gofuse.GetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	code := d.asker.decidedCached(in.Pid, func() gofuse.Status { return d.lookups.getAttr(in, out) })
	if code == gofuse.Status(unix.ESTALE) {
		code = d.final(&in.InHeader, code)
	}
	d.data.nodes.retries.permission(in.Pid, code)
	return code
}

// Statx answers stat with a time of birth.
func (d *dispatcher) Statx(_ <-chan struct{}, in *gofuse.StatxIn, out *gofuse.StatxOut) gofuse.Status {
	return d.asker.decidedCached(in.Pid, func() gofuse.Status { return d.lookups.statx(in, out) })
}

// SetAttr answers SETATTR: it changes mode, owner, size or times.
func (d *dispatcher) SetAttr(_ <-chan struct{}, in *gofuse.SetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	if d.replays.from(in.Pid) {
		return d.replays.attributes(&in.InHeader, out)
	}
	return d.final(&in.InHeader, d.asker.decided(in.Pid, func() gofuse.Status { return d.setattr.setAttr(in, out) }))
}

// Mknod makes a regular file, FIFO or socket.
func (d *dispatcher) Mknod(_ <-chan struct{}, in *gofuse.MknodIn, name string, out *gofuse.EntryOut) gofuse.Status {
	if d.replays.from(in.Pid) {
		return d.replays.create(&in.InHeader, name, out, d.lookups.lookup)
	}
	return d.final(&in.InHeader, d.asker.decided(in.Pid, func() gofuse.Status { return d.creator.mknod(in, name, out) }))
}

// Mkdir makes a directory.
func (d *dispatcher) Mkdir(_ <-chan struct{}, in *gofuse.MkdirIn, name string, out *gofuse.EntryOut) gofuse.Status {
	if d.replays.from(in.Pid) {
		return d.replays.create(&in.InHeader, name, out, d.lookups.lookup)
	}
	return d.final(&in.InHeader, d.asker.decided(in.Pid, func() gofuse.Status { return d.creator.mkdir(in, name, out) }))
}

// Symlink makes a symbolic link.
func (d *dispatcher) Symlink(_ <-chan struct{}, h *gofuse.InHeader, text, name string, out *gofuse.EntryOut) gofuse.Status {
	if d.replays.from(h.Pid) {
		return d.replays.create(h, name, out, d.lookups.lookup)
	}
	return d.final(h, d.asker.decided(h.Pid, func() gofuse.Status { return d.creator.symlink(h, text, name, out) }))
}

// Link gives a file a second name.
func (d *dispatcher) Link(_ <-chan struct{}, in *gofuse.LinkIn, name string, out *gofuse.EntryOut) gofuse.Status {
	if d.replays.from(in.Pid) {
		return gofuse.EPERM
	}
	return d.final(&in.InHeader, d.asker.decided(in.Pid, func() gofuse.Status { return d.creator.link(in, name, out) }))
}

// Create makes a regular file and opens it.
func (d *dispatcher) Create(_ <-chan struct{}, in *gofuse.CreateIn, name string, out *gofuse.CreateOut) gofuse.Status {
	if d.replays.from(in.Pid) {
		return gofuse.EPERM
	}
	return d.final(&in.InHeader, d.asker.decided(in.Pid, func() gofuse.Status { return d.creator.create(in, name, out) }))
}

// Rename moves an entry or exchanges two entries.
func (d *dispatcher) Rename(_ <-chan struct{}, in *gofuse.RenameIn, oldName, newName string) gofuse.Status {
	if d.replays.from(in.Pid) {
		return gofuse.EPERM
	}
	return d.final(&in.InHeader, d.asker.decided(in.Pid, func() gofuse.Status { return d.renamer.rename(in, oldName, newName) }))
}

// Unlink removes a name.
func (d *dispatcher) Unlink(_ <-chan struct{}, h *gofuse.InHeader, name string) gofuse.Status {
	if d.replays.from(h.Pid) {
		return d.replays.remove(h, name)
	}
	return d.final(h, d.asker.decided(h.Pid, func() gofuse.Status { return d.remover.unlink(h, name) }))
}

// Rmdir removes an empty directory.
func (d *dispatcher) Rmdir(_ <-chan struct{}, h *gofuse.InHeader, name string) gofuse.Status {
	if d.replays.from(h.Pid) {
		return d.replays.remove(h, name)
	}
	return d.final(h, d.asker.decided(h.Pid, func() gofuse.Status { return d.remover.rmdir(h, name) }))
}

// Open opens a file.
func (d *dispatcher) Open(_ <-chan struct{}, in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	return d.final(&in.InHeader, d.asker.decided(in.Pid, func() gofuse.Status { return d.data.open(in, out) }))
}

// OpenDir opens a directory.
func (d *dispatcher) OpenDir(_ <-chan struct{}, in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	return d.final(&in.InHeader, d.asker.decided(in.Pid, func() gofuse.Status { return d.directories.openDir(in, out) }))
}

// ReadDir lists names without attributes.
func (d *dispatcher) ReadDir(_ <-chan struct{}, in *gofuse.ReadIn, out *gofuse.DirEntryList) gofuse.Status {
	return d.asker.decidedCached(in.Pid, func() gofuse.Status { return d.directories.readDir(in, out, false) })
}

// ReadDirPlus lists names with attributes.
func (d *dispatcher) ReadDirPlus(_ <-chan struct{}, in *gofuse.ReadIn, out *gofuse.DirEntryList) gofuse.Status {
	return d.asker.decidedCached(in.Pid, func() gofuse.Status { return d.directories.readDir(in, out, true) })
}

// SetXAttr writes an extended attribute.
func (d *dispatcher) SetXAttr(_ <-chan struct{}, in *gofuse.SetXAttrIn, name string, data []byte) gofuse.Status {
	return d.final(&in.InHeader, d.asker.decided(in.Pid, func() gofuse.Status { return d.xattrs.setXAttr(in, name, data) }))
}

// RemoveXAttr removes an extended attribute.
func (d *dispatcher) RemoveXAttr(_ <-chan struct{}, h *gofuse.InHeader, name string) gofuse.Status {
	return d.final(h, d.asker.decided(h.Pid, func() gofuse.Status { return d.xattrs.removeXAttr(h, name) }))
}

// Readlink reads the text of a symbolic link.
func (d *dispatcher) Readlink(_ <-chan struct{}, h *gofuse.InHeader) (text []byte, code gofuse.Status) {
	code = d.asker.decidedCached(h.Pid, func() gofuse.Status {
		text, code = d.lookups.readlink(h)
		return code
	})
	return text, d.final(h, code)
}

// GetXAttr reads an extended attribute.
func (d *dispatcher) GetXAttr(_ <-chan struct{}, h *gofuse.InHeader, name string, dest []byte) (size uint32, code gofuse.Status) {
	code = d.asker.decided(h.Pid, func() gofuse.Status {
		size, code = d.xattrs.getXAttr(h, name, dest)
		return code
	})
	return size, d.final(h, code)
}

// ListXAttr lists extended attributes.
func (d *dispatcher) ListXAttr(_ <-chan struct{}, h *gofuse.InHeader, dest []byte) (size uint32, code gofuse.Status) {
	code = d.asker.decided(h.Pid, func() gofuse.Status {
		size, code = d.xattrs.listXAttr(h, dest)
		return code
	})
	return size, d.final(h, code)
}

// Forget releases references of the kernel to a node.
func (d *dispatcher) Forget(id, count uint64) { d.lookups.tree.Forget(id, count) }

// StatFs returns the figures of the filesystem.
func (d *dispatcher) StatFs(_ <-chan struct{}, h *gofuse.InHeader, out *gofuse.StatfsOut) gofuse.Status {
	return d.lookups.statFs(h, out)
}

// ReadInto reads through an open handle.
func (d *dispatcher) ReadInto(in *gofuse.ReadIn, buf []byte) (size int, sent func(), code gofuse.Status) {
	return d.data.read(in, buf)
}

// Read is [dispatcher.ReadInto] as go-fuse calls it.
func (d *dispatcher) Read(_ <-chan struct{}, in *gofuse.ReadIn, buf []byte) (gofuse.ReadResult, gofuse.Status) {
	size, sent, code := d.data.read(in, buf)
	if !code.Ok() {
		return nil, code
	}
	if sent != nil {
		sent() // nobody says here when the answer is sent
	}
	return gofuse.ReadResultData(buf[:size]), gofuse.OK
}

// Write writes through an open handle.
func (d *dispatcher) Write(_ <-chan struct{}, in *gofuse.WriteIn, data []byte) (uint32, gofuse.Status) {
	return d.data.write(in, data)
}

// Writev is never called, because requests arrive in one piece.
func (d *dispatcher) Writev(_ <-chan struct{}, in *gofuse.WriteIn, parts [][]byte) (uint32, gofuse.Status) {
	var sum uint32
	at := *in
	for _, part := range parts {
		n, code := d.data.write(&at, part)
		sum += n
		if !code.Ok() || int(n) < len(part) {
			if sum > 0 {
				code = gofuse.OK
			}
			return sum, code
		}
		at.Offset += uint64(n)
	}
	return sum, gofuse.OK
}

// Flush answers close(2). The kernel does not send it for handles with FOPEN_NOFLUSH,
// see [noFlush].
func (d *dispatcher) Flush(_ <-chan struct{}, in *gofuse.FlushIn) gofuse.Status {
	return d.data.flush(in)
}

// Release closes a handle.
func (d *dispatcher) Release(_ <-chan struct{}, in *gofuse.ReleaseIn) { d.data.release(in) }

// Fsync makes a file durable.
func (d *dispatcher) Fsync(_ <-chan struct{}, in *gofuse.FsyncIn) gofuse.Status {
	return d.data.fsync(in)
}

// Fallocate reserves or punches space.
func (d *dispatcher) Fallocate(_ <-chan struct{}, in *gofuse.FallocateIn) gofuse.Status {
	return d.data.fallocate(in)
}

// Lseek finds data and holes.
func (d *dispatcher) Lseek(_ <-chan struct{}, in *gofuse.LseekIn, out *gofuse.LseekOut) gofuse.Status {
	return d.data.lseek(in, out)
}

// CopyFileRange copies between two open handles.
func (d *dispatcher) CopyFileRange(_ <-chan struct{}, in *gofuse.CopyFileRangeIn) (uint32, gofuse.Status) {
	return d.data.copyFileRange(in)
}

// ReleaseDir closes a handle of OpenDir.
func (d *dispatcher) ReleaseDir(in *gofuse.ReleaseIn) { d.directories.releaseDir(in) }

// FsyncDir makes the entries of a directory durable.
func (d *dispatcher) FsyncDir(_ <-chan struct{}, in *gofuse.FsyncIn) gofuse.Status {
	return d.directories.fsyncDir(in)
}

// Access is not served: the kernel decides from the attributes (default_permissions).
func (d *dispatcher) Access(<-chan struct{}, *gofuse.AccessIn) gofuse.Status { return gofuse.ENOSYS }

// Tmpfile is not served. The kernel then answers EOPNOTSUPP without further requests.
// Programs fall back to a named temporary file, whose path can be checked by rules.
func (d *dispatcher) Tmpfile(<-chan struct{}, *gofuse.CreateIn, *gofuse.CreateOut) gofuse.Status {
	return gofuse.ENOSYS
}

// lockRequests is the part of a dispatcher for requests about locks.
type lockRequests struct {
	gofuse.RawFileSystem // answers ENOSYS to every request without a method

	locks *locker
}

// GetLk finds a lock that conflicts with the request.
func (d *lockRequests) GetLk(_ <-chan struct{}, in *gofuse.LkIn, out *gofuse.LkOut) gofuse.Status {
	return d.locks.get(in, out)
}

// SetLk takes or releases a lock without waiting.
func (d *lockRequests) SetLk(_ <-chan struct{}, in *gofuse.LkIn) gofuse.Status {
	return d.locks.set(in)
}

// SetLkw takes a lock and waits for it. The answer may come later.
func (d *lockRequests) SetLkw(_ <-chan struct{}, in *gofuse.LkIn) gofuse.Status {
	return d.locks.wait(in)
}

// Interrupt ends the wait for a lock.
func (d *lockRequests) Interrupt(unique uint64) { d.locks.table.Interrupt(unique) }
