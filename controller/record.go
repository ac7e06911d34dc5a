package controller

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/scan"
	"agentsh/internal/statedir"
)

// Record is what the state directory holds about a run, as JSON, written again
// at each step.
type Record struct {
	Version  int            `json:"version"` // 1
	RunID    string         `json:"run_id"`
	Harness  string         `json:"harness"`
	Agent    string         `json:"agent,omitempty"`
	Repo     string         `json:"repo"`
	Out      string         `json:"out"`
	Staging  string         `json:"staging,omitempty"` // results before they are published
	Backend  string         `json:"backend"`
	Sandbox  string         `json:"sandbox,omitempty"`
	Status   string         `json:"status"` // running, then the result's
	Started  time.Time      `json:"started"`
	Ended    *time.Time     `json:"ended,omitempty"`
	Steps    []StepRecord   `json:"steps"`
	ExitCode int            `json:"exit_code"`
	Findings []scan.Finding `json:"findings,omitempty"` // of the scans
	Kept     []Kept         `json:"kept,omitempty"`     // files beside this one
	// KeptUntil is set while the sandbox is kept for operators: the end of its lease.
	KeptUntil *time.Time `json:"kept_until,omitempty"`
}

// StepRecord is one step of a run.
type StepRecord struct {
	Name    string     `json:"name"`
	Started time.Time  `json:"started"`
	Ended   *time.Time `json:"ended,omitempty"`
	Error   string     `json:"error,omitempty"`
}

// The states of a run besides those of a result.
const (
	StatusRunning   = "running"
	StatusAbandoned = "abandoned" // its controller was killed
)

// recordName is the file of a [Record].
const recordName = "record.json"

// recordDir is the directory of one run: record.json, a lock that the
// controller holds as long as it lives, and work, which is removed at the end.
type recordDir struct {
	path string
	lock *os.File
}

// newRunID is a name that sorts by time and meets no other.
func newRunID(now time.Time) string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	return now.UTC().Format("20060102t150405") + "-" + hex.EncodeToString(b[:])
}

// createRecordDir makes the directory of a run and takes its lock.
func createRecordDir(state statedir.Dir, runID string) (*recordDir, error) {
	unlock, err := state.Lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	d := &recordDir{path: filepath.Join(state.Runs(), runID)}
	if err := os.MkdirAll(d.work(), 0o700); err != nil {
		return nil, fmt.Errorf("create run record: %w", err)
	}
	if d.lock, err = statedir.TakeLock(filepath.Join(d.path, "lock"), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("create run record: %w", err)
	}
	return d, nil
}

// work holds files of the host that a run needs for its time.
func (d *recordDir) work() string { return filepath.Join(d.path, "work") }

// takeDir holds the agent's commits on their way into the target.
func (d *recordDir) takeDir() string { return filepath.Join(d.work(), "take") }

// write replaces the record.
func (d *recordDir) write(r Record) error {
	if err := statedir.WriteJSON(filepath.Join(d.path, recordName), r); err != nil {
		return fmt.Errorf("write run record: %w", err)
	}
	return nil
}

// removeWork removes the work directory.
func (d *recordDir) removeWork() error { return statedir.RemoveTree(d.work()) }

// readRecord reads and checks the record of a run; the error names its file.
func readRecord(dir string) (Record, error) {
	var r Record
	file := filepath.Join(dir, recordName)
	data, err := readBounded(file, maxKeptJSON)
	if err != nil {
		return r, fmt.Errorf("read run record: %w", err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("read run record %s: %w", file, err)
	}
	switch {
	case r.Version != 1:
		return Record{}, fmt.Errorf("read run record %s: version %d is not known here", file, r.Version)
	case r.RunID != filepath.Base(dir):
		return Record{}, fmt.Errorf("read run record %s: it is of run %.64q", file, r.RunID)
	}
	return r, nil
}
