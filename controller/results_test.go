package controller

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentsh/controller/record"
	"agentsh/controller/sandbox"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestResultsNeverReplaceAnythingElse(t *testing.T) {
	tests := []struct {
		name  string
		setup func(t *testing.T, out string)
		err   string
	}{
		{"nothing there", func(*testing.T, string) {}, ""},
		{"an empty directory", func(t *testing.T, out string) {
			write(t, filepath.Join(out, "x"), "")
			os.Remove(filepath.Join(out, "x"))
		}, ""},
		{"earlier results", func(t *testing.T, out string) {
			write(t, filepath.Join(out, resultName), "{}")
			write(t, filepath.Join(out, "files/old.txt"), "old")
		}, ""},
		{"somebody's files", func(t *testing.T, out string) { write(t, filepath.Join(out, "thesis.txt"), "") }, "contains something other"},
		{"a file", func(t *testing.T, out string) { write(t, out, "") }, "not a directory"},
		{"a link", func(t *testing.T, out string) {
			if err := os.Symlink(t.TempDir(), out); err != nil {
				t.Fatal(err)
			}
		}, "not a directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			tt.setup(t, out)
			r, err := newResults(out, "run-1")
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("err = %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(r.create(), r.line("hello"), r.publish(), r.writeResult(Result{RunID: "run-1"}), r.discard()); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(out, "files/old.txt")); err == nil {
				t.Error("earlier results are mixed with the new ones")
			}
			if data, err := os.ReadFile(filepath.Join(out, agentLogName)); err != nil || string(data) != "hello\n" {
				t.Errorf("agent log = %q, %v", data, err)
			}
			if left, _ := filepath.Glob(filepath.Join(filepath.Dir(out), stagingPrefix+"*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestUnpublishedResultsAreRemoved(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	r, err := newResults(out, "run-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.create(), r.discard()); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(out)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestRemoveStagingRemovesOnlyAStagingDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{dir, "relative", filepath.Join(dir, stagingPrefix+"run-2")} {
		if err := removeStaging(name, "run-1"); err == nil {
			t.Errorf("removed %s", name)
		}
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

// noBackend is a backend without sandboxes.
type noBackend struct{ sandbox.Backend }

func (noBackend) Name() string                                        { return "none" }
func (noBackend) Collect(context.Context) ([]sandbox.Leftover, error) { return nil, nil }

func (noBackend) Leftovers(context.Context) ([]sandbox.Leftover, error) { return nil, nil }

func TestCollectFinishesAbandonedRunsAndKeepsLivingOnes(t *testing.T) {
	state, err := statedir.Open(layout.State(filepath.Join(t.TempDir(), "state")))
	if err != nil {
		t.Fatal(err)
	}
	outs := t.TempDir()
	now := time.Now().UTC()
	old := now.Add(-RecordAge - time.Hour)
	runs := []struct {
		id     string
		record record.Record
		living bool
	}{
		{"killed", record.Record{Version: 1, RunID: "killed", Status: record.StatusRunning, Staging: stagingName(outs, "killed")}, false},
		{"living", record.Record{Version: 1, RunID: "living", Status: record.StatusRunning, Staging: stagingName(outs, "living")}, true},
		{"ended", record.Record{Version: 1, RunID: "ended", Status: StatusDone, Ended: &now}, false},
		{"ended-long-ago", record.Record{Version: 1, RunID: "ended-long-ago", Status: StatusDone, Ended: &old}, false},
	}
	for _, r := range runs {
		d, err := record.Create(state, r.id)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(d.Work(), "file"), "")
		if r.record.Staging != "" {
			write(t, filepath.Join(r.record.Staging, "file"), "")
		}
		if err := d.Write(r.record); err != nil {
			t.Fatal(err)
		}
		if r.living {
			defer d.Close()
		} else {
			d.Close()
		}
	}
	write(t, filepath.Join(state.Runs(), "cut-short", "lock"), "")
	found, err := Collect(context.Background(), state, noBackend{}, CollectOptions{RunsOlderThan: RecordAge})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 3 || found[0].RunID != "cut-short" || found[1].RunID != "ended-long-ago" || !found[1].Record ||
		found[2].RunID != "killed" {
		t.Errorf("collected %+v", found)
	}
	for name, want := range map[string]bool{
		filepath.Join(state.Runs(), "killed", "work"):         false,
		filepath.Join(state.Runs(), "killed", "record.json"):  true,
		stagingName(outs, "killed"):                           false,
		filepath.Join(state.Runs(), "living", "work", "file"): true,
		stagingName(outs, "living"):                           true,
		filepath.Join(state.Runs(), "ended", "record.json"):   true,
		filepath.Join(state.Runs(), "ended-long-ago"):         false,
		filepath.Join(state.Runs(), "cut-short"):              false,
	} {
		if _, err := os.Stat(name); (err == nil) != want {
			t.Errorf("%s there: %v, want %v", name, err == nil, want)
		}
	}
	if r, err := record.Find(state, "killed"); err != nil || r.Status != record.StatusAbandoned {
		t.Errorf("record of the killed run: %+v, %v", r, err)
	}
}

func TestEachEventIsCountedOnce(t *testing.T) {
	var told []string
	tally := newCounts(func(r Refusal) { told = append(told, r.What) })
	kill := wire.Event{Seq: 2, Type: wire.EventExec, Decision: "deny", Argv: []string{"/bin/kill", "1"}, Message: "no\x1b[31m kill",
		Rule: &wire.RuleAt{Name: "block-kill", File: "demo.yaml", Line: 7, Column: 5}}
	events := []wire.Event{{Seq: 1, Type: wire.EventExec, Decision: "allow", Path: "/usr/bin/git"}, kill}
	again := kill
	again.Seq = 3
	for _, e := range append(events, append(events, again, wire.Event{Seq: 6, Type: wire.EventExec, Decision: "audit",
		Path: "/usr/bin/git"})...) {
		tally.add(e)
	}
	var r Result
	tally.into(&r)
	if r.Commands != 2 || len(r.Programs) != 1 || r.Programs[0] != (Program{"git", 2}) {
		t.Errorf("programs: %d %+v", r.Commands, r.Programs)
	}
	want := Refusal{
		Type:    "exec",
		What:    "/bin/kill 1",
		Rule:    wire.RuleAt{Name: "block-kill", File: "demo.yaml", Line: 7, Column: 5},
		Message: "no kill",
		Count:   2,
	}
	if r.Refusals != 2 || len(r.Refused) != 1 || r.Refused[0] != want {
		t.Errorf("refusals: %d %+v", r.Refusals, r.Refused)
	}
	if r.AuditGaps != 2 || len(told) != 1 {
		t.Errorf("gaps %d, told %q", r.AuditGaps, told)
	}
}

func TestRepoNameIsHarmless(t *testing.T) {
	for dir, want := range map[string]string{
		"/src/booking": "booking", "/src/my repo": "my-repo", "/src/-rf": "rf", "/src/..x": "x", "/src/$(id)": "id-",
		"/src/.env": "env", "/src/output": "repo-output", "/src/agent-input": "repo-agent-input", "/src/é": "repo-", "/": "repo-",
	} {
		if got := repoName(dir); got != want {
			t.Errorf("repoName(%q) = %q, want %q", dir, got, want)
		}
	}
}
