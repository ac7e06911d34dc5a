package record

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/runtime"
	"agentsh/internal/statedir"
	"agentsh/internal/text"
)

// Run is a run in the state directory.
type Run struct {
	Record
	Live bool   `json:"live"` // its controller is alive
	Path string `json:"path"` // its directory
}

// AgentEvent is one event of the agent, with its time.
type AgentEvent struct {
	Time      time.Time `json:"time"`
	Iteration int       `json:"iteration,omitempty"`
	runtime.Event
}

// ErrNoRun reports that there is no run with the name.
var ErrNoRun = errors.New("no such run")

// List lists the runs, the newest first. It leaves out records that cannot be
// read; the error names each of them.
func List(state statedir.Dir) ([]Run, error) { return named(state).List() }

// Find finds a run by its id, by a unique beginning of its id, or by the name
// [statedir.Latest].
func Find(state statedir.Dir, name string) (Run, error) { return named(state).Find(name) }

func named(state statedir.Dir) statedir.Named[Run] {
	return statedir.Named[Run]{
		Dir: state.Runs(), Many: "runs", None: ErrNoRun,
		Open:  func(name string) (Run, error) { return open(state, name) },
		Newer: func(a, b Run) int { return cmp.Or(b.Started.Compare(a.Started), strings.Compare(b.RunID, a.RunID)) },
	}
}

// open reads the record of one run and checks whether its controller is alive.
func open(state statedir.Dir, name string) (Run, error) {
	one := Run{Path: filepath.Join(state.Runs(), name)}
	var err error
	if one.Record, err = read(one.Path); err != nil || one.Status != StatusRunning {
		return one, err
	}
	if one.Live, err = isLocked(state, filepath.Join(one.Path, lockFile)); err != nil {
		return one, err
	}
	if !one.Live { // it may have ended since the record was read
		if one.Record, err = read(one.Path); err == nil && one.Status == StatusRunning {
			one.Status = StatusAbandoned
		}
	}
	return one, err
}

// isLocked reports whether a process has locked the file. It runs under the
// lock of the state directory: a process that creates a run never finds its
// lock file locked by this check.
func isLocked(state statedir.Dir, lock string) (bool, error) {
	unlock, err := state.Lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	f, err := os.OpenFile(lock, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// WaitEnd waits until the controller of the run has ended. The error says if the
// sandbox could not be deleted.
func (r Run) WaitEnd(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { // ends with the controller
		f, err := statedir.TakeLock(filepath.Join(r.Path, lockFile), unix.LOCK_SH)
		if err == nil {
			err = f.Close()
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	last, err := read(r.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, s := range last.Steps {
		if s.Name == StepDelete && s.Error != "" {
			return fmt.Errorf("delete sandbox: %s", text.Visible(s.Error))
		}
	}
	return nil
}

// Workdir is the directory in the sandbox in which the agent of the run in a directory
// starts; empty: it is not known yet.
func Workdir(dir string) string {
	r, err := read(dir)
	if err != nil {
		return ""
	}
	return r.Workdir
}

// ReadJSON reads a JSON file of the run's directory.
func (r Run) ReadJSON(name string, into any) error {
	file := filepath.Join(r.Path, name)
	data, err := ReadFile(file, maxJSON)
	if err != nil {
		return fmt.Errorf("run %s: %w", r.RunID, err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("run %s: read %s: %w", r.RunID, file, err)
	}
	return nil
}
