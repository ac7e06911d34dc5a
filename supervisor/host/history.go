package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"agentsh/internal/snapshot"
	"agentsh/internal/wire"
)

// maxLines bounds the lines of one answer, in bytes. Further changes have none.
const maxLines = 16 << 20

// errNoHistory is the answer of a session that stores nothing, or has no file server.
var errNoHistory = &wire.Error{
	Code:    wire.CodeUnsupported,
	Message: "this session has no earlier states: it stores none, or has no file server",
}

// History implements [channel.Historian] for the first governed directory.
func (h *handler) History(ctx context.Context, r wire.HistoryRequest) ([]wire.HistoryEntry, error) {
	if h.boot.StoreDir == "" || len(h.boot.Governed) == 0 || h.session.Files() == nil {
		return nil, errNoHistory
	}
	store, err := snapshot.OpenStore(h.boot.StoreDir)
	if err != nil {
		return nil, err
	}
	if r.Changes {
		return h.changedLines(ctx, store)
	}
	all, err := store.Checkpoints(h.boot.Governed[0].Backing)
	if err != nil {
		return nil, err
	}
	out, err := h.checkpoints(ctx, all, r)
	return out, errors.Join(err, all.Close())
}

// checkpoints does what a request says of checkpoints.
func (h *handler) checkpoints(ctx context.Context, all *snapshot.Checkpoints, r wire.HistoryRequest) ([]wire.HistoryEntry, error) {
	freeze := func() (*snapshot.Freeze, error) { return h.freeze(ctx) }
	switch {
	case r.Create:
		one, err := all.Create(r.Name, freeze)
		if err != nil {
			return nil, err
		}
		return []wire.HistoryEntry{checkpointEntry(one)}, nil
	case r.List:
		list, err := all.List()
		out := []wire.HistoryEntry{}
		for _, one := range list {
			out = append(out, checkpointEntry(one))
		}
		return out, err
	case r.Rollback != "":
		list, err := all.Rollback(r.Rollback, freeze)
		out := []wire.HistoryEntry{}
		for _, c := range list {
			out = append(out, wire.HistoryEntry{Change: &c})
		}
		return out, err
	case len(r.Delete) > 0:
		return []wire.HistoryEntry{}, all.Delete(r.Delete...)
	}
	return nil, &wire.Error{Code: wire.CodeUnsupported, Message: "the request about earlier states is empty"}
}

func checkpointEntry(c snapshot.Checkpoint) wire.HistoryEntry {
	return wire.HistoryEntry{Checkpoint: &wire.Checkpoint{
		ID: c.ID, Name: c.Name, Time: c.Time, Files: c.Files, Bytes: c.Bytes, Stored: c.Stored, Unfinished: c.Unfinished,
	}}
}

// freeze freezes the files of the session.
func (h *handler) freeze(ctx context.Context) (*snapshot.Freeze, error) {
	in, report := io.Pipe()
	frozen, given := io.Pipe()
	ended := make(chan struct{})
	var failed error // set before ended is closed
	go func() {      // ends in Release, or with an error
		failed = h.session.Files().Freeze(ctx, in, given)
		_ = given.CloseWithError(errors.Join(failed, io.ErrClosedPipe)) // never fails
		_ = in.CloseWithError(io.ErrClosedPipe)                         // Release must not wait for a reader
		close(ended)
	}()
	if _, err := io.ReadFull(frozen, make([]byte, 1)); err != nil {
		_ = report.Close() // never fails
		<-ended
		return nil, fmt.Errorf("freeze: %w", errors.Join(failed, err))
	}
	return &snapshot.Freeze{Ended: ended, Release: func(list []wire.Change) error {
		err := json.NewEncoder(report).Encode(append([]wire.Change{}, list...))
		_ = report.Close() // never fails
		<-ended
		return errors.Join(err, failed)
	}}, nil
}

// changedLines is the change record with the lines of files that changed.
func (h *handler) changedLines(ctx context.Context, store *snapshot.Store) ([]wire.HistoryEntry, error) {
	list, err := h.Changes(ctx)
	if err != nil {
		return nil, err
	}
	stored, err := store.Sessions()
	if err != nil {
		return nil, err
	}
	var sides snapshot.Sides
	for _, s := range stored {
		if s.Session == h.session.ID() {
			sides = snapshot.Sides{Before: s.Since(list), After: snapshot.InWorkspace(h.boot.Governed[0].Backing)}
		}
	}
	if sides.Before == nil {
		return nil, errNoHistory
	}
	out := make([]wire.HistoryEntry, 0, len(list))
	left := maxLines
	for _, c := range list {
		e := wire.HistoryEntry{Change: &c, Without: "the answer has too many lines"}
		if left > 0 && ctx.Err() == nil {
			if e.Lines, e.Without, err = sides.Lines(c); err != nil {
				return nil, err
			}
			left -= len(e.Lines)
		}
		out = append(out, e)
	}
	return out, ctx.Err()
}
