package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/internal/shim"
	"agentsh/supervisor/host"
)

// shimSession opens the session of a shim: its own, or the shared one.
func (o *execOptions) shimSession(ctx context.Context) (runner, error) {
	session, err := shim.Session("/")
	if err != nil {
		return nil, failure.New(failure.Ours, err, "")
	}
	if session == shim.Own {
		return o.openOneShot()
	}
	registry, err := sharedRegistry()
	if err != nil {
		return nil, failure.New(failure.Ours, err, "")
	}
	return o.joinShared(ctx, registry)
}

// joinShared connects to the session of this user's shells, and starts it where there is
// none.
func (o *execOptions) joinShared(ctx context.Context, registry *host.Registry) (*attached, error) {
	client, one, err := registry.Join(ctx, shim.SessionName, version, func() (host.Described, error) {
		plan, err := o.plan()
		if err != nil {
			return host.Described{}, err
		}
		boot, err := o.bootstrap(plan)
		if err == nil {
			o.tell(plan)
		}
		return host.Described{Config: o.config, Boot: boot}, err
	})
	if f := (*failure.Failure)(nil); errors.As(err, &f) {
		return nil, err
	}
	if err != nil {
		return nil, sessionFailure(err)
	}
	return &attached{client: client, one: one, cwd: hereIn(one.Workspace), shim: true}, nil
}

// sharedRegistry is where the shared session of this user is: always in the same place,
// whatever a caller's variables say.
func sharedRegistry() (*host.Registry, error) {
	dir := "/run/agentsh"
	if os.Geteuid() != 0 {
		state, err := layout.FallbackState(os.Geteuid())
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(string(state), "run/agentsh")
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil { // below a directory of this user alone, or /run
		return nil, fmt.Errorf("runtime directory: %w", err)
	}
	registry, err := host.OpenRegistryIn(dir)
	if err != nil {
		return nil, err
	}
	registry.Program = shim.Program
	return registry, nil
}

// serveShared is the entry point of a container whose shells share a session: it opens
// the session and ends it when this process is asked to end.
func serveShared(ctx context.Context) error {
	session, err := shim.Session("/")
	if err == nil && session != shim.Shared {
		err = errors.New("no --bootstrap-fd, and the shells of this machine share no session")
	}
	if err != nil {
		return failure.New(failure.Ours, err,
			"agentctl starts this command; 'agentsh shim install --session shared' makes it the entry point of a container")
	}
	o := execOptions{config: layout.Config, shim: true}
	registry, err := sharedRegistry()
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	a, err := o.joinShared(ctx, registry)
	if err == nil {
		err = errors.Join(a.close(), registry.AwaitEnd(ctx, shim.SessionName))
	}
	if ctx.Err() == nil {
		if err == nil {
			err = failure.New(failure.Ours, errors.New("the session has ended"), "'agentsh events "+a.one.Audit+"' says why")
		}
		return err
	}
	if err := registry.Destroy(context.WithoutCancel(ctx), shim.SessionName); err != nil && !errors.Is(err, host.ErrNoSession) {
		return failure.New(failure.Ours, err, "")
	}
	return nil
}
