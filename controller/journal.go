package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"agentsh/controller/record"
	"agentsh/controller/sandbox"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// journal writes the record of a run and stores files with it. dir is nil until
// the record exists.
type journal struct {
	dir     *record.Dir
	record  record.Record
	written record.Record // as the file has it, without steps
	steps   int           // that the file has to the end; of the next one it may have the beginning
}

// newJournal creates the record of a run.
func newJournal(o Options, runID string, started time.Time) (*journal, error) {
	dir, err := record.Create(o.State, runID)
	if err != nil {
		return nil, err
	}
	j := &journal{dir: dir, record: record.Record{
		Version: 1, RunID: runID, Harness: o.Harness, Repo: o.Repo, Out: o.Out, Backend: o.Backend.Name(),
		Status: record.StatusRunning, Started: started, Steps: []record.Step{},
		Command: o.Command, Dir: o.Dir, Process: os.Getpid(),
	}}
	if m := o.Member; m.Batch != "" {
		j.record.Batch = &record.Membership{ID: m.Batch, Name: m.Name, Labels: m.Labels}
	}
	return j, j.write()
}

func (j *journal) write() error {
	err := j.dir.Write(j.record)
	if err == nil {
		j.written = j.record
		j.written.Steps = nil
		j.wrote()
	}
	return err
}

// wrote notes which steps are stored to their end.
func (j *journal) wrote() {
	for j.steps < len(j.record.Steps) && j.record.Steps[j.steps].Ended != nil {
		j.steps++
	}
}

// beginStep records the start of a step. storeSteps stores it.
func (j *journal) beginStep(name string) {
	j.record.Steps = append(j.record.Steps, record.Step{Name: name, Started: time.Now().UTC()})
}

// storeSteps stores the start of the last step, and the end of the one before.
func (j *journal) storeSteps() error {
	now := j.record
	now.Steps = nil
	if !reflect.DeepEqual(now, j.written) {
		return j.write()
	}
	err := j.dir.AddSteps(j.steps, j.record.Steps[j.steps:])
	if err == nil {
		j.wrote()
	}
	return err
}

// endStep records the end of the last step. The next write stores it.
func (j *journal) endStep() *record.Step {
	ended := time.Now().UTC()
	last := &j.record.Steps[len(j.record.Steps)-1]
	last.Ended = &ended
	return last
}

// Observer follows a run. Event, Step and End are called by several goroutines, and return at once;
// End may wait for what it sends.
type Observer interface {
	Event(wire.Event) // each event of the audit log, once
	Step(record.Step) // that has ended
	// End gets the result before it is written, and returns what it says about the export.
	End(Result) *Telemetry
}

// Telemetry is what was exported of a run.
type Telemetry struct {
	To      string `json:"to"`       // the collector
	TraceID string `json:"trace_id"` // of the spans of the run
	Sent    int    `json:"sent"`     // events and spans that the collector has taken
	NotSent int    `json:"not_sent"`
	Waiting int    `json:"waiting,omitempty"` // not sent yet when the run of a batch ended
	Error   string `json:"error,omitempty"`   // why some were not sent
}

// nobody is the [Observer] of a run that has none.
type nobody struct{}

func (nobody) Event(wire.Event)      {}
func (nobody) Step(record.Step)      {}
func (nobody) End(Result) *Telemetry { return nil }

// observe has an observer follow the run, if there is one.
func (r *run) observe() {
	if r.o.Observe != nil {
		r.counts.observer = r.o.Observe(r.result, r.o.Member)
	}
}

// unfinished is what a run has found out so far, for a controller that takes it over. It is in
// the work directory.
type unfinished struct {
	Result Result `json:"result"`
	Canary string `json:"canary,omitempty"` // of the agent's definition
}

// Files of the work directory.
const (
	unfinishedFile = "unfinished.json"
	iterationsFile = "iterations.json"
)

// storeIterations stores the iterations so far, for a controller that takes the run over.
func storeIterations(recordDir string, all []IterationResult) error {
	return statedir.WriteJSON(filepath.Join((&record.Dir{Path: recordDir}).Work(), iterationsFile), all)
}

func (j *journal) storeUnfinished(u unfinished) error {
	return statedir.WriteJSON(filepath.Join(j.dir.Work(), unfinishedFile), u)
}

// readUnfinished reads what [journal.storeUnfinished] wrote last, with the iterations.
func (j *journal) readUnfinished() (u unfinished, err error) {
	data, err := os.ReadFile(filepath.Join(j.dir.Work(), unfinishedFile))
	if err == nil {
		err = json.Unmarshal(data, &u)
	}
	if err != nil {
		return u, err
	}
	data, err = os.ReadFile(filepath.Join(j.dir.Work(), iterationsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return u, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &u.Result.Iterations)
	}
	return u, err
}

// end records the end of the run. The caller releases the record.
func (j *journal) end(r Result) error {
	j.record.Findings = r.Findings
	j.record.Status, j.record.ExitCode, j.record.Ended = r.Status, r.ExitCode, &r.Ended
	return errors.Join(j.dir.RemoveWork(), j.write())
}

// storeAudit stores the audit log of an ended sandbox.
func (j *journal) storeAudit(ctx context.Context, s sandbox.Sandbox) error {
	log, err := openAudit(ctx, s)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the supervisor did not start
	}
	if err != nil {
		return fmt.Errorf("store audit log: %w", err)
	}
	defer log.Close()
	stored, err := j.dir.Store(record.AuditFile, log)
	return j.stored(stored, err)
}

// PlaceLog is what the place of a sandbox said about it, in the words of the place.
type PlaceLog struct {
	By      string   `json:"by"`
	File    string   `json:"file,omitempty"` // in the directory of the record
	Lines   int      `json:"lines"`
	LeftOut int      `json:"left_out,omitempty"` // lines that do not fit into the file
	Denials int      `json:"denials"`
	Denied  []string `json:"denied,omitempty"`  // the first denials
	Missing string   `json:"missing,omitempty"` // why there is no log
}

// storePlaceLog stores what the place of a sandbox says about it; nil: it says nothing.
func (j *journal) storePlaceLog(ctx context.Context, s sandbox.Sandbox) (*PlaceLog, error) {
	of, is := s.(sandbox.Witness)
	if !is {
		return nil, nil
	}
	log, err := of.PlaceLog(ctx)
	if err != nil {
		err = fmt.Errorf("the log of the place: %w", err)
		return &PlaceLog{By: j.record.Backend, Missing: clean(err.Error())}, err
	}
	if log == nil {
		return nil, nil
	}
	out := &PlaceLog{By: log.By, File: record.PlaceLogFile, Lines: log.Lines, LeftOut: log.LeftOut, Denials: log.Denials, Denied: log.Denied}
	stored, err := j.dir.Store(record.PlaceLogFile, bytes.NewReader(log.Text))
	return out, j.stored(stored, err)
}

// storeResult stores the result.
func (j *journal) storeResult(r Result) error {
	return statedir.WriteJSON(filepath.Join(j.dir.Path, record.ResultFile), r)
}

// storeLogs stores the agent's logs from a directory of results.
func (j *journal) storeLogs(dir string) error {
	var errs []error
	for _, name := range []string{record.AgentEventsFile, record.AgentLogFile} {
		f, err := os.Open(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("store %s: %w", name, err))
			continue
		}
		stored, err := j.dir.Store(name, f)
		errs = append(errs, j.stored(stored, err), f.Close())
	}
	return errors.Join(errs...)
}

// storeChanges stores the differences of the changed files.
func (j *journal) storeChanges(c Changes) error {
	return statedir.WriteJSON(filepath.Join(j.dir.Path, record.ChangesFile), c)
}

// stored notes a file that was stored, in the place of an earlier one of the same name.
func (j *journal) stored(s record.Stored, err error) error {
	if err == nil {
		same := func(old record.Stored) bool { return old.Name == s.Name }
		j.record.Stored = append(slices.DeleteFunc(slices.Clone(j.record.Stored), same), s)
	}
	return err
}
