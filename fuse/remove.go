package fuse

import (
	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
	"agentsh/policy"
)

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
