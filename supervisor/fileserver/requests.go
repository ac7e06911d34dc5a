package fileserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// errNone is returned for requests that need a file server if the session has
// none.
var errNone = errors.New("the session has no file server")

// Running reports whether the session has a file server.
func (s *Server) Running() bool { return s != nil && s.control != nil }

// Prepare makes the server load another policy. [Server.Commit] activates it.
func (s *Server) Prepare(ctx context.Context, p *policy.Policy) error {
	if s == nil {
		return nil
	}
	return s.control.Prepare(ctx, policyConfig(p))
}

// Commit activates the prepared policy.
func (s *Server) Commit(ctx context.Context) error {
	if s == nil {
		return nil
	}
	return s.control.Commit(ctx)
}

// Changes returns the change record of the workspace.
func (s *Server) Changes(ctx context.Context) ([]wire.Change, error) {
	if !s.Running() {
		return nil, nil
	}
	return s.control.Changes(ctx, s.cfg.Mounts[0].Path)
}

// ChangeParts calls fn with each part of the change record of the workspace, and with
// an empty part every second while the record is made.
func (s *Server) ChangeParts(ctx context.Context, fn func([]wire.Change)) error {
	return s.control.ChangeParts(ctx, s.cfg.Mounts[0].Path, fn)
}

// Invalidate drops the kernel's cached content of governed paths. Commands
// then see what was written to the backing directory.
func (s *Server) Invalidate(ctx context.Context, paths ...string) error {
	if s == nil {
		return nil
	}
	return s.control.Invalidate(ctx, paths...)
}

// Restore restores a deleted file. force replaces an existing file.
func (s *Server) Restore(ctx context.Context, id string, force bool) error {
	if s == nil {
		return errNone
	}
	return s.control.Restore(ctx, id, force)
}

// Purge permanently removes deleted files.
func (s *Server) Purge(ctx context.Context, ids ...string) error {
	if s == nil {
		return errNone
	}
	return s.control.Purge(ctx, ids...)
}

// Freeze blocks changes to the workspace for a checkpoint or a rollback. When
// no change is in progress it writes one byte to out. Then it reads from in the
// list of changes that were made meanwhile, as JSON. It unfreezes the workspace
// when it has the list, or when the connection or ctx ends.
func (s *Server) Freeze(ctx context.Context, in io.Reader, out io.Writer) error {
	if s == nil {
		return errNone
	}
	if err := s.control.Freeze(ctx); err != nil {
		return err
	}
	list, err := frozen(ctx, in, out)
	thaw, end := context.WithTimeout(context.WithoutCancel(ctx), thawTimeout)
	defer end()
	return errors.Join(err, s.control.Unfreeze(thaw, s.cfg.Mounts[0].Path, list))
}

// frozen reports that the files are frozen, and waits for the list of changes.
func frozen(ctx context.Context, in io.Reader, out io.Writer) (list []wire.Change, err error) {
	if _, err := out.Write([]byte{0}); err != nil {
		return nil, err
	}
	received := make(chan error, 1)
	go func() { received <- json.NewDecoder(in).Decode(&list) }() // ends with the connection at the latest
	select {
	case err := <-received:
		return list, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
