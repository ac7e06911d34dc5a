package controller

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/bootstrap"
	"agentsh/controller/git"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// knownRuns makes a state with runs of the given ids, each a minute younger.
func knownRuns(t *testing.T, ids ...string) statedir.Dir {
	t.Helper()
	state, err := statedir.Open(layout.State(filepath.Join(t.TempDir(), "state")))
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		d, err := createRecordDir(state, id)
		if err != nil {
			t.Fatal(err)
		}
		r := Record{Version: 1, RunID: id, Status: StatusDone, Started: time.Date(2026, 1, 1, 0, i, 0, 0, time.UTC)}
		if err := errors.Join(d.write(r), d.lock.Close()); err != nil {
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
		{"a way out", "../state", "", "no such run"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			one, err := FindRun(state, tt.ask)
			if one.RunID != tt.want || (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("FindRun(%q) = %q, %v", tt.ask, one.RunID, err)
			}
		})
	}
	if _, err := FindRun(knownRuns(t), Latest); !errors.Is(err, ErrNoRun) {
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
			file := filepath.Join(state.Runs(), "bad", recordName)
			if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := FindRun(state, "bad"); err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("FindRun: %v", err)
			}
			all, err := Runs(state)
			if len(all) != 1 || err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("Runs: %v, %v", all, err)
			}
			d := &recordDir{path: filepath.Join(state.Runs(), "bad")}
			if d.lock, err = statedir.TakeLock(filepath.Join(d.path, "lock"), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			if _, err := d.collect(state, CollectOptions{RunsOlderThan: time.Hour}); err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("collect: %v", err)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("the record is gone: %v", err)
			}
		})
	}
}

func TestARunIsLiveWhileItsLockIsHeld(t *testing.T) {
	state := knownRuns(t)
	d, err := createRecordDir(state, "one")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.write(Record{Version: 1, RunID: "one", Status: StatusRunning}); err != nil {
		t.Fatal(err)
	}
	if one, err := FindRun(state, "one"); err != nil || !one.Live || one.Status != StatusRunning {
		t.Errorf("while it is held: %+v, %v", one, err)
	}
	if err := d.lock.Close(); err != nil {
		t.Fatal(err)
	}
	if one, err := FindRun(state, "one"); err != nil || one.Live || one.Status != StatusAbandoned {
		t.Errorf("afterwards: %+v, %v", one, err)
	}
}

func TestWhatIsKeptEndsWithALine(t *testing.T) {
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
			old := keptLimits[KeptAudit]
			defer func() { keptLimits[KeptAudit] = old }()
			keptLimits[KeptAudit] = tt.limit
			r := &run{dir: &recordDir{path: t.TempDir()}}
			if err := r.keep(KeptAudit, strings.NewReader(tt.data)); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(filepath.Join(r.dir.path, KeptAudit))
			k := r.record.Kept[0]
			if err != nil || string(data) != tt.want || k.Bytes != int64(len(tt.want)) || k.Of != int64(len(tt.data)) {
				t.Errorf("kept %d bytes, %+v, %v", len(data), k, err)
			}
		})
	}
}

func TestChangesShowEveryLineAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	write := func(name, data string) wire.ManifestEntry {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
		return wire.ManifestEntry{Path: name, Type: "file", Mode: 0o644, Size: int64(len(data))}
	}
	files, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	base := func(name, data string) (git.TreeEntry, []byte) {
		return git.TreeEntry{Path: name, Kind: bootstrap.KindFile, Mode: 0o644, Size: int64(len(data))}, []byte(data)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "swapped")); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name           string
		entry          wire.ManifestEntry
		old            string
		status, why    string
		added, removed int
		diff           string
	}{
		{"modified", write("m", "a\nB\nc\n"), "a\nb\nc\n", "modified", "", 1, 1, "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"},
		{"added", write("n", "x\n"), "", "added", "", 1, 0, "@@ -0,0 +1,1 @@\n+x\n"},
		{"deleted", wire.ManifestEntry{Path: "gone"}, "x\n", "deleted", "", 0, 1, "@@ -1,1 +0,0 @@\n-x\n"},
		{"attributes do not hide it", write(".gitattributes", "* -diff\n"), "", "added", "", 1, 0, "@@ -0,0 +1,1 @@\n+* -diff\n"},
		{"binary", write("b", "a\x00b"), "", "added", whyBinary, 0, 0, ""},
		{"large", write("l", strings.Repeat("x\n", maxDiffFile)), "", "added", whyLarge, 0, 0, ""},
		{"only its mode", write("s", "same\n"), "same\n", "modified", "", 0, 0, ""},
		{
			"a link",
			wire.ManifestEntry{Path: "to", Type: "symlink", Target: "there"},
			"",
			"added",
			"",
			1,
			0,
			"@@ -0,0 +1,1 @@\n+symbolic link to there\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := &differ{base: map[string]git.TreeEntry{}, old: map[string][]byte{}, files: files, budget: maxDiffAll}
			if tt.old != "" {
				d.base[tt.entry.Path], d.old[tt.entry.Path] = base(tt.entry.Path, tt.old)
			}
			f, err := d.file(tt.entry)
			if err != nil || f.Status != tt.status || f.Why != tt.why || f.Added != tt.added || f.Removed != tt.removed || f.Diff != tt.diff {
				t.Errorf("%+v, %v", f, err)
			}
		})
	}
	d := &differ{files: files, budget: maxDiffAll}
	if f, err := d.file(wire.ManifestEntry{Path: "swapped", Type: "file", Size: 1}); err == nil {
		t.Errorf("a link was followed: %+v", f)
	}
}

func TestCollectRemovesOldRecordsAndSaysSo(t *testing.T) {
	make := func() statedir.Dir {
		state := knownRuns(t, "young", "old", "bad", "killed")
		for id, r := range map[string]Record{
			"young":  {Version: 1, RunID: "young", Status: StatusDone, Ended: ref(time.Now().Add(-time.Hour))},
			"old":    {Version: 1, RunID: "old", Status: StatusFailed, Ended: ref(time.Now().Add(-50 * time.Hour))},
			"killed": {Version: 1, RunID: "killed", Status: StatusRunning},
		} {
			if err := (&recordDir{path: filepath.Join(state.Runs(), id)}).write(r); err != nil {
				t.Fatal(err)
			}
		}
		bad := filepath.Join(state.Runs(), "bad", recordName)
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
		{"of 30 days", KeepRecords, "killed:run", "bad killed old young", true},
		{"of two days", 48 * time.Hour, "bad:record killed:run old:record", "killed young", false},
		{"all that ended", 0, "bad:record killed:run old:record young:record", "killed", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			state := make()
			for _, dry := range []bool{true, false} {
				before := strings.Join(must(runNames(state)), " ")
				found, err := Collect(t.Context(), state, noBackend{}, CollectOptions{RunsOlderThan: tt.older, DryRun: dry})
				var words []string
				for _, c := range found {
					words = append(words, c.RunID+map[bool]string{true: ":record", false: ":run"}[c.Record])
				}
				if got := strings.Join(words, " "); got != tt.found || (err != nil) != tt.bad {
					t.Errorf("dry run %v: %s, %v", dry, got, err)
				}
				after := strings.Join(must(runNames(state)), " ")
				if dry && after != before || !dry && after != tt.left {
					t.Errorf("dry run %v: left %s", dry, after)
				}
			}
			if r, err := readRecord(filepath.Join(state.Runs(), "killed")); err != nil || r.Status != StatusAbandoned {
				t.Errorf("killed: %+v, %v", r, err)
			}
			if _, err := os.Stat(filepath.Join(state.Runs(), "killed", ".ABCDEFGH")); err == nil {
				t.Error("a part of a socket is left")
			}
		})
	}
}

func must(names []string, err error) []string {
	if err != nil {
		panic(err)
	}
	return names
}

func ref[T any](v T) *T { return &v }

func TestATallyDoesNotCountWhatOperatorsDo(t *testing.T) {
	count := newTally(nil)
	for i, e := range []wire.Event{
		{Type: wire.EventCommand, Phase: "begin", Command: "run-1", Decision: "allow"},
		{Type: wire.EventExec, Command: "run-1", Argv: []string{"ls"}, Decision: "allow"},
		{Type: wire.EventCommand, Phase: "begin", Command: "operator-1", By: "operator root", Decision: "deny"},
		{Type: wire.EventExec, Command: "operator-1", Argv: []string{"rm"}, Decision: "deny"},
		{Type: wire.EventExec, Command: "operator-1", Argv: []string{"ps"}, Decision: "allow"},
		{Type: wire.EventExec, Command: "run-1", Argv: []string{"kill"}, Decision: "deny"},
	} {
		e.Seq = uint64(i + 1)
		count.add(e)
	}
	var r Result
	count.into(&r)
	if r.Commands != 1 || r.Refusals != 1 || len(r.Refused) != 1 || r.Refused[0].What != "kill" {
		t.Errorf("%+v", r)
	}
}
