package main

import (
	"context"
	"errors"
	"fmt"

	"agentsh/internal/refusals"
	"agentsh/internal/text"
	"agentsh/internal/wire"
	"agentsh/supervisor/audit"
)

// refusalsOf reads the denials since event from.
func refusalsOf(ctx context.Context, log *audit.Log, from uint64) (refusals.List, error) {
	var d refusals.List
	last := log.Head().Seq
	if last < from {
		return d, nil
	}
	follower, err := log.Subscribe(from)
	if err != nil {
		return d, err
	}
	for err == nil {
		var e wire.Event
		if e, err = follower.Next(context.WithoutCancel(ctx)); err != nil {
			break
		}
		d.Note(e)
		if e.Seq >= last {
			break
		}
	}
	return d, errors.Join(err, follower.Close())
}

// refusedSince reads the denials since the log had a size, after the event last. The supervisor has
// written everything about a command when it reports its end.
func refusedSince(path string, from int64, last uint64) (refusals.List, error) {
	var d refusals.List
	note := func(e wire.Event) {
		if e.Seq > last {
			d.Note(e)
		}
	}
	if err := audit.ReadSince(path, from, note); err != nil {
		return d, fmt.Errorf("audit log %s: %w", path, err)
	}
	return d, nil
}

// printable escapes control characters: an agent chooses these texts.
func printable(s string) string { return text.Visible(s) }
