package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// openKeep makes the session's part of the store. A store that commands could
// reach by their workspace is none.
func (s *Session) openKeep() error {
	if s.cfg.Files.Store == "" || len(s.cfg.Files.Governed) == 0 {
		return nil
	}
	above, err := filepath.EvalSymlinks(filepath.Dir(s.cfg.Files.Store))
	if errors.Is(err, os.ErrNotExist) {
		above, err = filepath.Dir(s.cfg.Files.Store), nil
	}
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	dir := filepath.Join(above, filepath.Base(s.cfg.Files.Store))
	for _, g := range s.cfg.Files.Governed {
		if view.Below(dir, g.Backing) {
			if s.softDeletes() {
				return fmt.Errorf("soft_delete: the trash %s would lie in the workspace", dir)
			}
			return nil
		}
	}
	store, err := snapshot.OpenStore(dir)
	if err != nil {
		return err
	}
	limits := s.cfg.Files.Trash
	if limits == (trash.Limits{}) {
		limits = trash.DefaultLimits
	}
	s.trashLimits, err = store.TrashLeft(limits)
	if err != nil {
		return err
	}
	s.kept, err = store.NewSession(snapshot.Record{
		Session: s.id, Policy: s.cfg.Policy.Name(), Workspace: s.cfg.Files.Governed, Started: time.Now(),
	})
	s.keepDir = dir
	return err
}

// softDeletes reports whether a rule of the policy needs a trash.
func (s *Session) softDeletes() bool {
	for _, rule := range s.cfg.Policy.Rules(policy.GroupFile) {
		if rule.Effect == policy.SoftDelete {
			return true
		}
	}
	return false
}

// donateKept opens what of the store the file server needs.
func (f *fileServer) donateKept() ([]launch.Donation, error) {
	s := f.session
	if s.kept == nil {
		return nil, nil
	}
	old, err := s.kept.BeforeDir()
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	out := []launch.Donation{{Name: fuse.BeforeName, File: old}}
	if !s.softDeletes() {
		return out, nil
	}
	dir, err := s.kept.TrashDir()
	if err != nil {
		return nil, fmt.Errorf("trash: %w", errors.Join(err, old.Close()))
	}
	return append(out, launch.Donation{Name: fuse.TrashName, File: dir}), nil
}

// closeKeep remembers what the session changed and says that it has ended. A
// file server that died takes its record along.
func (s *Session) closeKeep() error {
	if s.kept == nil {
		return nil
	}
	if s.files == nil || s.files.control == nil {
		return s.kept.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	list, err := s.files.changes(ctx)
	switch {
	case err == nil:
		err = s.kept.SaveChanges(list)
	case errors.Is(err, fuse.ErrServerGone):
		err = nil
	default:
		s.cfg.Log.Warn("the change record is not remembered", "session", s.id, "reason", err)
		err = nil
	}
	return errors.Join(err, s.kept.Close())
}

// Keep carries out what the session's user asks of its trash and of what was
// written behind its mounts.
func (h *host) Keep(ctx context.Context, r wire.KeepRequest) error {
	f := h.session.files
	if f == nil {
		return errors.New("the session has no file server")
	}
	switch {
	case r.Restore != "":
		return f.control.Restore(ctx, r.Restore, r.Force)
	case len(r.Purge) > 0:
		return f.control.Purge(ctx, r.Purge...)
	case len(r.Changed) > 0:
		h.changed(r.Changed)
		return nil
	}
	return errors.New("nothing was asked")
}

// Hold holds the files for a checkpoint or a rollback, for as long as its process
// lives and the session does. See [channel.Keeper].
func (h *host) Hold(ctx context.Context, in io.Reader, out io.Writer) error {
	f := h.session.files
	if f == nil {
		return errors.New("the session has no file server")
	}
	if err := f.control.Hold(ctx); err != nil {
		return err
	}
	list, err := whatWasWritten(ctx, in, out)
	release, end := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer end()
	return errors.Join(err, f.control.Release(release, f.governed[0].Path, list))
}

// whatWasWritten says that the files are held and waits for the word that they
// need not be any more.
func whatWasWritten(ctx context.Context, in io.Reader, out io.Writer) (list []wire.Change, err error) {
	if _, err := out.Write([]byte{0}); err != nil {
		return nil, err
	}
	said := make(chan error, 1)
	go func() { said <- json.NewDecoder(in).Decode(&list) }() // ends with the connection at the latest
	select {
	case err := <-said:
		return list, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
