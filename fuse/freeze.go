package fuse

import (
	"errors"

	"agentsh/internal/wire"
)

// freeze blocks every operation by path in all mounts. Open files can still be read
// and written.
func (s *server) freeze() {
	for _, m := range s.mounts {
		m.tree.Moves.Lock()
		m.nodes.recordOpenWrites()
	}
	s.frozen = true
}

// unfreeze ends a freeze. It adds the changes made meanwhile to the change record and
// makes the kernel drop its caches.
func (s *server) unfreeze(r *unfreeze) (forget func(), err error) {
	if !s.frozen {
		return nil, errors.New("the files are not frozen")
	}
	s.written = append(s.written, r.Changes...)
	if r.More {
		return nil, nil
	}
	list := s.written
	s.frozen, s.written = false, nil
	var written *mount
	for _, m := range s.mounts {
		if m.tag == r.Tag && len(list) > 0 {
			written = m
			m.replay(list)
		}
		m.tree.Moves.Unlock()
	}
	if written == nil {
		return nil, nil
	}
	return func() {
		written.kernel.invalidate("")
		for _, c := range list { // names that the kernel caches as absent have no nodes
			written.kernel.invalidate(string(c.Path))
		}
	}, nil
}

// replay records changes that another process made to the backing, in their order.
func (m *mount) replay(list []wire.Change) {
	for _, c := range list {
		switch c.Kind {
		case wire.Created:
			m.files.created(string(c.Path))
		case wire.Modified:
			m.files.modified(string(c.Path))
		case wire.Deleted:
			m.files.deleted(string(c.Path))
		}
	}
}
