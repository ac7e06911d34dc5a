package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/internal/paths"
	"agentsh/internal/snapshot"
)

// stateDir is the state directory of the caller.
func stateDir() (layout.State, error) {
	dir, err := layout.FindState(os.Getenv, os.Geteuid())
	if err != nil {
		return "", failure.New(failure.Ours, err, "")
	}
	return dir, nil
}

// shimState is the state directory for a shim: also a user whose home cannot have one
// has a session. It is never in the workspace, whatever the caller's variables say.
func shimState(workspace string) (layout.State, error) {
	dir, err := layout.FindState(os.Getenv, os.Geteuid())
	if err == nil && paths.Within(paths.Resolve(string(dir)), workspace) {
		err = fmt.Errorf("state directory %s: it is in the workspace", dir)
	}
	if err == nil {
		err = dir.Make()
	}
	if err != nil && os.Geteuid() == 0 {
		if dir, err = layout.FindState(func(string) string { return "" }, 0); err == nil {
			err = dir.Make()
		}
	} else if err != nil {
		dir, err = layout.FallbackState(os.Geteuid())
	}
	if err != nil {
		return "", failure.New(failure.Ours, err, "")
	}
	return dir, nil
}

// openStore opens the caller's checkpoints, previous content and trash.
func openStore() (*snapshot.Store, error) {
	dir, err := stateDir()
	if err != nil {
		return nil, err
	}
	if err := dir.Make(); err != nil {
		return nil, failure.New(failure.Ours, err, "")
	}
	return snapshot.OpenStore(dir.Store())
}

// storedSessions are the sessions of the caller's store. Reading them makes no store.
func storedSessions() ([]*snapshot.Session, error) {
	dir, err := stateDir()
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(dir.Store()); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	store, err := snapshot.OpenStore(dir.Store())
	if err != nil {
		return nil, err
	}
	return store.Sessions()
}
