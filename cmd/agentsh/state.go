package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/internal/paths"
	"agentsh/internal/snapshot"
	"agentsh/supervisor/audit"
	"agentsh/supervisor/host"
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

// logFile is the audit log a command line means: the one it names, else the
// configuration's, else the newest in the state directory.
func logFile(args []string) (string, error) {
	if len(args) > 0 {
		return args[0], nil
	}
	operator, err := host.ReadConfig(layout.Config, true)
	if err != nil {
		return "", failure.New(failure.Ours, err, "")
	}
	if operator.Audit != "" {
		return operator.Audit, nil
	}
	state, err := stateDir()
	if err != nil {
		return "", err
	}
	path, err := newestLog(state.AuditLogs())
	if err != nil {
		return "", failure.New(failure.Ours, err, "name the log: FILE")
	}
	return path, nil
}

// newestLog is the log in dir that was written to last.
func newestLog(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var newest string
	var when time.Time
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".jsonl") || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		if newest == "" || info.ModTime().After(when) {
			newest, when = filepath.Join(dir, e.Name()), info.ModTime()
		}
	}
	if newest == "" {
		return "", fmt.Errorf("no audit log in %s", dir)
	}
	return newest, nil
}

// keyFile is the key of the anchor of a log: the one beside it where there is
// one, as a served session has it, else the one in the state directory.
func keyFile(log string) (string, error) {
	beside := log + ".key"
	if _, err := os.Lstat(beside); err == nil {
		return beside, nil
	}
	state, err := stateDir()
	return state.AuditKey(), err
}

// openAudit opens an audit log and makes its directory, for the owner only. The
// key of its anchor lies in the state directory, which no session shows.
func openAudit(path string, state layout.State) (*audit.Log, error) {
	if err := makeAuditDirectories(path, state); err != nil {
		return nil, err
	}
	return audit.Open(path, audit.Options{KeyFile: state.AuditKey()})
}

func makeAuditDirectories(path string, state layout.State) error {
	if err := state.Make(); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Dir(path), 0o700)
}

// newAuditPath names the audit log of a session that begins now.
func newAuditPath(state layout.State) string {
	return filepath.Join(state.AuditLogs(), fmt.Sprintf("%s-%d.jsonl", time.Now().UTC().Format("20060102T150405Z"), os.Getpid()))
}
