package main

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/controller/record"
	"agentsh/controller/sandbox"
	"agentsh/internal/openshelldouble"
	pb "agentsh/internal/openshellpb"
)

// onlyRecord is the result in the record of the only run, and its directory.
func (p *fixture) onlyRecord() (r controller.Result, dir string) {
	p.t.Helper()
	found, err := filepath.Glob(p.path("state/agentsh/runs/*"))
	if err != nil || len(found) != 1 {
		p.t.Fatalf("records: %q, %v", found, err)
	}
	data, err := os.ReadFile(filepath.Join(found[0], record.ResultFile))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	checkResult(p.t, "record", data)
	return r, found[0]
}

// TestARunHasTheLogOfOpenShell has a denial whose text tries to forge a line of the summary.
func TestARunHasTheLogOfOpenShell(t *testing.T) {
	t.Parallel()
	p, d := atOpenShell(t, `echo x >a.txt`, ", "+given)
	const forged = "NET:OPEN [MED] DENIED /usr/bin/x\nbranch main(64) -> h.example:443 [policy:- engine:opa]"
	d.Log(openshelldouble.LogLine("INFO", "openshell_sandbox", "Starting sandbox"), openshelldouble.LogLine("OCSF", "ocsf", forged))
	out, errs, code := p.try("", p.runArgs()...)
	if code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	r, dir := p.onlyRecord()
	l := r.PlaceLog
	if l == nil || l.By != "OpenShell" || l.Lines != 2 || l.Denials != 1 || len(l.Denied) != 1 || l.File != record.PlaceLogFile {
		t.Fatalf("%+v", l)
	}
	if want := "OpenShell denied 1 time:\n  NET:OPEN [MED] DENIED /usr/bin/x\\nbranch main(64) -> h.example:443"; !strings.Contains(out, want) {
		t.Errorf("%s", out)
	}
	stored, err := os.ReadFile(filepath.Join(dir, record.PlaceLogFile))
	if lines := strings.Split(string(stored), "\n"); err != nil || len(lines) != 3 ||
		!strings.HasSuffix(lines[0], " sandbox INFO openshell_sandbox Starting sandbox") {
		t.Errorf("%q, %v", lines, err)
	}
}

// TestASandboxThatDiesLeavesTheLogOfOpenShell has one that ends by itself, and one that somebody deletes with its log.
func TestASandboxThatDiesLeavesTheLogOfOpenShell(t *testing.T) {
	t.Parallel()
	for kind, end := range map[sandbox.EndKind]func(*openshelldouble.Double, string){
		sandbox.EndDied:    func(d *openshelldouble.Double, name string) { d.End(name, pb.SandboxPhase_SANDBOX_PHASE_ERROR) },
		sandbox.EndRemoved: func(d *openshelldouble.Double, name string) { d.Lose(name) },
	} {
		t.Run(string(kind), func(t *testing.T) {
			p, d := atOpenShell(t, `echo at work; sleep 1000`, ", "+given)
			d.Log(openshelldouble.LogLine("OCSF", "ocsf", "NET:OPEN [MED] DENIED /usr/bin/x(64) -> h.example:443"))
			cmd := p.command(p.runArgs()...)
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if strings.HasSuffix(lines.Text(), "| at work") {
					end(d, d.Names()[0])
				}
			}
			_ = cmd.Wait() // the result says it
			r, _ := p.onlyRecord()
			if r.Error == nil || r.Error.End != kind || r.PlaceLog == nil {
				t.Fatalf("%+v, log %+v", r.Error, r.PlaceLog)
			}
			if l := r.PlaceLog; kind == sandbox.EndDied && (l.Denials != 1 || l.Missing != "") ||
				kind == sandbox.EndRemoved && !strings.Contains(l.Missing, "NotFound") {
				t.Errorf("%+v", l)
			}
		})
	}
}
