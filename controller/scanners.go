package controller

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"agentsh/controller/git"
	"agentsh/controller/harness"
	"agentsh/controller/scan"
	"agentsh/internal/lazy"
	"agentsh/internal/rootfs"
)

// scanners are the settings from which the scanners of a run are made.
type scanners struct {
	security harness.Security
	secrets  []string // values that must not leave the sandbox
	canary   string   // empty: none
	model    modelCommand
}

func newScanners(p plan, canary string, m modelCommand) scanners {
	m.endpoint, _ = modelEndpoint(p) // checkModel reports the error
	return scanners{security: p.harness.Security, secrets: p.secrets(), canary: canary, model: m}
}

// scanner makes a scanner. m may be nil.
func (s scanners) scanner(m scan.Model) *scan.Scanner {
	hosts := s.security.HostScanners
	o := scan.Options{
		Unicode: hosts.Unicode.Or(true), Injection: hosts.ContextInjection.Or(true), URLs: hosts.SSRF.Or(true), Secrets: hosts.Secrets.Or(true),
		Settings: hosts.ContextInjection.Or(true),
	}
	if o.Secrets {
		o.Values = s.secrets
	}
	if s.canary != "" {
		o.Canaries = []string{s.canary}
	}
	s.addModel(&o, m)
	return scan.New(o)
}

// hostFileScanner makes the scanner of host files. It does not search for
// secrets, because the harness delivers them on purpose.
func (s scanners) hostFileScanner(m scan.Model) *scan.Scanner {
	o := scan.All()
	o.Secrets = false
	s.addModel(&o, m)
	return scan.New(o)
}

// secretName matches the names of variables with secret values.
var secretName = lazy.Regexp(`(?i)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|PRIVATE_KEY|ACCESS_KEY)`)

// secrets are the credentials of providers, which never enter the sandbox, and
// the values of those variables in env.sandbox that are secrets by their name.
func (p plan) secrets() []string {
	var out []string
	for _, c := range p.credentials {
		out = append(out, c.Value)
	}
	for _, c := range p.agent {
		out = append(out, c.Value)
	}
	for name, v := range p.values.Sandbox {
		if secretName().MatchString(name) && !strings.HasPrefix(v.V, placeholderPrefix) {
			out = append(out, v.V)
		}
	}
	return out
}

// scanContext scans the input of the agent: context files of the repository,
// the agent's definition, the skills, the host files.
func scanContext(ctx context.Context, s scanners, p plan, c checkout, to *findings) error {
	return s.withModel(ctx, to.progress, func(m scan.Model) error {
		if err := scanRepo(ctx, s.scanner(m), c, to); err != nil {
			return err
		}
		if err := scanHarness(ctx, s.scanner(m), p, to); err != nil {
			return err
		}
		return scanHostFiles(ctx, s.hostFileScanner(m), p.files, to)
	})
}

// scanRepo scans the context files in the objects of the repository.
func scanRepo(ctx context.Context, s *scan.Scanner, c checkout, to *findings) error {
	var files []git.TreeEntry
	var ids []string
	for _, e := range c.tree {
		if _, context := scan.Classify(e.Path); context && e.Kind == git.KindFile {
			files, ids = append(files, e), append(ids, e.ID)
		}
	}
	if len(files) == 0 {
		return nil
	}
	out, err := c.objects(ctx, ids)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }() // a read reports an error before the end
	objects := bufio.NewReaderSize(out, 64<<10)
	for _, e := range files {
		content, err := git.Object(objects, e)
		if err != nil {
			return err
		}
		kind, _ := scan.Classify(e.Path)
		if err := reporting(s, to).text(ctx, e.Path, kind, content); err != nil {
			return err
		}
		if _, err := objects.Discard(1); err != nil {
			return fmt.Errorf("read object of %q: %w", e.Path, err)
		}
	}
	return nil
}

// scanHarness scans the operator's files that are delivered to the agent.
func scanHarness(ctx context.Context, s *scan.Scanner, p plan, to *findings) error {
	h := p.harness
	if err := scanFile(ctx, s, h.Path(h.Agent), scan.Instructions, to); err != nil {
		return err
	}
	if err := reporting(s, to).text(ctx, defaultRules, scan.Instructions, bytes.NewReader(p.rules)); err != nil {
		return err
	}
	dirs := []string{h.Path(h.AgentInput)}
	for _, skill := range h.Skills {
		dirs = append(dirs, h.Path(skill.Path))
		for _, name := range slices.Sorted(maps.Keys(skill.Overrides)) {
			if file := h.Path(skill.Overrides[name]); file != "" {
				if err := scanFile(ctx, s, file, scan.Instructions, to); err != nil {
					return err
				}
			}
		}
	}
	for _, plugin := range h.Plugins {
		dirs = append(dirs, h.Path(plugin.Path))
	}
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		_, err = s.Tree(ctx, rootfs.New(root), true, func(found []scan.Finding) { to.add(shortName(dir), found) })
		if err = errors.Join(err, root.Close()); err != nil {
			return err
		}
	}
	return nil
}

// scanHostFiles scans the files of host_files.
func scanHostFiles(ctx context.Context, s *scan.Scanner, files []harness.File, to *findings) error {
	for _, f := range files {
		kind, _ := scan.Classify(strings.TrimPrefix(f.Dest, "/"))
		if f.Source != "" {
			if err := scanFile(ctx, s, f.Source, kind, to); err != nil {
				return err
			}
			continue
		}
		if err := reporting(s, to).text(ctx, f.Dest, kind, bytes.NewReader(f.Data)); err != nil {
			return err
		}
	}
	return nil
}

func scanFile(ctx context.Context, s *scan.Scanner, name string, kind scan.Kind, to *findings) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return reporting(s, to).text(ctx, shortName(name), kind, f)
}

// reportingScan is a scanner whose findings are added to those of the run.
type reportingScan struct {
	scanner *scan.Scanner
	to      *findings
}

func reporting(s *scan.Scanner, to *findings) reportingScan { return reportingScan{s, to} }

func (x reportingScan) text(ctx context.Context, name string, kind scan.Kind, content io.Reader) error {
	found, err := x.scanner.Text(ctx, name, kind, content)
	x.to.add("", found)
	return err
}

// scanResults scans the directory of the results and the commits of w.
func scanResults(ctx context.Context, x reportingScan, dir string, c git.Clone, w work) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	add := func(found []scan.Finding) { x.to.add("", withoutTranscriptCanary(found)) }
	if _, err := x.scanner.OutputTree(ctx, rootfs.New(root), add); err != nil {
		return err
	}
	for _, branch := range append(w.extracted.Branches, w.extracted.Branch) {
		if branch == "" {
			continue
		}
		log := c.Patches(ctx, branch)
		err := x.text(ctx, "commits of "+branch, scan.Output, log)
		if err = errors.Join(err, log.Close()); err != nil {
			return err
		}
	}
	return nil
}

// withoutTranscriptCanary drops canaries in transcripts, because the agent
// program may write its instructions there.
func withoutTranscriptCanary(found []scan.Finding) []scan.Finding {
	return slices.DeleteFunc(found, func(f scan.Finding) bool {
		return f.Rule == scan.RuleCanary && strings.HasPrefix(f.File, transcriptsName+"/")
	})
}

// defaultReviewLabel is the label of a harness that names none.
const defaultReviewLabel = "needs-review"

// failOpenHint is the hint if a scan stops a run before the agent starts.
const failOpenHint = "look at the findings, or write security: {fail_mode: open} in the harness to run all the same"

// maxResultFindings bounds the findings that a result lists.
const maxResultFindings = 500

// findings are the findings of all scans of a run.
type findings struct {
	security harness.Security
	trace    string // id that the findings of a run share; empty: none
	progress progress

	list     []scan.Finding
	critical int // critical findings, including those not listed
	review   *Review
}

func newFindings(s harness.Security, trace string, p progress) *findings {
	return &findings{security: s, trace: trace, progress: p, list: []scan.Finding{}}
}

// add adds findings, with file names relative to dir, and prints warnings for
// severe ones. Findings beyond the bound are counted, but not listed.
func (f *findings) add(dir string, found []scan.Finding) {
	for _, x := range found {
		x.File, x.Trace = path.Join(filepath.ToSlash(dir), x.File), f.trace
		if x.Severity == scan.Critical {
			f.critical++
		}
		if len(f.list) < maxResultFindings || x.Severity == scan.Critical && f.critical == 1 {
			f.list = append(f.list, x)
			if x.Severity >= scan.High {
				f.progress.warn("scan: %s", x)
			}
		}
	}
}

// check fails if there are more than before critical findings, unless the
// harness sets fail_mode: open.
func (f *findings) check(before int, hint string) error {
	n := f.critical - before
	if n > 0 {
		f.askReview()
	}
	if n == 0 || f.security.FailMode.V == harness.FailOpen {
		return nil
	}
	last := scan.Finding{}
	for _, x := range f.list {
		if x.Severity == scan.Critical {
			last = x // the last one belongs to this scan
		}
	}
	return fail(ExitScan, hint, fmt.Errorf("%d critical finding(s): %s", n, last))
}

// askReview requests a review of the run by a person, if the harness enables
// it.
func (f *findings) askReview() {
	e := f.security.Escalation
	if e.OnCritical.V != harness.OnCriticalReview || f.review != nil {
		return
	}
	f.review = &Review{Label: e.ReviewLabel.Or(defaultReviewLabel)}
	f.progress.warn("a person is to review this run: %s", f.review.Label)
}

// into writes the findings into the result. A nil receiver belongs to a run
// that ended before its scans.
func (f *findings) into(r *Result) {
	if f != nil {
		r.Findings, r.Review = f.list, f.review
	}
}
