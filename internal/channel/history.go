package channel

import (
	"context"
	"errors"
	"fmt"
	"io"

	"agentsh/internal/wire"
)

// Historian is a [Handler] whose session has earlier states.
type Historian interface {
	History(ctx context.Context, r wire.HistoryRequest) ([]wire.HistoryEntry, error)
}

// maxHistory is the largest entry of an answer, in bytes: the lines of two files of 1 MiB, encoded.
const maxHistory = 16 << 20

// checkpointSize is what a checkpoint holds besides its names, in bytes.
const checkpointSize = 100

// History sends a request about earlier states, and calls fn with each entry of the answer. It has no
// time limit: a checkpoint of many files takes long.
func (c *Client) History(ctx context.Context, r wire.HistoryRequest, fn func(wire.HistoryEntry) error) error {
	named := 0 // bytes of the names of checkpoints, which a caller holds
	answered := func(listing io.Reader) error {
		return eachOf(listing, maxHistory, func(e wire.HistoryEntry) error {
			if c := e.Checkpoint; c != nil {
				if named += checkpointSize + len(c.ID) + len(c.Name); named > maxHistory {
					return &wire.Error{Code: wire.CodeLimit, Message: fmt.Sprintf("the list of checkpoints has more than %d MiB", maxHistory>>20)}
				}
			}
			return fn(e)
		})
	}
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpHistory, History: &r}, body{listing: answered, untimed: true})
	if errors.Is(err, io.EOF) {
		err = errors.New("the supervisor ended the answer early")
	}
	return wrap("history", "", err)
}

// historyWords describe a request; empty: it only reads.
func historyWords(r *wire.HistoryRequest) string {
	switch {
	case r == nil:
		return ""
	case r.Create:
		return "checkpoint " + r.Name
	case r.Rollback != "":
		return "rollback to checkpoint " + r.Rollback
	case len(r.Delete) > 0:
		return "forget checkpoints"
	}
	return ""
}
