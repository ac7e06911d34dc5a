package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"agentsh/fuse"
	"agentsh/internal/snapshot"
	"agentsh/internal/trash"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/view"
)

// store is a session's part of the store for previous content and deleted files.
// A nil store stores nothing.
type store struct {
	*snapshot.Session
	dir         string // of the whole store, outside
	trash       trash.Limits
	softDeletes bool // a rule needs the trash
}

// openStore makes a session's part of the store. It returns nil where none is
// configured, and where commands could reach it through their workspace.
func openStore(files Files, p *policy.Policy, session string) (*store, error) {
	if files.Store == "" || len(files.Governed) == 0 {
		return nil, nil
	}
	above, err := filepath.EvalSymlinks(filepath.Dir(files.Store))
	if errors.Is(err, os.ErrNotExist) {
		above, err = filepath.Dir(files.Store), nil
	}
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	st := &store{dir: filepath.Join(above, filepath.Base(files.Store)), softDeletes: softDeletes(p)}
	for _, g := range files.Governed {
		if !view.Below(st.dir, g.Backing) {
			continue
		}
		if st.softDeletes {
			return nil, fmt.Errorf("soft_delete: the trash %s would lie in the workspace", st.dir)
		}
		return nil, nil
	}
	all, err := snapshot.OpenStore(st.dir)
	if err != nil {
		return nil, err
	}
	limits := files.Trash
	if limits == (trash.Limits{}) {
		limits = trash.DefaultLimits
	}
	if st.softDeletes { // else there is no trash, and what others hold need not be counted
		if st.trash, err = all.TrashLeft(limits); err != nil {
			return nil, err
		}
	}
	st.Session, err = all.NewSession(snapshot.Record{
		Session: session, Policy: p.Name(), Workspace: files.Governed, Started: time.Now(),
	})
	if err != nil {
		return nil, err
	}
	return st, nil
}

// softDeletes reports whether a rule of the policy needs a trash.
func softDeletes(p *policy.Policy) bool {
	for _, rule := range p.Rules(policy.GroupFile) {
		if rule.Effect == policy.SoftDelete {
			return true
		}
	}
	return false
}

// path is the directory of the whole store, outside; empty: there is none.
func (st *store) path() string {
	if st == nil {
		return ""
	}
	return st.dir
}

// trashLimits bound what the file server moves to the trash.
func (st *store) trashLimits() trash.Limits {
	if st == nil {
		return trash.Limits{}
	}
	return st.trash
}

// donations opens the directories of the store that the file server writes to.
func (st *store) donations() ([]launch.Donation, error) {
	if st == nil {
		return nil, nil
	}
	before, err := st.PreviousDir()
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	out := []launch.Donation{{Name: fuse.PreviousName, File: before}}
	if !st.softDeletes {
		return out, nil
	}
	dir, err := st.TrashDir()
	if err != nil {
		return nil, fmt.Errorf("trash: %w", errors.Join(err, before.Close()))
	}
	return append(out, launch.Donation{Name: fuse.TrashName, File: dir}), nil
}

// saveTimeout bounds the wait for the next part of the change record at the end of a
// session.
const saveTimeout = 5 * time.Second

// changeParts calls a function with each part of a change record.
type changeParts func(context.Context, func([]wire.Change)) error

// read reads a change record of any size. It fails if no part comes for saveTimeout.
func (c changeParts) read() ([]wire.Change, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	limit := time.AfterFunc(saveTimeout, func() { cancel(fmt.Errorf("the file server sent nothing for %s", saveTimeout)) })
	defer limit.Stop()
	var list []wire.Change
	err := c(ctx, func(part []wire.Change) {
		limit.Reset(saveTimeout)
		list = append(list, part...)
	})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return list, err
}

// close saves the change record and marks the session as ended. The record is
// lost with a file server that died.
func (st *store) close(changes changeParts, log *slog.Logger) error {
	if st == nil {
		return nil
	}
	if changes == nil {
		return st.Close()
	}
	list, err := changes.read()
	switch {
	case err == nil:
		err = st.SaveChanges(list)
	case errors.Is(err, fuse.ErrServerGone):
		err = nil
	default:
		log.Warn("the change record is not saved", "reason", err)
		err = nil
	}
	return errors.Join(err, st.Close())
}
