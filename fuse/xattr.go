package fuse

import (
	"bytes"
	"strings"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/device"
	"agentsh/fuse/tree"
	"agentsh/policy"
)

// xattrs answers requests about extended attributes. Only attributes in user.* are
// served. Capabilities, labels and access lists would change what the host's kernel
// enforces, or nothing enforces them here.
type xattrs struct {
	tree   *tree.Tree
	access *access
	nodes  *nodeFiles
}

// pinned evaluates the rules for an operation on a node and calls do with a path to
// its file.
func (o *xattrs) pinned(h *gofuse.InHeader, op policy.FileOp, do func(path string, n *tree.Node) error) gofuse.Status {
	o.tree.Moves.RLock()
	defer o.tree.Moves.RUnlock()
	n := o.tree.Node(h.NodeId)
	if n == nil {
		return gofuse.Status(syscall.ESTALE)
	}
	_, all := o.tree.Bindings(n)
	if len(all) == 0 {
		var err error
		if n, err = o.nodes.standIn(n); err != nil {
			return gofuse.Status(errno(err))
		}
		_, all = o.tree.Bindings(n)
	}
	if code := o.access.permitAll(h.Pid, all, op); !code.Ok() {
		return code
	}
	if n.Kind() != unix.S_IFREG && n.Kind() != unix.S_IFDIR {
		return gofuse.EPERM // see xattr(7): user attributes are for files and directories
	}
	fd, own, err := o.nodes.pin(h.Pid, n, nil)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	if own {
		defer tree.CloseFD(fd)
	}
	return gofuse.Status(errno(do(tree.ProcPath(fd), n)))
}

// getXAttr reads an attribute.
func (o *xattrs) getXAttr(h *gofuse.InHeader, name string, dest []byte) (uint32, gofuse.Status) {
	if !strings.HasPrefix(name, device.UserXattrs) {
		return 0, gofuse.ENODATA
	}
	var size int
	code := o.pinned(h, policy.OpStat, func(path string, _ *tree.Node) (err error) {
		size, err = unix.Getxattr(path, name, dest)
		return err
	})
	if code == gofuse.EPERM {
		code = gofuse.ENODATA
	}
	return uint32(size), code
}

// listXAttr lists attributes.
func (o *xattrs) listXAttr(h *gofuse.InHeader, dest []byte) (uint32, gofuse.Status) {
	var names []byte
	code := o.pinned(h, policy.OpStat, func(path string, _ *tree.Node) (err error) {
		buf := make([]byte, 64<<10) // XATTR_LIST_MAX
		size, err := unix.Listxattr(path, buf)
		if err != nil {
			return err
		}
		for _, name := range bytes.SplitAfter(buf[:size], []byte{0}) {
			if bytes.HasPrefix(name, []byte(device.UserXattrs)) {
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

// setXAttr writes an attribute.
func (o *xattrs) setXAttr(in *gofuse.SetXAttrIn, name string, data []byte) gofuse.Status {
	if !strings.HasPrefix(name, device.UserXattrs) {
		return o.refuseXattr(&in.InHeader, name)
	}
	return o.pinned(&in.InHeader, policy.OpXattr, func(path string, n *tree.Node) error {
		if err := unix.Setxattr(path, name, data, int(in.Flags)); err != nil {
			return err
		}
		o.nodes.markChanged(n)
		return nil
	})
}

// removeXAttr removes an attribute.
func (o *xattrs) removeXAttr(h *gofuse.InHeader, name string) gofuse.Status {
	if !strings.HasPrefix(name, device.UserXattrs) {
		return o.refuseXattr(h, name)
	}
	return o.pinned(h, policy.OpXattr, func(path string, n *tree.Node) error {
		if err := unix.Removexattr(path, name); err != nil {
			return err
		}
		o.nodes.markChanged(n)
		return nil
	})
}

// refuseXattr answers for attributes that are not user.*. It denies those that change
// the rights of a program. Access lists and the rest are not supported.
func (o *xattrs) refuseXattr(h *gofuse.InHeader, name string) gofuse.Status {
	if !strings.HasPrefix(name, "security.") && !strings.HasPrefix(name, "trusted.") {
		return gofuse.ENOTSUP
	}
	o.tree.Moves.RLock()
	defer o.tree.Moves.RUnlock()
	var rel string
	if n := o.tree.Node(h.NodeId); n != nil {
		if names := o.tree.Paths(n); len(names) > 0 {
			rel = names[0]
		}
	}
	what := query{policy.OpXattr, rel}
	return o.access.refuse(h.Pid, what, "attribute "+shown(name)+" is not set in a session", "only user.* attributes may be set")
}
