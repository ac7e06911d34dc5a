package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"agentsh/internal/layout"

	"agentsh/controller/scan"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// Bounds of the scan inside a sandbox.
const (
	sandboxScanTime = 10 * time.Minute
	maxScanLine     = 16 << 10  // bytes of one finding
	maxScanLines    = 20_000    // findings
	maxScanErrors   = 4 << 10   // bytes of what it says on standard error
	maxScanField    = 2 << 10   // bytes of one text of a finding
	maxScanFiles    = 1_000_000 // files it may say it scanned
)

// scanSandbox scans what was assembled, where the agent will read it: context
// files of the repository, the agent's definition, skills and plugins, host
// files, what was added. A sandbox that cannot be scanned is one that is blocked.
func (r *run) scanSandbox(ctx context.Context) error {
	before := r.critical
	found, err := r.findInside(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fail(
			ExitScan,
			"write security: {enabled: false} in the harness to run without scans",
			fmt.Errorf("the sandbox was not scanned: %w", err),
		)
	}
	if found, err = r.withoutOwn(ctx, found); err != nil {
		return err
	}
	r.noteFindings("", r.unknown(found))
	return r.judge(before, "look at the findings, or write security: {fail_mode: open} in the harness to run all the same")
}

// findInside runs the scan and reads its findings.
func (r *run) findInside(ctx context.Context) ([]scan.Finding, error) {
	lines := &scanLines{}
	errs := &head{limit: maxScanErrors}
	req := wire.ExecRequest{
		ID: r.result.RunID + "-scan", Argv: slices.Concat(scanArgv(), r.skippedScanners(), r.scannedPaths()), Cwd: r.repoDir,
		DeadlineMS: sandboxScanTime.Milliseconds(),
	}
	exit, err := r.box.Run(ctx, req, wire.Streams{Stdout: lines, Stderr: errs})
	switch {
	case err != nil:
		return nil, err
	case exit.Kind != wire.ExitExited || exit.Code != 0:
		return nil, fmt.Errorf(
			"%s %d %s%s: %s",
			exit.Kind,
			exit.Code,
			exit.Message,
			ruleSuffix(exit.Rule),
			text.Short(strings.TrimSpace(string(errs.b)), 400),
		)
	case lines.err != nil:
		return nil, lines.err
	case !lines.done || len(lines.buf) > 0:
		return nil, errors.New("its findings have no end")
	}
	return lines.found, nil
}

// skippedScanners are flags for the scanners that the harness switched off, and
// for secrets: those of the repository were told outside, and those of host
// files are there because the harness says so.
func (r *run) skippedScanners() []string {
	hosts := r.harness.Security.HostScanners
	out := []string{"--skip=secret_redactor"}
	for name, on := range map[string]bool{
		"unicode_normalizer": hosts.Unicode.Or(true), "context_injection": hosts.ContextInjection.Or(true), "ssrf_validator": hosts.SSRF.Or(true),
	} {
		if !on {
			out = append(out, "--skip="+name)
		}
	}
	return out
}

// withoutOwn drops the findings that the run's own files for the runtime give
// as they were made, each at its place. In a file that is another now, what is
// else is found.
func (r *run) withoutOwn(ctx context.Context, found []scan.Finding) ([]scan.Finding, error) {
	hosts := r.harness.Security.HostScanners
	injection := hosts.ContextInjection.Or(true)
	s := scan.New(scan.Options{Unicode: hosts.Unicode.Or(true), Injection: injection, Settings: injection, URLs: hosts.SSRF.Or(true)})
	own := map[scan.Finding]bool{}
	for _, f := range r.own {
		if f.Target != "" {
			continue
		}
		name := strings.TrimPrefix(f.Dest, layout.ConfigDir+"/") // the scan inside names it so
		kind, _ := scan.Classify(name)
		made, err := s.Text(ctx, name, kind, bytes.NewReader(f.Data))
		if err != nil {
			return nil, err
		}
		for _, x := range made {
			x.File = f.Dest
			own[visible(x)] = true
		}
	}
	return slices.DeleteFunc(found, func(f scan.Finding) bool { return own[f] }), nil
}

// visible is a finding whose texts print as themselves.
func visible(f scan.Finding) scan.Finding {
	for _, s := range []*string{&f.File, &f.Rule, &f.Message, &f.Excerpt, &f.Hint} {
		*s = text.Visible(*s)
	}
	return f
}

// scannedPaths are what was assembled. Settings that the controller made are
// left out.
func (r *run) scannedPaths() []string {
	out := []string{r.repoDir, layout.ConfigDir + "/..."}
	if r.harness.AgentInput.V != "" {
		out = append(out, layout.AgentInput+"/...")
	}
	for _, f := range r.files {
		if !strings.HasPrefix(f.Dest, layout.EnvDir+"/") && !strings.ContainsAny(f.Dest, " \t\n") {
			out = append(out, f.Dest)
		}
	}
	return out
}

// scanLines reads the lines of a scan. What is in a sandbox may have written
// them: nothing of them is taken on trust.
type scanLines struct {
	buf   []byte // of an unfinished line
	found []scan.Finding
	done  bool
	err   error // the first; nothing is read after it
}

// Write never fails: the scan runs to its end.
func (l *scanLines) Write(p []byte) (int, error) {
	n := len(p)
	for l.err == nil && len(p) > 0 {
		line, rest, whole := bytes.Cut(p, []byte("\n"))
		if len(l.buf)+len(line) > maxScanLine {
			l.err = errors.New("a line of findings is too long")
			break
		}
		if l.buf = append(l.buf, line...); whole {
			l.err = l.read(l.buf)
			l.buf = l.buf[:0]
		}
		p = rest
	}
	return n, nil
}

func (l *scanLines) read(line []byte) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	var x scan.Line
	if err := d.Decode(&x); err != nil {
		return fmt.Errorf("a line of findings: %w", err)
	}
	switch {
	case l.done:
		return errors.New("findings after their end")
	case x.Done && x.Finding == nil && x.Files >= 0 && x.Files <= maxScanFiles:
		l.done = true
		return nil
	case x.Done || x.Finding == nil || x.Files != 0:
		return errors.New("a line that is no finding")
	case len(l.found) >= maxScanLines:
		return fmt.Errorf("more than %d findings", maxScanLines)
	}
	f := *x.Finding
	for _, s := range []string{f.File, f.Rule, f.Message, f.Excerpt, f.Hint} {
		if len(s) > maxScanField {
			return errors.New("a finding that is too long")
		}
	}
	f = visible(f)
	if f.File == "" || f.Rule == "" || f.Line < 1 || f.Column < 1 || f.Trace != "" {
		return errors.New("a finding without a place")
	}
	l.found = append(l.found, f)
	return nil
}

// unknown drops the findings that the scan outside made already.
func (r *run) unknown(found []scan.Finding) []scan.Finding {
	key := func(f scan.Finding) string {
		return fmt.Sprintf("%s:%d:%d:%s:%s:%s", path.Base(f.File), f.Line, f.Column, f.Rule, f.Severity, f.Message)
	}
	known := map[string]bool{}
	for _, f := range r.result.Findings {
		known[key(f)] = true
	}
	var out []scan.Finding
	for _, f := range found {
		f.File = strings.TrimPrefix(f.File, r.repoDir+"/")
		if !known[key(f)] {
			out = append(out, f)
		}
	}
	return out
}

// head keeps the beginning of what is written to it.
type head struct {
	b     []byte
	limit int
}

func (h *head) Write(p []byte) (int, error) {
	h.b = append(h.b, p[:min(len(p), h.limit-len(h.b))]...)
	return len(p), nil
}
