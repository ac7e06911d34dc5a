package batch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
)

// Kinds of a [Entry].
const (
	entryOpen  = "open"  // a process began to work on the batch
	entryStart = "start" // a run is about to start
	entryEnd   = "end"   // a run has ended
	entryDrop  = "drop"  // waiting runs will not be started
	entryClose = "close" // the process ends its work
)

// Entry is one line of the journal. A line is on the disk before what it announces happens, and
// after what it reports has happened.
type Entry struct {
	Kind    string    `json:"kind"`
	Time    time.Time `json:"time"`
	Process int       `json:"process,omitempty"` // open
	Item    int       `json:"item"`              // start and end: index of the run
	Attempt int       `json:"attempt,omitempty"` // start and end: from 1
	RunID   string    `json:"run_id,omitempty"`
	End     *End      `json:"end,omitempty"`
	Items   []int     `json:"items,omitempty"`  // drop
	By      string    `json:"by,omitempty"`     // drop: who asked for it
	Status  string    `json:"status,omitempty"` // close: of the batch
	Ends    time.Time `json:"ends,omitzero"`    // open: the deadline
	Budget  *Budget   `json:"budget,omitempty"` // open: that of a resumed batch, where it is another one
}

// End is how an attempt of a run ended.
type End struct {
	Status    string          `json:"status"`
	ExitCode  int             `json:"exit_code"`
	Step      string          `json:"step,omitempty"` // that failed
	Message   string          `json:"message,omitempty"`
	Hint      string          `json:"hint,omitempty"`
	Sandbox   sandbox.EndKind `json:"sandbox_end,omitempty"`
	Delivered bool            `json:"delivered"`
	Partial   bool            `json:"partial,omitempty"`
	Branch    string          `json:"branch,omitempty"`
	Commits   int             `json:"commits,omitempty"`
	Changed   int             `json:"changed,omitempty"` // files
	Refusals  int             `json:"refusals,omitempty"`
	Findings  int             `json:"findings,omitempty"`
	Usage     *runtime.Usage  `json:"usage,omitempty"`
	Started   time.Time       `json:"started"`
	Ended     time.Time       `json:"ended"`
	Out       string          `json:"out,omitempty"`
	Record    string          `json:"record,omitempty"` // directory of the run's record
	// Again is set if another attempt follows: after trouble of the infrastructure, or when the batch goes on.
	Again bool `json:"again,omitempty"`
	// StoppedBy is what ended the run from outside: one of the stops, or a person.
	StoppedBy string `json:"stopped_by,omitempty"`
}

// maxMessage bounds an error in the journal, in bytes.
const maxMessage = 2 << 10

// endOf is the end of an attempt with a result.
func endOf(r controller.Result) *End {
	e := &End{
		Status: r.Status, ExitCode: r.ExitCode, Delivered: r.Delivered, Partial: r.Partial, Branch: r.Branch,
		Commits: len(r.Commits), Changed: len(r.Changed), Refusals: r.Refusals, Findings: len(r.Findings), Usage: r.Usage,
		Started: r.Started, Ended: r.Ended, Record: r.Record,
	}
	if r.Delivered {
		e.Out = r.Out
	}
	if r.Error != nil {
		e.Step, e.Message, e.Hint, e.Sandbox = r.Error.Step, cut(r.Error.Message), cut(r.Error.Hint), r.Error.End
		if n := len(r.Error.Problems); n > 0 {
			e.Message = cut(r.Error.Problems[0].String())
		}
	}
	return e
}

func cut(s string) string { return s[:min(len(s), maxMessage)] }

// journal is the file of entries of a batch. Not safe for concurrent use.
type journal struct {
	file *os.File
	size int64 // of the whole entries
}

// entrySize is the usual size of an entry, in bytes. Room for all entries is taken when a journal
// is made, so that a disk that becomes full later does not keep ends from being recorded.
const entrySize = 1 << 10

// openJournal opens a journal, or makes one with room for a number of entries. It returns the
// entries that it has. What a killed process or a full disk left of a line is removed.
func openJournal(name string, room int) (*journal, []Entry, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("journal: %w", err)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("journal: %w", err), f.Close())
	}
	all, size, err := entries(data)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("journal %s: %w", name, err), f.Close())
	}
	j := &journal{file: f, size: size}
	// See fallocate(2). Not every file system has it; then the room is only asked for later.
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size+int64(room)*entrySize)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		err = nil
	}
	if err == nil && size < int64(len(data)) {
		err = f.Truncate(size)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("journal %s: %w", name, err), f.Close())
	}
	return j, all, nil
}

// readJournal reads the entries of a journal that another process may be writing.
func readJournal(name string) ([]Entry, error) {
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	all, _, err := entries(data)
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", name, err)
	}
	return all, nil
}

// entries reads whole lines. size is what they take; an unfinished last line is left out.
func entries(data []byte) (all []Entry, size int64, err error) {
	for len(data) > 0 {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		if !whole {
			break
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			if len(bytes.TrimLeft(rest, "\x00")) == 0 { // a crash of the machine can leave a last line that was not written
				break
			}
			return nil, 0, fmt.Errorf("line %d: %w", len(all)+1, err)
		}
		all = append(all, e)
		size += int64(len(line)) + 1
		data = rest
	}
	return all, size, nil
}

// add writes an entry to the disk. After an error the journal is as it was.
func (j *journal) add(e Entry) error {
	e.Time = time.Now().UTC()
	data, err := json.Marshal(e)
	if err == nil {
		data = append(data, '\n')
		_, err = j.file.WriteAt(data, j.size)
	}
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		// A shorter file needs no room. If this fails too, the next reader cuts it.
		return errors.Join(fmt.Errorf("journal of the batch: %w", err), j.file.Truncate(j.size))
	}
	j.size += int64(len(data))
	return nil
}

func (j *journal) close() error { return j.file.Close() }
