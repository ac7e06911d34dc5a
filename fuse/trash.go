package fuse

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/internal/trash"
	"agentsh/internal/wire"
	"agentsh/policy"
)

// TrashName names the donated descriptor of the trash directory, which no
// session may see. See [trash.Open].
const TrashName = "trash"

// softDelete keeps what is at p for the rule of v and reports it. On failure
// the operation is denied.
func (m *mount) softDelete(tid uint32, v verdict, p place) (id string, err error) {
	m.loop.stepAside()
	path := m.inside(v.rel)
	e := trash.Entry{Path: wire.Name(path), Op: v.op.String()}
	if v.dec.Rule != nil {
		e.Rule = &wire.RuleAt{Name: v.dec.Rule.Name, At: v.dec.Rule.Pos.String()}
	}
	id, err = m.trash.Save(p.dirfd, p.name, v.op != policy.OpWrite, e)
	if err != nil {
		v.dec.Effect = policy.Deny
		v.diag.Message = strings.TrimSpace(v.diag.Message + " (it could not be kept in the trash: " + err.Error() + ")")
		m.report(tid, "", v)
		var number unix.Errno
		if errors.As(err, &number) {
			err = number
		}
		return "", err
	}
	m.report(tid, path+" kept as "+id, v)
	return id, nil
}

// keepUndone drops what softDelete kept for an operation that then failed.
func (m *mount) keepUndone(id string) {
	if id != "" {
		_ = m.trash.Remove(id, "failed") // a copy too many is no harm
	}
}

// restore puts a kept file back under its name. Directories that are missing
// above it are not made.
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
	rel := strings.Trim(path[len(m.path):], "/")
	if err := m.putBack(s.trash, e, rel, r.Force); err != nil {
		return nil, fmt.Errorf("restore %s: %w", shown(path), err)
	}
	return func() { m.invalidate(rel) }, s.trash.Remove(r.ID, "restored")
}

// putBack makes the entry at rel again.
func (m *mount) putBack(t *trash.Trash, e trash.Entry, rel string, force bool) error {
	m.tree.moves.Lock()
	defer m.tree.moves.Unlock()
	p, err := m.backing.locate(rel)
	if err != nil {
		return err
	}
	defer p.close()
	if p.name == "" {
		return errors.New("the root of a mount is not restored")
	}
	if err := m.repos.sent(rel); err != nil && !force {
		return errors.New("git reads this file, and git_guard has not judged it: look at it, then restore it with --force")
	}
	var st unix.Stat_t
	replaces := p.stat(&st) == nil
	if err := t.Restore(e, p.dirfd, p.name, force); err != nil {
		return err
	}
	if replaces {
		m.changes.modified(rel)
		return nil
	}
	m.changes.created(rel)
	return nil
}

// purge removes kept files for good.
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
