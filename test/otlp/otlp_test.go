// Package otlp lets agentctl export to OpenTelemetry's own collector: make otlp.
package otlp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// program is agentctl, beside agentsh.
var program = os.Getenv("AGENTCTL")

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "collect" {
		if err := collect(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if program == "" {
		fmt.Fprintln(os.Stderr, "AGENTCTL names no program: start these tests with make otlp")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// place has a harness, a repository and what the collector got.
type place struct {
	t       *testing.T
	dir     string
	address string
	running *exec.Cmd // the collector
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{t: t, dir: t.TempDir()}
	policy, err := os.ReadFile("../../examples/policies/demo.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p.write("policy.yaml", string(policy))
	p.write("agents/tester.md", "# tester\n")
	p.write("harness.yaml", "agent: agents/tester.md\nrole: tester\nruntime: command\npolicy: policy.yaml\nskills: [skills/task]\n"+
		"command: [/sandbox/claude-config/skills/task/run.sh]\n")
	p.write("skills/task/SKILL.md", "# task\n")
	p.write("skills/task/run.sh", "#!/bin/bash\nfor i in 1 2 3 4 5 6 7 8; do cat /etc/shadow; /bin/echo $i >> a.txt; done; exit 0\n")
	p.write("repo/a.txt", "one\n")
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"}, {"add", "-A"}, {"-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x"},
	} {
		if out, err := exec.Command("git", append([]string{"-C", p.path("repo")}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.address = l.Addr().String()
	_ = l.Close()
	t.Cleanup(p.kill)
	return p
}

func (p *place) path(name string) string { return filepath.Join(p.dir, name) }

func (p *place) write(name, text string) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(p.path(name)), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(p.path(name), []byte(text), 0o755); err != nil {
		p.t.Fatal(err)
	}
}

// collect starts the collector, and waits until it says that it is ready.
func (p *place) collect() {
	p.t.Helper()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	p.running = exec.Command(self, "collect", p.address, p.dir)
	said, err := p.running.StderrPipe()
	if err == nil {
		err = p.running.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	var all strings.Builder
	for lines.Scan() {
		all.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "Everything is ready") {
			go func() { // ends with the collector
				for lines.Scan() {
				}
			}()
			return
		}
	}
	p.t.Fatalf("the collector ended:\n%s", all.String())
}

// kill kills the collector.
func (p *place) kill() {
	if p.running != nil {
		_ = p.running.Process.Signal(syscall.SIGKILL)
		_ = p.running.Wait()
		p.running = nil
	}
}

func (p *place) command(args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = p.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "XDG_STATE_HOME=" + p.path("state")}
	return cmd
}

// each calls do with each line of a file that the collector has written. A killed one leaves at most an
// unfinished line, whose request it has not answered.
func (p *place) each(name string, do func(line []byte) error) {
	p.t.Helper()
	data, err := os.ReadFile(p.path(name))
	if errors.Is(err, fs.ErrNotExist) && p.running == nil {
		return // it was killed before anything came
	}
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		if err := do(line); err != nil && p.running != nil {
			p.t.Errorf("%s: %v", name, err)
		}
	}
}

// arrived is what the collector has: how often each event, by run and number, and each span.
type arrived struct {
	events map[string]int
	spans  map[string]ptrace.Span // by id
}

func text(m pcommon.Map, name string) string {
	v, has := m.Get(name)
	if !has {
		return ""
	}
	return v.AsString()
}

func (p *place) arrived() arrived {
	p.t.Helper()
	a := arrived{map[string]int{}, map[string]ptrace.Span{}}
	p.each("logs", func(line []byte) error {
		all, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs(line)
		if err != nil {
			return err
		}
		for _, r := range all.ResourceLogs().All() {
			if name := text(r.Resource().Attributes(), "service.name"); name != "agentctl" {
				p.t.Errorf("events of %q", name)
			}
			for _, s := range r.ScopeLogs().All() {
				for _, e := range s.LogRecords().All() {
					a.events[text(e.Attributes(), "agentsh.run.id")+"/"+text(e.Attributes(), "agentsh.seq")]++
					if text(e.Attributes(), "ocsf.class_uid") == "" || e.TraceID().IsEmpty() || e.EventName() == "" {
						p.t.Errorf("an event without its class, trace or name: %v", e.Attributes().AsRaw())
					}
				}
			}
		}
		return nil
	})
	p.each("traces", func(line []byte) error {
		all, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
		if err != nil {
			return err
		}
		for _, r := range all.ResourceSpans().All() {
			for _, s := range r.ScopeSpans().All() {
				for _, one := range s.Spans().All() {
					a.spans[one.SpanID().String()] = one
				}
			}
		}
		return nil
	})
	return a
}

// result is the part of a result that is compared.
type result struct {
	RunID     string `json:"run_id"`
	Record    string `json:"record"`
	Telemetry struct {
		TraceID string `json:"trace_id"`
		Sent    int    `json:"sent"`
		NotSent int    `json:"not_sent"`
	} `json:"telemetry"`
}

// logged are the events of the audit log of a run, by run and number.
func (p *place) logged(r result) []string {
	p.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.Record, "audit.jsonl"))
	if err != nil {
		p.t.Fatal(err)
	}
	var out []string
	for line := range bytes.Lines(data) {
		var e struct {
			Seq uint64 `json:"seq"`
		}
		if err := json.Unmarshal(line, &e); err != nil {
			p.t.Fatal(err)
		}
		out = append(out, r.RunID+"/"+strconv.FormatUint(e.Seq, 10))
	}
	if len(out) < 20 {
		p.t.Errorf("run %s has %d events", r.RunID, len(out))
	}
	return out
}

func TestARunArrivesWhole(t *testing.T) {
	p := newPlace(t)
	p.collect()
	cmd := p.command("run", "harness.yaml", "--repo", "repo", "--out", "out", "--json", "--quiet", "--otlp", "http://"+p.address)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	var r result
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	a := p.arrived()
	logged := p.logged(r)
	for _, e := range logged {
		if a.events[e] != 1 {
			t.Errorf("event %s arrived %d times", e, a.events[e])
		}
	}
	late := p.checkSpans(a, r)
	if len(a.events) != len(logged) || r.Telemetry.Sent != len(a.events)+len(a.spans)-late || r.Telemetry.NotSent != 0 {
		t.Errorf("%d events in the log, %d events and %d spans at the collector, %d of them late, %+v",
			len(logged), len(a.events), len(a.spans), late, r.Telemetry)
	}
	p.checkMetrics(len(logged))
}

// checkSpans checks that one span is the run, and that the others are its steps. late are the steps that
// follow the result, which cannot count them.
func (p *place) checkSpans(a arrived, r result) (late int) {
	p.t.Helper()
	root := ""
	for id, s := range a.spans {
		if s.Name() == "run" && s.ParentSpanID().IsEmpty() {
			root = id
		}
	}
	for _, s := range a.spans {
		if s.TraceID().String() != r.Telemetry.TraceID || s.SpanID().String() != root && s.ParentSpanID().String() != root {
			p.t.Errorf("span %s has trace %s and parent %s", s.Name(), s.TraceID(), s.ParentSpanID())
		}
		if ended := a.spans[root]; root != "" && s.EndTimestamp() > ended.EndTimestamp() {
			late++
		}
	}
	if root == "" || len(a.spans) < 5 {
		p.t.Errorf("%d spans, that of the run is %q", len(a.spans), root)
	}
	return late
}

// checkMetrics checks the last counts.
func (p *place) checkMetrics(events int) {
	p.t.Helper()
	sums := map[string]int64{}
	p.each("metrics", func(line []byte) error {
		all, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(line)
		if err != nil {
			return err
		}
		clear(sums)
		for _, r := range all.ResourceMetrics().All() {
			for _, s := range r.ScopeMetrics().All() {
				for _, m := range s.Metrics().All() {
					if m.Type() != pmetric.MetricTypeSum {
						continue
					}
					for _, d := range m.Sum().DataPoints().All() {
						sums[m.Name()] += d.IntValue()
					}
				}
			}
		}
		return nil
	})
	if sums["agentsh.runs"] != 1 || sums["agentsh.events"] < int64(events) || sums["agentsh.telemetry.not_sent"] != 0 {
		p.t.Errorf("counts %v for %d events", sums, events)
	}
}

var notSent = regexp.MustCompile(`telemetry: (\d+) of (\d+) events and spans were not sent`)

// A collector that is killed while a batch goes on, and perhaps comes back, loses what is counted and
// nothing else.
func TestWhatAKilledCollectorLosesIsCounted(t *testing.T) {
	for _, back := range []bool{true, false} {
		t.Run(map[bool]string{true: "it comes back", false: "it stays away"}[back], func(t *testing.T) {
			p := newPlace(t)
			p.collect()
			p.write("batch.yaml", "name: b\ncaps: {runs: 2}\nmatrix: {harness: harness.yaml, repo: repo, vars: {N: ['1', '2', '3', '4', '5', '6']}}\n")
			cmd := p.command("batch", "batch.yaml", "--out", "out", "--otlp", "http://"+p.address)
			var errs bytes.Buffer
			cmd.Stderr = &errs
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			ended := 0
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if !strings.HasPrefix(lines.Text(), "done ") {
					continue
				}
				switch ended++; {
				case ended == 2:
					p.kill()
				case ended == 4 && back:
					p.collect()
				}
			}
			if err := cmd.Wait(); err != nil || ended < 6 {
				t.Fatalf("%d runs ended: %v\n%s", ended, err, errs.String())
			}
			p.checkCounted(errs.String(), back)
		})
	}
}

// checkCounted compares what arrived with what agentctl says.
func (p *place) checkCounted(said string, back bool) {
	p.t.Helper()
	a := p.arrived()
	lost, all := 0, 0
	if m := notSent.FindStringSubmatch(said); m != nil {
		lost, _ = strconv.Atoi(m[1])
		all, _ = strconv.Atoi(m[2])
	}
	if back != (lost == 0) {
		p.t.Errorf("the collector is back: %v, and %d of %d were not sent\n%s", back, lost, all, said)
	}
	out, err := p.command("batch", "show", "latest", "--json").Output()
	var view struct {
		Runs []struct {
			RunID string `json:"run_id"`
			End   struct {
				Record string `json:"record"`
			} `json:"end"`
		} `json:"runs"`
	}
	if err == nil {
		err = json.Unmarshal(out, &view)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	logged, missing := 0, 0
	for _, one := range view.Runs {
		for _, e := range p.logged(result{RunID: one.RunID, Record: one.End.Record}) {
			if logged++; a.events[e] == 0 {
				missing++
			}
		}
	}
	p.t.Logf("%d events in the logs, %d of them and %d spans at the collector; %d of %d events and spans counted as not sent",
		logged, logged-missing, len(a.spans), lost, all)
	if back {
		if missing > 0 || len(view.Runs) != 6 {
			p.t.Errorf("%d events are missing, and none is counted as lost", missing)
		}
		return
	}
	// The answer to the last request may be lost with the collector: it is then counted, though it arrived.
	if arrived := len(a.events) + len(a.spans); arrived < all-lost || arrived > all-lost+512 {
		p.t.Errorf("%d arrived, %d of %d are counted as not sent", arrived, lost, all)
	}
	if missing == 0 {
		p.t.Error("nothing is missing: the collector was not away")
	}
}
