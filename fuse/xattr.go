package fuse

import (
	"bytes"
	"strings"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/policy"
)

// xattrs are the user.* attributes only. Capabilities, labels and access lists
// would change what the host's kernel enforces, or what nobody enforces here.
const xattrPrefix = "user."

// pinned judges an operation on a node and hands it over as a path.
func (m *mount) pinned(h *gofuse.InHeader, op policy.FileOp, do func(path string, n *node) error) gofuse.Status {
	m.tree.moves.RLock()
	defer m.tree.moves.RUnlock()
	n := m.tree.node(h.NodeId)
	if n == nil {
		return gofuse.Status(syscall.ESTALE)
	}
	if code := m.permitNode(h.Pid, n, op); !code.Ok() {
		return code
	}
	if n.kind != unix.S_IFREG && n.kind != unix.S_IFDIR {
		return gofuse.EPERM // see xattr(7): user attributes are for files and directories
	}
	fd, own, err := m.pinNode(n, nil)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	if own {
		defer closeFD(fd)
	}
	return gofuse.Status(errno(do(procPath(fd), n)))
}

// GetXAttr reads an attribute.
func (m *mount) GetXAttr(_ <-chan struct{}, h *gofuse.InHeader, name string, dest []byte) (uint32, gofuse.Status) {
	if !strings.HasPrefix(name, xattrPrefix) {
		return 0, gofuse.ENODATA
	}
	var size int
	code := m.pinned(h, policy.OpStat, func(path string, _ *node) (err error) {
		size, err = unix.Getxattr(path, name, dest)
		return err
	})
	if code == gofuse.EPERM {
		code = gofuse.ENODATA
	}
	return uint32(size), code
}

// ListXAttr lists attributes.
func (m *mount) ListXAttr(_ <-chan struct{}, h *gofuse.InHeader, dest []byte) (uint32, gofuse.Status) {
	var names []byte
	code := m.pinned(h, policy.OpStat, func(path string, _ *node) (err error) {
		buf := make([]byte, 64<<10) // XATTR_LIST_MAX
		size, err := unix.Listxattr(path, buf)
		if err != nil {
			return err
		}
		for _, name := range bytes.SplitAfter(buf[:size], []byte{0}) {
			if bytes.HasPrefix(name, []byte(xattrPrefix)) {
				names = append(names, name...)
			}
		}
		return nil
	})
	if code == gofuse.EPERM {
		return 0, gofuse.OK
	}
	if code.Ok() && len(dest) < len(names) {
		return uint32(len(names)), gofuse.ERANGE
	}
	copy(dest, names)
	return uint32(len(names)), code
}

// SetXAttr writes an attribute.
func (m *mount) SetXAttr(_ <-chan struct{}, in *gofuse.SetXAttrIn, name string, data []byte) gofuse.Status {
	if !strings.HasPrefix(name, xattrPrefix) {
		return m.refuseXattr(&in.InHeader, name)
	}
	return m.pinned(&in.InHeader, policy.OpXattr, func(path string, n *node) error {
		if err := unix.Setxattr(path, name, data, int(in.Flags)); err != nil {
			return err
		}
		m.markChanged(n)
		return nil
	})
}

// RemoveXAttr removes an attribute.
func (m *mount) RemoveXAttr(_ <-chan struct{}, h *gofuse.InHeader, name string) gofuse.Status {
	if !strings.HasPrefix(name, xattrPrefix) {
		return m.refuseXattr(h, name)
	}
	return m.pinned(h, policy.OpXattr, func(path string, n *node) error {
		if err := unix.Removexattr(path, name); err != nil {
			return err
		}
		m.markChanged(n)
		return nil
	})
}

// refuseXattr answers for attributes that are not user.*: what changes the rights
// of a program is not permitted, access lists and the rest are not supported.
func (m *mount) refuseXattr(h *gofuse.InHeader, name string) gofuse.Status {
	if !strings.HasPrefix(name, "security.") && !strings.HasPrefix(name, "trusted.") {
		return gofuse.ENOTSUP
	}
	m.tree.moves.RLock()
	defer m.tree.moves.RUnlock()
	var rel string
	if n := m.tree.node(h.NodeId); n != nil {
		if names := m.tree.paths(n); len(names) > 0 {
			rel = names[0]
		}
	}
	return m.refuse(h.Pid, ask{policy.OpXattr, rel}, "attribute "+shown(name)+" is not set in a session", "only user.* attributes may be set")
}
