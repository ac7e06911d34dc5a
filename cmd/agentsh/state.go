package main

import (
	"os"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
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

// openStore opens the caller's checkpoints, previous content and trash.
func openStore() (*snapshot.Store, error) {
	dir, err := stateDir()
	if err != nil {
		return nil, err
	}
	return snapshot.OpenStore(dir.Store())
}
