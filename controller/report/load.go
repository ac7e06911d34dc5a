package report

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/controller"
	"agentsh/controller/attach"
	"agentsh/controller/record"
	"agentsh/controller/runtime"
	"agentsh/internal/text"
	"agentsh/internal/wire"
	"agentsh/supervisor/audit"
	auditreport "agentsh/supervisor/audit/report"
)

// Load reads the stored files of a run. A missing file is a note on the page. A
// file that cannot be parsed is an error that names it.
func Load(run record.Run) (*Report, error) {
	r := &Report{Run: run, Findings: slices.Clone(run.Findings)}
	l := loader{report: r, out: run.Out}
	for _, part := range []func() error{l.result, l.results, l.audit, l.agent, l.changes, l.operator} {
		if err := part(); err != nil {
			return nil, err
		}
	}
	r.finish()
	return r, nil
}

// loader reads the parts of a report.
type loader struct {
	report *Report
	out    string // the directory of the results; empty if it is gone
}

func (l *loader) note(format string, args ...any) {
	l.report.Notes = append(l.report.Notes, text.Short(fmt.Sprintf(format, args...), 1000))
}

// result reads the result of the run.
func (l *loader) result() error {
	var x controller.Result
	err := l.report.Run.ReadJSON(record.ResultFile, &x)
	switch {
	case errors.Is(err, fs.ErrNotExist) && l.report.Run.Live:
		l.note("the run goes on: this is what is known so far")
		return nil
	case errors.Is(err, fs.ErrNotExist):
		l.note("the run has no result: its agentctl did not come to write one")
		return nil
	case err != nil:
		return err
	}
	l.report.Result, l.report.Findings = &x, x.Findings
	return nil
}

// results checks whether the directory of the results is still that of this
// run.
func (l *loader) results() error {
	if l.report.Result == nil || l.report.Result.Audit == "" { // nothing was delivered
		l.out = ""
		return nil
	}
	var x struct {
		RunID string `json:"run_id"`
	}
	data, err := readSmall(filepath.Join(l.out, record.ResultFile))
	switch {
	case err == nil:
		err = json.Unmarshal(data, &x)
	case errors.Is(err, fs.ErrNotExist):
		l.note("the results are no longer at %s; what is shown was kept with the record", l.out)
		l.out = ""
		return nil
	}
	if err != nil {
		l.note("the results at %s cannot be read: %v; what is shown was kept with the record", l.out, err)
		l.out = ""
		return nil
	}
	if x.RunID != l.report.Run.RunID {
		l.note("%s holds the results of the later run %s now; what is shown was kept with the record", l.out, x.RunID)
		l.out = ""
	}
	return nil
}

// readSmall reads a small file from the directory of the results.
func readSmall(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a regular file", file), err)
	}
	return io.ReadAll(io.LimitReader(f, 64<<20))
}

// find returns the most complete copy of a file: the stored one if it is
// complete, otherwise that in the results. cut reports that its end is missing.
// The path is empty if there is no copy.
func (l *loader) find(name string) (path string, cut bool) {
	at := slices.IndexFunc(l.report.Run.Stored, func(k record.Stored) bool { return k.Name == name })
	kept := filepath.Join(l.report.Run.Path, name)
	if _, err := os.Lstat(kept); err != nil {
		at = -1
	}
	if at >= 0 && l.report.Run.Stored[at].Bytes == l.report.Run.Stored[at].Of {
		return kept, false
	}
	if l.out != "" {
		if _, err := os.Lstat(filepath.Join(l.out, name)); err == nil {
			return filepath.Join(l.out, name), false
		}
	}
	if at >= 0 {
		k := l.report.Run.Stored[at]
		l.note("%s: only the first %s of %s were kept", name, size(k.Bytes), size(k.Of))
		return kept, true
	}
	return "", false
}

// audit reads the audit log.
func (l *loader) audit() error {
	file, cut := l.find(record.AuditFile)
	if file == "" {
		if l.report.Run.Sandbox != "" && !l.report.Run.Live {
			l.note("the audit log was not kept: commands and connections are not shown")
		}
		return nil
	}
	log, err := audit.OpenReader(file)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	defer func() { _ = log.Close() }() // opened for reading
	l.report.Log = &auditreport.Report{Source: file}
	if err := l.check(file, cut); err != nil {
		return err
	}
	for {
		e, err := log.Next()
		var line *audit.LineError
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &line) {
			return nil // check reports it
		}
		if err != nil {
			return fmt.Errorf("audit log %s: %w", file, err)
		}
		l.report.Log.Add(e)
		if e.Type == wire.EventNet {
			l.report.connection(e)
		}
	}
}

// check verifies that the events of the log are consecutive.
func (l *loader) check(file string, cut bool) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	defer f.Close()
	head, err := audit.Verify(f)
	log := l.report.Log
	log.Verified = err == nil && !cut
	log.Check = fmt.Sprintf("the chain of %d events is whole; its anchor went with the sandbox", head.Seq)
	switch {
	case err != nil:
		log.Check = fmt.Sprintf("NOT good: %v; good up to event %d", err, head.Seq)
	case cut:
		log.Check = fmt.Sprintf("the first %d events are whole, the rest was not kept", head.Seq)
	}
	return nil
}

// connection counts a network event. A connection is counted when it starts,
// its bytes when it ends.
func (r *Report) connection(e wire.Event) {
	rule, net := "", e.Net
	if net == nil {
		net = &wire.Net{}
	}
	if e.Rule != nil {
		rule = strings.TrimSpace(e.Rule.Name + " " + e.Rule.Position())
	}
	target := strings.Join(strings.Fields(e.Op+" "+e.Target+" "+e.Path), " ")
	c := Connection{
		Decision: text.Short(
			e.Decision,
			20,
		), Target: text.Short(target, nameShown), Rule: text.Short(rule, nameShown), Message: text.Short(e.Message, nameShown),
	}
	i := slices.IndexFunc(r.Network, func(x *Connection) bool {
		return x.Decision == c.Decision && x.Target == c.Target && x.Rule == c.Rule && (x.Message == c.Message || e.Phase == "end")
	})
	if i < 0 && len(r.Network) == maxTargets {
		r.Omitted.Network++
		return
	}
	if i < 0 {
		i = len(r.Network)
		c.open = map[uint64]bool{}
		r.Network = append(r.Network, &c)
	}
	one := r.Network[i]
	if e.Phase == "end" {
		one.Sent += net.Sent
		one.Received += net.Received
		if one.open[net.ID] {
			delete(one.open, net.ID)
			return
		}
	}
	if e.Phase == "begin" && net.ID != 0 {
		one.open[net.ID] = true
	}
	one.Times += max(e.Count, 1)
}

// agent reads the events of the agent. If a run has no such log, it reads the
// printed lines.
func (l *loader) agent() error {
	file, _ := l.find(record.AgentEventsFile)
	if file != "" {
		return l.events(file)
	}
	if file, _ = l.find(record.AgentLogFile); file != "" {
		return eachLine(file, func(line []byte) error {
			l.report.said(record.AgentEvent{Time: l.report.Run.Started, Event: runtime.Event{Kind: runtime.EventLine, Text: string(line)}})
			return nil
		})
	}
	switch {
	case l.report.Result == nil:
	case l.report.Run.Status == controller.StatusBlocked:
		l.note("a scan blocked the run: what the agent said and changed is not shown")
	case len(l.report.Result.Iterations) > 0:
		l.note("what the agent said was not kept")
	}
	return nil
}

func (l *loader) events(file string) error {
	number := 0
	return eachLine(file, func(line []byte) error {
		number++
		var e record.AgentEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("%s:%d: %w", file, number, err)
		}
		l.report.said(e)
		return nil
	})
}

// maxEvent is the longest line of an agent's log, in bytes.
const maxEvent = 16 << 20

func eachLine(file string, fn func([]byte) error) error {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(make([]byte, 64<<10), maxEvent)
	for s.Scan() {
		if err := fn(s.Bytes()); err != nil {
			return err
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	return nil
}

// changes reads the differences of the changed files.
func (l *loader) changes() error {
	var c controller.Changes
	err := l.report.Run.ReadJSON(record.ChangesFile, &c)
	switch {
	case err == nil:
		l.report.setFiles(c)
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	x := l.report.Result
	if x == nil || len(x.Changed) == 0 || x.Status == controller.StatusBlocked {
		return nil
	}
	l.note("the lines that changed were not kept: only the names of the files are shown")
	for _, f := range x.Changed {
		c.Files = append(c.Files, controller.FileDiff{Path: string(f.Path), Status: f.Status, By: f.By, Why: "not kept"})
	}
	l.report.setFiles(c)
	return nil
}

// operator reads the actions of operators in the sandbox.
func (l *loader) operator() (err error) {
	l.report.Operator, err = attach.Actions(l.report.Run)
	return err
}
