package fuse

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
	"agentsh/internal/trash"
	"agentsh/internal/wire"
	"agentsh/policy"
)

// softDeletes saves files in the trash before an operation that a soft_delete rule
// allows.
type softDeletes struct {
	files  *files
	access *access
	kernel *kernel
	trash  *trash.Trash // nil: no rule needs it
}

// TrashName is the name of the donated descriptor of the trash directory. No session
// may see that directory. See [trash.Open].
const TrashName = "trash"

// save stores the file at p in the trash for the rule of v and reports it. On failure
// the operation is denied.
func (s *softDeletes) save(tid uint32, v verdict, p tree.Entry) (id string, err error) {
	s.kernel.StepAside()
	path := s.files.inside(v.rel)
	e := trash.Entry{Path: wire.Name(path), Op: v.op.String()}
	if v.dec.Rule != nil {
		e.Rule = v.dec.Rule.At()
	}
	id, err = s.trash.Save(p.DirFD, p.Name, v.op != policy.OpWrite, e)
	if err != nil {
		v.dec.Effect = policy.Deny
		v.diag.Message = strings.TrimSpace(v.diag.Message + " (it could not be kept in the trash: " + err.Error() + ")")
		s.access.report(tid, "", v)
		var number unix.Errno
		if errors.As(err, &number) {
			err = number
		}
		return "", err
	}
	s.access.report(tid, path+" kept as "+id, v)
	return id, nil
}

// saveContent saves the content of an open file before a write.
func (s *softDeletes) saveContent(tid uint32, v verdict, fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size == 0 {
		return err
	}
	_, err := s.save(tid, v, tree.Entry{DirFD: fd})
	return err
}

// undo removes what save stored for an operation that then failed.
func (s *softDeletes) undo(id string) {
	if id != "" {
		_ = s.trash.Remove(id, "failed") // a surplus copy is harmless
	}
}

// restore moves a file from the trash back to its name. It does not create missing
// parent directories.
func (s *server) restore(r *restoreRequest) (forget func(), err error) {
	if s.trash == nil {
		return nil, errors.New("there is no trash")
	}
	e, err := s.trash.Find(r.ID)
	if err != nil {
		return nil, err
	}
	path := string(e.Path)
	m := s.mountOf(path)
	if m == nil {
		return nil, fmt.Errorf("%s is in no governed mount", shown(path))
	}
	rel := strings.Trim(path[len(m.files.path):], "/")
	if err := m.putBack(s.trash, e, rel, r.Force); err != nil {
		return nil, fmt.Errorf("restore %s: %w", shown(path), err)
	}
	return func() { m.kernel.invalidate(rel) }, s.trash.Remove(r.ID, "restored")
}

// putBack creates the entry at rel again.
func (m *mount) putBack(t *trash.Trash, e trash.Entry, rel string, force bool) error {
	m.tree.Moves.Lock()
	defer m.tree.Moves.Unlock()
	p, err := m.files.locate(rel)
	if err != nil {
		return err
	}
	defer p.Close()
	if p.Name == "" {
		return errors.New("the root of a mount is not restored")
	}
	if err := m.repos.mayRedirect(rel); err != nil && !force {
		return errors.New("git reads this file, and git_guard has not checked it: inspect it, then restore it with --force")
	}
	var st unix.Stat_t
	replaces := p.Stat(&st) == nil
	if err := t.Restore(e, p.DirFD, p.Name, force); err != nil {
		return err
	}
	if replaces {
		m.files.modified(rel)
		return nil
	}
	m.files.created(rel)
	return nil
}

// purge removes files from the trash permanently.
func (s *server) purge(ids []string) error {
	if s.trash == nil {
		return errors.New("there is no trash")
	}
	for _, id := range ids {
		if err := s.trash.Remove(id, "purged"); err != nil {
			return err
		}
	}
	return nil
}
