package controller

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentsh/controller/record"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
)

// knownRuns makes a state with ended runs of the given ids, each a minute younger.
func knownRuns(t *testing.T, ids ...string) statedir.Dir {
	t.Helper()
	state, err := statedir.Open(layout.State(filepath.Join(t.TempDir(), "state")))
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		d, err := record.Create(state, id)
		if err != nil {
			t.Fatal(err)
		}
		r := record.Record{Version: 1, RunID: id, Status: StatusDone, Started: time.Date(2026, 1, 1, 0, i, 0, 0, time.UTC)}
		if err := errors.Join(d.Write(r), d.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return state
}

func TestCollectRemovesAndReportsOldRecords(t *testing.T) {
	newState := func() statedir.Dir {
		state := knownRuns(t, "young", "old", "bad", "killed")
		for id, r := range map[string]record.Record{
			"young":  {Version: 1, RunID: "young", Status: StatusDone, Ended: ref(time.Now().Add(-time.Hour))},
			"old":    {Version: 1, RunID: "old", Status: StatusFailed, Ended: ref(time.Now().Add(-50 * time.Hour))},
			"killed": {Version: 1, RunID: "killed", Status: record.StatusRunning},
		} {
			if err := (&record.Dir{Path: filepath.Join(state.Runs(), id)}).Write(r); err != nil {
				t.Fatal(err)
			}
		}
		bad := filepath.Join(state.Runs(), "bad", record.File)
		if err := errors.Join(os.WriteFile(bad, []byte("{"), 0o600), os.Chtimes(bad, time.Time{}, time.Now().Add(-50*time.Hour))); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(state.Runs(), "killed", ".ABCDEFGH"), 0o700); err != nil { // of a listener
			t.Fatal(err)
		}
		return state
	}
	tests := []struct {
		name  string
		older time.Duration
		found string
		left  string
		bad   bool
	}{
		{"of 30 days", RecordAge, "killed:run", "bad killed old young", true},
		{"of two days", 48 * time.Hour, "bad:record killed:run old:record", "killed young", false},
		{"all that ended", 0, "bad:record killed:run old:record young:record", "killed", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			state := newState()
			for _, dry := range []bool{true, false} {
				before := runNames(t, state)
				found, err := Collect(t.Context(), state, noBackend{}, CollectOptions{RunsOlderThan: tt.older, DryRun: dry})
				var words []string
				for _, c := range found {
					words = append(words, c.RunID+map[bool]string{true: ":record", false: ":run"}[c.Record])
				}
				if got := strings.Join(words, " "); got != tt.found || (err != nil) != tt.bad {
					t.Errorf("dry run %v: %s, %v", dry, got, err)
				}
				after := runNames(t, state)
				if dry && after != before || !dry && after != tt.left {
					t.Errorf("dry run %v: left %s", dry, after)
				}
			}
			if r, err := record.Find(state, "killed"); err != nil || r.Status != record.StatusAbandoned {
				t.Errorf("killed: %+v, %v", r, err)
			}
			if _, err := os.Stat(filepath.Join(state.Runs(), "killed", ".ABCDEFGH")); err == nil {
				t.Error("a part of a socket is left")
			}
		})
	}
}

// runNames lists the directories of runs.
func runNames(t *testing.T, state statedir.Dir) string {
	t.Helper()
	entries, err := os.ReadDir(state.Runs())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func ref[T any](v T) *T { return &v }
