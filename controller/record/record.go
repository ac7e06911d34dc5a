// Package record reads and writes the directories of runs in the state
// directory. Each contains the record of the run and the files stored with it.
// [Sweep] removes them.
package record

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/scan"
	"agentsh/internal/statedir"
)

// Record describes a run. It is the file record.json of the run's directory,
// replaced at each step.
type Record struct {
	Version int               `json:"version"` // 1
	RunID   string            `json:"run_id"`
	Harness string            `json:"harness"`
	Agent   string            `json:"agent,omitempty"`
	Kind    string            `json:"kind,omitempty"`   // KindSandbox: no agent runs; empty: a run
	Labels  map[string]string `json:"labels,omitempty"` // of a sandbox without a run
	// LeaseSeconds is how long a sandbox without a run goes on when nobody uses it.
	LeaseSeconds int64       `json:"lease_seconds,omitempty"`
	Repo         string      `json:"repo"`
	Out          string      `json:"out"`
	Staging      string      `json:"staging,omitempty"` // directory of the results before they are published
	Backend      string      `json:"backend"`
	Sandbox      string      `json:"sandbox,omitempty"`
	Workdir      string      `json:"workdir,omitempty"`     // directory in the sandbox in which the agent starts
	Base         string      `json:"base_commit,omitempty"` // that the agent starts from
	Command      []string    `json:"command,omitempty"`     // command line of the controller; empty: nobody takes the run over
	Dir          string      `json:"dir,omitempty"`         // current directory of the controller
	Process      int         `json:"process,omitempty"`     // the controller's id
	Batch        *Membership `json:"batch,omitempty"`       // nil: the run is none of a batch
	// PostScript is set if a script follows the delivery.
	PostScript bool           `json:"post_script,omitempty"`
	Status     string         `json:"status"` // running, then the status of the result
	Started    time.Time      `json:"started"`
	Ended      *time.Time     `json:"ended,omitempty"`
	Steps      []Step         `json:"steps"`
	ExitCode   int            `json:"exit_code"`
	Findings   []scan.Finding `json:"findings,omitempty"` // of the scans
	Stored     []Stored       `json:"stored,omitempty"`   // files in the same directory
	// KeptUntil is set while the sandbox of a failed agent is retained for
	// operators.
	KeptUntil *time.Time `json:"kept_until,omitempty"`
}

// Membership says which run of a batch a run is.
type Membership struct {
	ID     string            `json:"id"`
	Name   string            `json:"name"` // of the run in the batch
	Labels map[string]string `json:"labels,omitempty"`
}

// KindSandbox is the [Record.Kind] of a sandbox that was made without a run.
const KindSandbox = "sandbox"

// Step is one step of a run.
type Step struct {
	Name    string     `json:"name"`
	Started time.Time  `json:"started"`
	Ended   *time.Time `json:"ended,omitempty"`
	Error   string     `json:"error,omitempty"`
	Code    int        `json:"exit_code,omitempty"` // of the run, for the error
}

// StepDelete is the name of the last step, which deletes the sandbox.
const StepDelete = "delete"

// Statuses of a record besides those of a result.
const (
	StatusRunning   = "running"
	StatusAbandoned = "abandoned" // the controller was killed
)

// File is the name of the file of a [Record].
const File = "record.json"

// Dir is the directory of one run. It contains the record, the files of
// [Dir.Store], a lock file that the controller locks while it is alive, and a
// work directory that is removed at the end.
type Dir struct {
	Path  string
	lock  *os.File
	steps *os.File // nil: not open
}

// NewRunID returns a unique id. Ids sort by time.
func NewRunID(now time.Time) string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	return now.UTC().Format("20060102t150405") + "-" + hex.EncodeToString(b[:])
}

// Create makes the directory of a run and locks it. The caller calls [Dir.Close].
func Create(state statedir.Dir, runID string) (*Dir, error) {
	unlock, err := state.Lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	d := &Dir{Path: filepath.Join(state.Runs(), runID)}
	if err := os.MkdirAll(d.Work(), 0o700); err != nil {
		return nil, fmt.Errorf("create run record: %w", err)
	}
	if d.lock, err = statedir.TakeLock(filepath.Join(d.Path, lockFile), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("create run record: %w", err)
	}
	return d, nil
}

// InUse is the error of [Take] if the controller of a run is alive.
type InUse struct{ Process int }

func (e *InUse) Error() string { return fmt.Sprintf("process %d controls it", e.Process) }

// Take locks the directory of a run whose controller is gone, and returns its record. The error
// is an [*InUse] if another process has locked it. The caller calls [Dir.Close].
func Take(state statedir.Dir, runID string) (*Dir, Record, error) {
	unlock, err := state.Lock()
	if err != nil {
		return nil, Record{}, err
	}
	defer unlock()
	d := &Dir{Path: filepath.Join(state.Runs(), runID)}
	r, err := read(d.Path)
	if err != nil {
		return nil, r, err
	}
	d.lock, err = statedir.TakeLock(filepath.Join(d.Path, lockFile), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, r, &InUse{r.Process}
	}
	if err != nil {
		return nil, r, fmt.Errorf("take over run record: %w", err)
	}
	if r, err = read(d.Path); err == nil && r.Status == StatusRunning { // it may have ended since
		r.Process = os.Getpid()
		err = d.Write(r)
	}
	if err != nil {
		return nil, r, errors.Join(err, d.Close())
	}
	return d, r, nil
}

const lockFile = "lock"

// Work is the directory of host files that are needed only during the run.
func (d *Dir) Work() string { return filepath.Join(d.Path, "work") }

// Delivery is the directory in which git prepares the agent's commits, see
// git.Clone.Deliver.
func (d *Dir) Delivery() string { return filepath.Join(d.Work(), "delivery") }

// Write replaces the record.
func (d *Dir) Write(r Record) error {
	if err := statedir.WriteJSON(filepath.Join(d.Path, File), r); err != nil {
		return fmt.Errorf("write run record: %w", err)
	}
	return nil
}

// RemoveWork removes the work directory.
func (d *Dir) RemoveWork() error { return statedir.RemoveTree(d.Work()) }

// Close releases the lock.
func (d *Dir) Close() error {
	var err error
	if d.steps != nil {
		err = d.steps.Close()
	}
	return errors.Join(err, d.lock.Close())
}

// Read reads the record in a run's directory, with the steps so far.
func Read(dir string) (Record, error) { return read(dir) }

// read reads and checks the record in a run's directory. Its errors name the
// file.
func read(dir string) (Record, error) {
	var r Record
	file := filepath.Join(dir, File)
	data, err := ReadFile(file, maxJSON)
	if err != nil {
		return r, fmt.Errorf("read run record: %w", err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("read run record %s: %w", file, err)
	}
	switch {
	case r.Version != 1:
		return Record{}, fmt.Errorf("read run record %s: unknown version %d", file, r.Version)
	case r.RunID != filepath.Base(dir):
		return Record{}, fmt.Errorf("read run record %s: it belongs to run %.64q", file, r.RunID)
	}
	if r.Status == StatusRunning {
		return withSteps(dir, r)
	}
	return r, nil
}

// maxJSON bounds one JSON file of a run, in bytes.
const maxJSON = 256 << 20

// ReadFile reads a regular file of at most limit bytes.
func ReadFile(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a regular file", name), err)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return data, nil
}
