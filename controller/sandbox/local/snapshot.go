package local

import (
	"context"

	"agentsh/internal/snapshot"
)

// Checkpoints opens the checkpoints of the governed tree and locks them. The caller closes
// them.
func (b *box) Checkpoints() (*snapshot.Checkpoints, error) {
	store, err := snapshot.OpenStore(b.dir.storeDir())
	if err != nil {
		return nil, err
	}
	return store.Checkpoints(b.dir.tree())
}

// Freezing freezes the files of the sandbox for a checkpoint or a rollback.
func (b *box) Freezing(ctx context.Context) (*snapshot.Freeze, error) {
	ended, release, err := b.Freeze(ctx)
	if err != nil {
		return nil, err
	}
	return &snapshot.Freeze{Ended: ended, Release: release}, nil
}
