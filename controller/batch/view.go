package batch

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/internal/statedir"
)

// Statuses of a batch.
const (
	StatusRunning   = "running"
	StatusDone      = "done"     // all runs are done
	StatusFailed    = "failed"   // all runs have ended, and some failed or were dropped
	StatusStopped   = "stopped"  // by a signal or a person
	StatusDeadline  = "deadline" // it came first
	StatusBudget    = "budget"   // it was used up
	StatusUnwritten = "unwritten"
	StatusAbandoned = "abandoned" // the process was killed
)

// States of a run of a batch.
const (
	StateWaiting  = "waiting"
	StateRetrying = "retrying" // waiting for another attempt
	StateRunning  = "running"
	StateEnded    = "ended"
	StateDropped  = "dropped" // it will not be started
	StateCutOff   = "cut_off" // it was going on when the process was killed
)

// ItemView is a run of a batch with its state.
type ItemView struct {
	Item
	Index     int           `json:"index"`
	State     string        `json:"state"`
	Attempts  int           `json:"attempts"`
	Troubles  int           `json:"troubles,omitempty"` // attempts that failed by trouble of the infrastructure
	RunID     string        `json:"run_id,omitempty"`   // of the last attempt
	End       *End          `json:"end,omitempty"`      // of the last attempt that has ended
	Started   time.Time     `json:"started,omitzero"`   // of the last attempt
	NotBefore time.Time     `json:"not_before,omitzero"`
	Step      string        `json:"step,omitempty"` // of a run that goes on
	Usage     runtime.Usage `json:"usage,omitzero"` // of all attempts so far
	By        string        `json:"by,omitempty"`   // who had it dropped
	Spent     runtime.Usage `json:"-"`              // of the attempts that have ended
	dropped   bool
}

// View is the state of a batch.
type View struct {
	Stored
	Path    string        `json:"path"` // its directory
	Live    bool          `json:"live"` // a process works on it
	Status  string        `json:"status"`
	Process int           `json:"process,omitempty"`
	Began   time.Time     `json:"began,omitzero"` // of the last process
	Ended   time.Time     `json:"ended,omitzero"`
	Ends    time.Time     `json:"ends,omitzero"` // the deadline
	Usage   runtime.Usage `json:"usage,omitzero"`
	Counts  Counts        `json:"counts"`
	State   []ItemView    `json:"runs"`

	// SandboxEnds counts what ended sandboxes from outside, of all attempts.
	SandboxEnds map[sandbox.EndKind]int `json:"-"`
}

// Counts counts the runs of a batch.
type Counts struct {
	All     int            `json:"all"`
	Waiting int            `json:"waiting"` // retries included
	Running int            `json:"running"`
	Dropped int            `json:"dropped"`
	Ended   map[string]int `json:"ended"` // by the status of the run
}

// Failed is the number of runs that ended otherwise than done.
func (c Counts) Failed() int {
	n := 0
	for status, count := range c.Ended {
		if !isDone(status) {
			n += count
		}
	}
	return n
}

// Done is the number of runs that are done.
func (c Counts) Done() int {
	n := 0
	for status, count := range c.Ended {
		if isDone(status) {
			n += count
		}
	}
	return n
}

func isDone(status string) bool {
	return status == controller.StatusDone || status == controller.StatusSkipped
}

// newView is the state of a batch that was just made.
func newView(path string, s Stored) *View {
	v := &View{Stored: s, Path: path, State: make([]ItemView, len(s.Items)), SandboxEnds: map[sandbox.EndKind]int{}}
	for i := range v.State {
		v.State[i] = ItemView{Item: s.Items[i], Index: i, State: StateWaiting}
	}
	return v
}

// replay applies the entries of a journal.
func (v *View) replay(all []Entry) {
	for _, e := range all {
		v.apply(e)
	}
}

// apply applies one entry.
func (v *View) apply(e Entry) {
	switch e.Kind {
	case entryOpen:
		v.Status, v.Process, v.Began, v.Ends, v.Ended = StatusRunning, e.Process, e.Time, e.Ends, time.Time{}
		if e.Budget != nil {
			v.Budget = *e.Budget
		}
	case entryClose:
		v.Status, v.Ended = e.Status, e.Time
	case entryDrop:
		for _, i := range e.Items {
			if i < 0 || i >= len(v.State) {
				continue
			}
			one := &v.State[i]
			one.dropped, one.By = true, e.By
			if one.State == StateWaiting || one.State == StateRetrying {
				one.State = StateDropped
			}
		}
	case entryStart, entryEnd:
		if e.Item >= 0 && e.Item < len(v.State) {
			v.State[e.Item].apply(e)
			if e.End != nil && e.End.Usage != nil {
				v.Usage.Add(*e.End.Usage)
			}
			if e.End != nil && e.End.Sandbox != "" {
				v.SandboxEnds[e.End.Sandbox]++
			}
		}
	}
}

// apply applies the start or the end of an attempt.
func (i *ItemView) apply(e Entry) {
	i.Attempts, i.RunID = e.Attempt, e.RunID
	if e.Kind == entryStart {
		i.State, i.Started, i.Step, i.NotBefore = StateRunning, e.Time, "", time.Time{}
		return
	}
	i.End, i.Step, i.State = e.End, "", StateEnded
	if e.End == nil {
		return
	}
	if e.End.Usage != nil {
		i.Spent.Add(*e.End.Usage)
	}
	i.Usage = i.Spent
	if !e.End.Again {
		return
	}
	i.State = StateWaiting
	if e.End.StoppedBy == "" {
		i.State = StateRetrying
		i.Troubles++
	}
	if i.dropped {
		i.State = StateDropped
	}
}

// count counts the runs.
func (v *View) count() {
	v.Counts = Counts{All: len(v.State), Ended: map[string]int{}}
	for _, i := range v.State {
		switch i.State {
		case StateWaiting, StateRetrying, StateCutOff:
			v.Counts.Waiting++
		case StateRunning:
			v.Counts.Running++
		case StateDropped:
			v.Counts.Dropped++
		case StateEnded:
			v.Counts.Ended[i.End.Status]++
		}
	}
}

// open reads the state of a batch.
func open(state statedir.Dir, id string) (*View, error) {
	path := filepath.Join(state.Batches(), id)
	s, err := readStored(path)
	if err != nil {
		return nil, err
	}
	live, err := isLive(state, path)
	if err != nil {
		return nil, err
	}
	all, err := readJournal(filepath.Join(path, journalFile)) // after the look at the lock: it has the last entry of an ended process
	if err != nil {
		return nil, err
	}
	v := newView(path, s)
	v.Live, v.Status = live, StatusRunning
	v.replay(all)
	if v.Status == StatusRunning && !live {
		v.Status = StatusAbandoned
		for i := range v.State {
			if v.State[i].State == StateRunning {
				v.State[i].State = StateCutOff
			}
		}
	}
	v.count()
	return v, nil
}

// isLive reports whether a process works on a batch. It runs under the lock of the state directory,
// so that nobody who takes a batch finds it locked by this look.
func isLive(state statedir.Dir, path string) (bool, error) {
	unlock, err := state.Lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	f, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil, nil
}

// CanResume reports whether there is anything left to do.
func (v *View) CanResume() bool {
	return !v.Live && v.Status == StatusAbandoned || !v.Live && slices.ContainsFunc(v.State, func(i ItemView) bool {
		return i.State == StateWaiting || i.State == StateRetrying || i.State == StateCutOff || i.State == StateRunning
	})
}

// ownLabels are labels that every run has.
var ownLabels = []string{"run", "harness", "repo", "backend", "model"}

// AllLabels are the labels of a run with those that every run has.
func (i Item) AllLabels() map[string]string {
	out := maps.Clone(i.Labels)
	if out == nil {
		out = map[string]string{}
	}
	out["run"], out["harness"], out["repo"] = i.Name, harnessName(i.Harness), filepath.Base(i.Repo)
	out["backend"], out["model"] = i.Backend, i.Provider
	return out
}

// Matches reports whether a run has all labels; every run has none.
func (i Item) Matches(labels map[string]string) bool {
	own := i.AllLabels()
	for name, value := range labels {
		if own[name] != value {
			return false
		}
	}
	return true
}
