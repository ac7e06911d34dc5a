package record

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/layout"
	"agentsh/internal/statedir"
)

// statusDone is a status of a result.
const statusDone = "done"

// knownRuns makes a state with runs of the given ids, each a minute younger.
func knownRuns(t *testing.T, ids ...string) statedir.Dir {
	t.Helper()
	state, err := statedir.Open(layout.State(filepath.Join(t.TempDir(), "state")))
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		d, err := Create(state, id)
		if err != nil {
			t.Fatal(err)
		}
		r := Record{Version: 1, RunID: id, Status: statusDone, Started: time.Date(2026, 1, 1, 0, i, 0, 0, time.UTC)}
		if err := errors.Join(d.Write(r), d.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return state
}

func TestARunIsFoundByItsNameAndNoOther(t *testing.T) {
	state := knownRuns(t, "20260101t000000-aaaa", "20260101t000100-bbbb", "20260102t000000-cccc", "20260102")
	tests := []struct{ name, ask, want, says string }{
		{"its id", "20260101t000100-bbbb", "20260101t000100-bbbb", ""},
		{"a beginning", "20260101t0001", "20260101t000100-bbbb", ""},
		{"the latest", "latest", "20260102", ""},
		{"an id that another begins with", "20260102", "20260102", ""},
		{"two begin with it", "20260101", "", "2 runs begin with"},
		{"nothing", "", "", "no such run"},
		{"another", "x", "", "no such run"},
		{"a path", "../state", "", "no such run"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			one, err := Find(state, tt.ask)
			if one.RunID != tt.want || (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Find(%q) = %q, %v", tt.ask, one.RunID, err)
			}
		})
	}
	if _, err := Find(knownRuns(t), statedir.Latest); !errors.Is(err, ErrNoRun) {
		t.Errorf("the latest of none: %v", err)
	}
}

func TestARecordThatCannotBeReadIsNamed(t *testing.T) {
	for name, data := range map[string]string{
		"cut": `{"version": 1, "run_`, "empty": "", "of another version": `{"version": 2, "run_id": "bad"}`,
		"of another run": `{"version": 1, "run_id": "good"}`, "no record": `[1, 2]`,
	} {
		t.Run(name, func(t *testing.T) {
			state := knownRuns(t, "good", "bad")
			file := filepath.Join(state.Runs(), "bad", File)
			if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Find(state, "bad"); err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("Find: %v", err)
			}
			all, err := List(state)
			if len(all) != 1 || err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("List: %v, %v", all, err)
			}
			d := &Dir{Path: filepath.Join(state.Runs(), "bad")}
			if d.lock, err = statedir.TakeLock(filepath.Join(d.Path, lockFile), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			if _, err := d.sweep(state, SweepOptions{OlderThan: time.Hour}); err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("sweep: %v", err)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("the record is gone: %v", err)
			}
		})
	}
}

func TestARunIsLiveWhileItsLockIsHeld(t *testing.T) {
	state := knownRuns(t)
	d, err := Create(state, "one")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Write(Record{Version: 1, RunID: "one", Status: StatusRunning}); err != nil {
		t.Fatal(err)
	}
	if one, err := Find(state, "one"); err != nil || !one.Live || one.Status != StatusRunning {
		t.Errorf("while it is held: %+v, %v", one, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if one, err := Find(state, "one"); err != nil || one.Live || one.Status != StatusAbandoned {
		t.Errorf("afterwards: %+v, %v", one, err)
	}
}

func TestATruncatedRecordEndsWithACompleteLine(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	tests := []struct {
		name, data string
		limit      int64
		want       string
	}{
		{"all of it", "one\ntwo\n", 100, "one\ntwo\n"},
		{"an unfinished line too", "one\ntwo", 100, "one\ntwo"},
		{"the whole lines", "one\ntwo\nthree\n", 10, "one\ntwo\n"},
		{"a line that ends there", "one\ntwo\nthree\n", 8, "one\ntwo\n"},
		{"behind a long part of a line", "one\n" + long + "\n", 90_000, "one\n"},
		{"not a part of the first line", long + "\n", 90_000, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			old := storeLimits[AuditFile]
			defer func() { storeLimits[AuditFile] = old }()
			storeLimits[AuditFile] = tt.limit
			d := &Dir{Path: t.TempDir()}
			k, err := d.Store(AuditFile, strings.NewReader(tt.data))
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(filepath.Join(d.Path, AuditFile))
			if err != nil || string(data) != tt.want || k.Bytes != int64(len(tt.want)) || k.Of != int64(len(tt.data)) {
				t.Errorf("stored %d bytes, %+v, %v", len(data), k, err)
			}
		})
	}
}
