package docker

import (
	"context"
	"errors"
	"time"

	"github.com/moby/moby/client"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
)

// Take implements [sandbox.Taker].
func (b *Backend) Take(ctx context.Context, runID string) (sandbox.Sandbox, error) {
	c := &container{b: b, spec: sandbox.Spec{RunID: runID}}
	if err := c.find(ctx); err != nil {
		return nil, err
	}
	in := remote.New(remote.Config{Name: b.cfg.Name, Carrier: c, State: b.cfg.State, Lease: b.cfg.Lease, Release: c.remove})
	return in.Take(ctx, runID)
}

// find finds the container of a run.
func (c *container) find(ctx context.Context) error {
	owner, err := remote.Owner(c.b.cfg.State)
	if err != nil {
		return err
	}
	found, err := c.b.engine.ContainerList(ctx, client.ContainerListOptions{
		Filters: client.Filters{}.Add("label", labelOwner+"="+owner, labelRun+"="+c.spec.RunID),
	})
	if err != nil {
		return c.b.explain(err)
	}
	if len(found.Items) != 1 {
		return errors.New("its container has ended")
	}
	c.made = made{id: found.Items[0].ID, at: time.Unix(found.Items[0].Created, 0)}
	return nil
}

var _ sandbox.Taker = (*Backend)(nil)
