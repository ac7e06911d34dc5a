package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/runtime"
	"agentsh/internal/statedir"
	"agentsh/internal/text"
)

// RunInfo is a run that the state directory knows.
type RunInfo struct {
	Record
	Live bool   `json:"live"` // its controller holds it
	Path string `json:"path"` // its directory
}

// AgentEvent is one thing an agent said or did, with its time.
type AgentEvent struct {
	Time      time.Time `json:"time"`
	Iteration int       `json:"iteration,omitempty"`
	runtime.Event
}

// Latest is the name of the run that began last.
const Latest = "latest"

// ErrNoRun means that no run has the name.
var ErrNoRun = errors.New("no such run")

// Runs lists the runs, the newest first. Records that cannot be read are not
// among them; the error names each.
func Runs(state statedir.Dir) ([]RunInfo, error) {
	names, err := runNames(state)
	if err != nil {
		return nil, err
	}
	var out []RunInfo
	var errs []error
	for _, name := range names {
		one, err := openRun(state, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is just beginning, or has just been removed
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, one)
	}
	slices.SortStableFunc(out, func(a, b RunInfo) int {
		return cmp.Or(b.Started.Compare(a.Started), strings.Compare(b.RunID, a.RunID))
	})
	return out, errors.Join(errs...)
}

// FindRun finds a run by its id, by a beginning of its id that no other run
// has, or by the word [Latest].
func FindRun(state statedir.Dir, name string) (RunInfo, error) {
	if name == Latest {
		all, err := Runs(state)
		if len(all) > 0 {
			return all[0], nil
		}
		return RunInfo{}, errors.Join(fmt.Errorf("%w: there is none", ErrNoRun), err)
	}
	names, err := runNames(state)
	if err != nil {
		return RunInfo{}, err
	}
	var found []string
	for _, n := range names {
		if n == name {
			found = []string{n}
			break
		}
		if strings.HasPrefix(n, name) {
			found = append(found, n)
		}
	}
	switch {
	case len(found) == 0 || name == "":
		return RunInfo{}, fmt.Errorf("%w: %.64q", ErrNoRun, name)
	case len(found) > 1:
		return RunInfo{}, fmt.Errorf("%d runs begin with %.64q: %s and %s", len(found), name, found[0], found[1])
	}
	one, err := openRun(state, found[0])
	if errors.Is(err, fs.ErrNotExist) {
		return one, fmt.Errorf("%w: %s has no record: it is just beginning, or its controller was killed then", ErrNoRun, found[0])
	}
	return one, err
}

// runNames are the names of the directories of runs.
func runNames(state statedir.Dir) ([]string, error) {
	entries, err := os.ReadDir(state.Runs())
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// openRun reads the record of one run and looks whether its controller lives.
func openRun(state statedir.Dir, name string) (RunInfo, error) {
	one := RunInfo{Path: filepath.Join(state.Runs(), name)}
	var err error
	if one.Record, err = readRecord(one.Path); err != nil || one.Status != StatusRunning {
		return one, err
	}
	if one.Live, err = held(state, filepath.Join(one.Path, "lock")); err != nil {
		return one, err
	}
	if !one.Live { // it may have ended in between
		if one.Record, err = readRecord(one.Path); err == nil && one.Status == StatusRunning {
			one.Status = StatusAbandoned
		}
	}
	return one, err
}

// held reports whether somebody holds a lock. It is asked under the lock of the
// state, so that nobody who takes the lock first meets this question.
func held(state statedir.Dir, lock string) (bool, error) {
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

// WaitEnd waits until the controller of the run has ended. A sandbox that it
// could not delete is an error.
func (i RunInfo) WaitEnd(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { // ends with the controller
		f, err := statedir.TakeLock(filepath.Join(i.Path, "lock"), unix.LOCK_SH)
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
	r, err := readRecord(i.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, s := range r.Steps {
		if s.Name == deleteStep && s.Error != "" {
			return fmt.Errorf("delete sandbox: %s", text.Visible(s.Error))
		}
	}
	return nil
}

// ReadKept reads a JSON file of the run's directory.
func (i RunInfo) ReadKept(name string, into any) error {
	file := filepath.Join(i.Path, name)
	data, err := readBounded(file, maxKeptJSON)
	if err != nil {
		return fmt.Errorf("run %s: %w", i.RunID, err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("run %s: read %s: %w", i.RunID, file, err)
	}
	return nil
}

// maxKeptJSON bounds one JSON file of a run, in bytes.
const maxKeptJSON = 64 << 20
