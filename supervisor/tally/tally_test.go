package tally

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"agentsh/internal/prometheus"
	"agentsh/internal/wire"
	"agentsh/seccomp/target"
	"agentsh/supervisor/audit"
)

// self is this process, which is alive.
func self(t *testing.T) target.Process {
	t.Helper()
	found, err := target.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return found.Process
}

// opened is the log of a supervisor, which finds the empty one of a tally.
func opened(t *testing.T, path string) *audit.Log {
	t.Helper()
	l, err := audit.Open(path, audit.Options{KeyFile: path + ".key"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func add(t *testing.T, l *audit.Log, all ...wire.Event) {
	t.Helper()
	for _, e := range all {
		if err := l.Append(e); err != nil {
			t.Fatal(err)
		}
	}
}

// check compares a series of the counts.
func check(t *testing.T, all []*prometheus.Family, name string, want float64, labels ...string) {
	t.Helper()
	for _, f := range all {
		if f.Name() == name {
			if got, has := f.Value(labels...); got != want || !has && want != 0 {
				t.Errorf("%s%v is %v, want %v", name, labels, got, want)
			}
			return
		}
	}
	t.Errorf("no family %s", name)
}

func TestSandboxesAreCounted(t *testing.T) {
	tally := New("1")
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	one := tally.Begin(path)
	log := opened(t, path)
	one.Started(self(t))
	if tally.Begin(path) != nil {
		t.Error("a sandbox is counted twice")
	}
	add(t, log,
		wire.Event{Type: wire.EventCommand, Phase: "begin", Decision: "allow"},
		wire.Event{Type: wire.EventFile, Op: "write", Path: "/x", Decision: "deny", Rule: &wire.RuleAt{Name: "system"}, Count: 3},
		wire.Event{Type: wire.EventApproval, Phase: "end", Decision: "deny"},
		wire.Event{Type: wire.EventExec, Path: "/bin/agent-text", Decision: "deny"},
		wire.Event{Type: wire.EventNet, Phase: "end", Decision: "allow", Net: &wire.Net{Sent: 10, Received: 20}},
		wire.Event{Type: wire.EventFault, Message: wire.Unwritten(7)},
		wire.Event{Type: wire.EventFault, Message: "9 other things"},
		wire.Event{
			Type: wire.EventCommand, Phase: "end", Exit: &wire.Exit{Kind: wire.ExitExited}, Output: &wire.OutputEnd{Stdout: 5, Stderr: 6},
		},
	)
	all := tally.Gather()
	check(t, all, "agentsh_sandboxes", 1)
	check(t, all, "agentsh_sandboxes_started_total", 1)
	check(t, all, "agentsh_commands_total", 1, "decision", "allow")
	check(t, all, "agentsh_command_ends_total", 1, "kind", wire.ExitExited)
	check(t, all, "agentsh_denials_total", 3, "type", "file", "rule", "system")
	check(t, all, "agentsh_denials_total", 1, "type", "exec", "rule", "")
	check(t, all, "agentsh_denials_total", 0, "type", "approval", "rule", "")
	check(t, all, "agentsh_events_total", 2, "type", "fault", "decision", "")
	check(t, all, "agentsh_events_lost_total", 7)
	check(t, all, "agentsh_network_bytes_total", 20, "direction", "received")
	check(t, all, "agentsh_output_bytes_total", 6, "stream", "stderr")
	check(t, all, "agentsh_audit_unread_bytes", 0)
	for _, f := range all {
		if n, _ := f.Value(); f.Name() == "agentsh_processes" && n < 1 {
			t.Errorf("%v processes", n)
		}
	}
}

// A sandbox that ends removes its directory. Its last events are counted, whether or not somebody asked
// before.
func TestTheEndOfASandboxIsCounted(t *testing.T) {
	tally := New("1")
	over := target.Process{PID: os.Getpid(), Start: 1} // another process has the number by now
	for _, c := range []struct {
		cause wire.Cause
		last  []wire.Event
	}{
		{wire.CauseClosed, []wire.Event{{Type: wire.EventSession, Phase: "end", Cause: wire.CauseClosed}}},
		{wire.CauseSupervisor, nil},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "audit.jsonl")
		one := tally.Begin(path)
		log := opened(t, path)
		one.Started(over)
		add(t, log, append([]wire.Event{{Type: wire.EventCommand, Phase: "begin", Decision: "allow"}}, c.last...)...)
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		check(t, tally.Gather(), "agentsh_sandboxes_ended_total", 1, "cause", string(c.cause))
	}
	all := tally.Gather()
	check(t, all, "agentsh_commands_total", 2, "decision", "allow")
	check(t, all, "agentsh_sandboxes", 0)
	if len(tally.logs) != 0 {
		t.Errorf("%d logs stay open", len(tally.logs))
	}
	tally.Begin(filepath.Join(t.TempDir(), "audit.jsonl")).Drop()
	check(t, tally.Gather(), "agentsh_sandboxes_started_total", 2)
}

func TestALogThatIsNoneIsCounted(t *testing.T) {
	tally := New("1")
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(path, []byte("\xff\xff\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tally.Begin(path).Started(self(t))
	tally.Begin(filepath.Join(t.TempDir(), "nosuch", "audit.jsonl")).Started(self(t))
	all := tally.Gather()
	check(t, all, "agentsh_audit_unreadable_total", 2)
	check(t, all, "agentsh_sandboxes_started_total", 2)
	var nothing *Tally
	nothing.Begin(path).Started(self(t))
}

// Sandboxes start and end while others ask.
func TestTalliesAreForManyGoroutines(t *testing.T) {
	tally := New("1")
	dir := t.TempDir()
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			path := filepath.Join(dir, string(rune('a'+n)))
			one := tally.Begin(path)
			one.Started(self(t))
			log := opened(t, path)
			for range 50 {
				add(t, log, wire.Event{Type: wire.EventExec, Decision: "allow"})
				tally.Gather()
			}
		})
	}
	all.Wait()
	check(t, tally.Gather(), "agentsh_events_total", 8*50, "type", "exec", "decision", "allow")
}
