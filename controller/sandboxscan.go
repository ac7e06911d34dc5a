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

	"agentsh/controller/harness"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/controller/scan"
	"agentsh/internal/layout"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// Bounds of the scan inside a sandbox.
const (
	sandboxScanTime = 10 * time.Minute
	maxScanLine     = 16 << 10  // bytes of one finding
	maxScanLines    = 20_000    // findings
	maxScanErrors   = 4 << 10   // bytes of standard error
	maxScanField    = 2 << 10   // bytes of one text of a finding
	maxScanFiles    = 1_000_000 // maximum number of scanned files that it may report
)

// sandboxScan scans the complete sandbox from inside: context files of the
// repository, the agent's definition, skills and plugins, host files, and added
// files.
type sandboxScan struct {
	security     harness.Security
	repoDir      string         // in the sandbox
	runtimeFiles []runtime.File // made by this run
}

// run scans the sandbox. If the sandbox cannot be scanned, the failure has the
// code [ExitScan].
func (s sandboxScan) run(ctx context.Context, box sandbox.Executor, runID string, p plan) ([]scan.Finding, error) {
	found, err := s.command(ctx, box, runID, slices.Concat(s.skippedScanners(), s.paths(p)))
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, errLost) {
			return nil, err
		}
		return nil, fail(ExitScan, "write security: {enabled: false} in the harness to run without scans",
			fmt.Errorf("the sandbox was not scanned: %w", err))
	}
	return s.withoutRuntimeFiles(ctx, found)
}

// errLost is the error of a scan whose sandbox is gone.
var errLost = errors.New("the scan was lost")

// command runs the scan command and reads its findings.
func (s sandboxScan) command(ctx context.Context, box sandbox.Executor, runID string, args []string) ([]scan.Finding, error) {
	lines := &scanLines{}
	errs := &head{limit: maxScanErrors}
	req := wire.ExecRequest{
		ID: runID + "-scan", Argv: slices.Concat(scanArgv(), args), Cwd: s.repoDir, DeadlineMS: sandboxScanTime.Milliseconds(),
	}
	exit, err := box.Run(ctx, req, wire.Streams{Stdout: lines, Stderr: errs})
	switch {
	case exit.Kind == wire.ExitLost && err != nil:
		return nil, fmt.Errorf("scan the sandbox: %w: %w", errLost, err)
	case exit.Kind == wire.ExitLost:
		return nil, fmt.Errorf("scan the sandbox: %w: %s", errLost, exit.Message)
	case err != nil:
		return nil, err
	case exit.Kind != wire.ExitExited || exit.Code != 0:
		return nil, fmt.Errorf("%s %d %s%s: %s", exit.Kind, exit.Code, exit.Message, ruleSuffix(exit.Rule),
			text.Short(strings.TrimSpace(string(errs.b)), 400))
	case lines.err != nil:
		return nil, lines.err
	case !lines.done || len(lines.buf) > 0:
		return nil, errors.New("its findings have no end")
	}
	return lines.found, nil
}

// skippedScanners are flags that skip the scanners that the harness disables,
// and the scanner for secrets. The scan before the run already reported the
// secrets of the repository, and the harness delivers those of host files on
// purpose.
func (s sandboxScan) skippedScanners() []string {
	hosts := s.security.HostScanners
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

// paths are the scanned paths, without settings of the controller.
func (s sandboxScan) paths(p plan) []string {
	out := []string{s.repoDir, layout.ConfigDir + "/..."}
	if p.harness.AgentInput.V != "" {
		out = append(out, layout.AgentInput+"/...")
	}
	for _, f := range p.files {
		if !strings.HasPrefix(f.Dest, layout.EnvDir+"/") && !strings.ContainsAny(f.Dest, " \t\n") {
			out = append(out, f.Dest)
		}
	}
	return out
}

// withoutRuntimeFiles drops the findings in this run's own files for the
// runtime, each at its position. Findings from a later change of such a file
// stay.
func (s sandboxScan) withoutRuntimeFiles(ctx context.Context, found []scan.Finding) ([]scan.Finding, error) {
	hosts := s.security.HostScanners
	injection := hosts.ContextInjection.Or(true)
	scanner := scan.New(scan.Options{Unicode: hosts.Unicode.Or(true), Injection: injection, Settings: injection, URLs: hosts.SSRF.Or(true)})
	expected := map[scan.Finding]bool{}
	for _, f := range s.runtimeFiles {
		if f.Target != "" {
			continue
		}
		name := strings.TrimPrefix(f.Dest, layout.ConfigDir+"/") // its name in the scan of the sandbox
		kind, _ := scan.Classify(name)
		made, err := scanner.Text(ctx, name, kind, bytes.NewReader(f.Data))
		if err != nil {
			return nil, err
		}
		for _, x := range made {
			x.File = f.Dest
			expected[visible(x)] = true
		}
	}
	return slices.DeleteFunc(found, func(f scan.Finding) bool { return expected[f] }), nil
}

// unknown drops the findings that an earlier scan already reported.
func (s sandboxScan) unknown(found, known []scan.Finding) []scan.Finding {
	key := func(f scan.Finding) string {
		return fmt.Sprintf("%s:%d:%d:%s:%s:%s", path.Base(f.File), f.Line, f.Column, f.Rule, f.Severity, f.Message)
	}
	old := map[string]bool{}
	for _, f := range known {
		old[key(f)] = true
	}
	var out []scan.Finding
	for _, f := range found {
		f.File = strings.TrimPrefix(f.File, s.repoDir+"/")
		if !old[key(f)] {
			out = append(out, f)
		}
	}
	return out
}

// visible escapes unprintable characters in the texts of a finding.
func visible(f scan.Finding) scan.Finding {
	for _, s := range []*string{&f.File, &f.Rule, &f.Message, &f.Excerpt, &f.Hint} {
		*s = text.Visible(*s)
	}
	return f
}

// scanLines parses the output of a scan, one finding a line. It checks every
// field, because a process of the sandbox may have written it.
type scanLines struct {
	buf   []byte // an unfinished line
	found []scan.Finding
	done  bool
	err   error // the first error; later output is ignored
}

// Write never fails, so that the scan runs to its end.
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
		return errors.New("a line that is not a finding")
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
		return errors.New("a finding without a position")
	}
	l.found = append(l.found, f)
	return nil
}

// head stores the first bytes of its input.
type head struct {
	b     []byte
	limit int
}

func (h *head) Write(p []byte) (int, error) {
	h.b = append(h.b, p[:min(len(p), h.limit-len(h.b))]...)
	return len(p), nil
}
