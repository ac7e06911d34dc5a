package fuse

import (
	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/policy"
)

// Unlink removes a name.
func (m *mount) Unlink(_ <-chan struct{}, h *gofuse.InHeader, name string) gofuse.Status {
	return m.remove(h, name, policy.OpDelete, 0)
}

// Rmdir removes an empty directory.
func (m *mount) Rmdir(_ <-chan struct{}, h *gofuse.InHeader, name string) gofuse.Status {
	return m.remove(h, name, policy.OpRmdir, unix.AT_REMOVEDIR)
}

func (m *mount) remove(h *gofuse.InHeader, name string, op policy.FileOp, flags int) gofuse.Status {
	m.tree.moves.RLock()
	defer m.tree.moves.RUnlock()
	parent, rel, code := m.child(h.NodeId, name)
	if !code.Ok() {
		return code
	}
	v := m.weigh(h.Pid, ask{op, rel})
	soft := v.dec.Effect == policy.SoftDelete
	if !soft {
		if code := m.settle(h.Pid, "", v); !code.Ok() {
			return code
		}
	}
	p, err := m.backing.locate(rel)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer p.close()
	var st unix.Stat_t
	if err := p.stat(&st); err != nil {
		return gofuse.Status(errno(err))
	}
	gone, err := p.lastName(&st)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	m.rememberBefore([]string{rel}, p)
	var kept string
	if soft {
		kept, err = m.softDelete(h.Pid, v, p)
	}
	if err == nil {
		err = unix.Unlinkat(p.dirfd, p.name, flags)
	}
	if err != nil {
		m.keepUndone(kept)
		if gone != 0 {
			closeFD(gone)
		}
		return gofuse.Status(errno(err))
	}
	m.tree.unlink(parent, name, gone)
	m.changes.deleted(rel)
	return gofuse.OK
}

// lastName returns a descriptor to keep of an entry that is about to lose its
// only name, or 0 when it has others.
func (p place) lastName(st *unix.Stat_t) (int, error) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return 0, nil
	}
	return p.pin()
}
