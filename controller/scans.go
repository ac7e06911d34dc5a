package controller

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"agentsh/controller/bootstrap"
	"agentsh/controller/git"
	"agentsh/controller/harness"
	"agentsh/controller/scan"
	"agentsh/internal/rootfs"
)

// failOpen is the fail_mode in which critical findings stop nothing.
const failOpen = harness.FailOpen

// defaultReviewLabel is the label of a harness that names none.
const defaultReviewLabel = "needs-review"

// scans reports whether the harness has scans; they are on unless switched off.
func (r *run) scans() bool { return r.harness.Security.Enabled.Or(true) }

// scanner makes the scanner of the harness, with the secrets that must not
// come out.
func (r *run) scanner(m scan.Model) *scan.Scanner {
	hosts := r.harness.Security.HostScanners
	o := scan.Options{
		Unicode: hosts.Unicode.Or(true), Injection: hosts.ContextInjection.Or(true), URLs: hosts.SSRF.Or(true), Secrets: hosts.Secrets.Or(true),
		Settings: hosts.ContextInjection.Or(true),
	}
	if o.Secrets {
		o.Values = r.secretValues()
	}
	if r.canary != "" {
		o.Canaries = []string{r.canary}
	}
	r.addModel(&o, m)
	return scan.New(o)
}

// secretName tells the variables whose values are secrets.
var secretName = regexp.MustCompile(`(?i)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|PRIVATE_KEY|ACCESS_KEY)`)

// secretValues are the credentials of providers, which the sandbox never had,
// and the values of env.sandbox that are secrets by their names.
func (r *run) secretValues() []string {
	var out []string
	for _, c := range r.secrets {
		out = append(out, c.Value)
	}
	for name, v := range r.x.Sandbox {
		if secretName.MatchString(name) && !strings.HasPrefix(v.V, placeholderPrefix) {
			out = append(out, v.V)
		}
	}
	return out
}

// scanContext scans what the agent will take in, before anything is created:
// the files of the repository that agents read, the agent's definition, the
// skills, the host files.
func (r *run) scanContext(ctx context.Context) error {
	err := r.withModel(ctx, func(m scan.Model) error {
		if err := r.scanRepo(ctx, r.scanner(m)); err != nil {
			return err
		}
		return r.scanHarness(ctx, m)
	})
	if err != nil {
		return err
	}
	return r.judge(0, "look at the findings, or write security: {fail_mode: open} in the harness to run all the same")
}

// scanRepo scans context files of the repository, out of its objects.
func (r *run) scanRepo(ctx context.Context, s *scan.Scanner) error {
	var files []git.TreeEntry
	var ids []string
	for _, b := range r.tree {
		if _, context := scan.Classify(b.Path); context && b.Kind == bootstrap.KindFile {
			files, ids = append(files, b), append(ids, b.ID)
		}
	}
	if len(files) == 0 {
		return nil
	}
	out, err := r.clone.Objects(ctx, ids)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }() // an error before the end was reported by a read
	objects := bufio.NewReaderSize(out, 64<<10)
	for _, b := range files {
		content, err := git.Object(objects, b)
		if err != nil {
			return err
		}
		kind, _ := scan.Classify(b.Path)
		if err := r.scanText(ctx, s, b.Path, kind, content); err != nil {
			return err
		}
		if _, err := objects.Discard(1); err != nil {
			return fmt.Errorf("read object of %q: %w", b.Path, err)
		}
	}
	return nil
}

// scanHarness scans the operator's own files that reach the agent.
func (r *run) scanHarness(ctx context.Context, m scan.Model) error {
	s := r.scanner(m)
	if err := r.scanFile(ctx, s, r.harness.Path(r.harness.Agent), scan.Instructions); err != nil {
		return err
	}
	if err := r.scanText(ctx, s, defaultRules, scan.Instructions, bytes.NewReader(r.rules)); err != nil {
		return err
	}
	dirs := []string{r.harness.Path(r.harness.AgentInput)}
	for _, skill := range r.harness.Skills {
		dirs = append(dirs, r.harness.Path(skill.Path))
	}
	for _, plugin := range r.harness.Plugins {
		dirs = append(dirs, r.harness.Path(plugin.Path))
	}
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		_, err = s.Tree(ctx, rootfs.New(root), true, func(found []scan.Finding) { r.noteFindings(shortName(dir), found) })
		if err = errors.Join(err, root.Close()); err != nil {
			return err
		}
	}
	o := scan.All()
	o.Secrets = false // those are there because the harness says so
	r.addModel(&o, m)
	return r.scanHostFiles(ctx, scan.New(o))
}

// scanHostFiles scans what host_files brings.
func (r *run) scanHostFiles(ctx context.Context, s *scan.Scanner) error {
	for _, f := range r.files {
		kind, _ := scan.Classify(strings.TrimPrefix(f.Dest, "/"))
		if f.Source != "" {
			if err := r.scanFile(ctx, s, f.Source, kind); err != nil {
				return err
			}
			continue
		}
		if err := r.scanText(ctx, s, f.Dest, kind, bytes.NewReader(f.Data)); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) scanFile(ctx context.Context, s *scan.Scanner, name string, kind scan.Kind) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return r.scanText(ctx, s, shortName(name), kind, f)
}

func (r *run) scanText(ctx context.Context, s *scan.Scanner, name string, kind scan.Kind, content io.Reader) error {
	found, err := s.Text(ctx, name, kind, content)
	r.noteFindings("", found)
	return err
}

// maxResultFindings bounds what a result lists.
const maxResultFindings = 500

// noteFindings keeps findings, the names of their files below dir, and tells
// those that matter. A finding beyond those that are listed still counts.
func (r *run) noteFindings(dir string, found []scan.Finding) {
	for _, f := range found {
		f.File, f.Trace = path.Join(filepath.ToSlash(dir), f.File), r.result.Trace
		if f.Severity == scan.Critical {
			r.critical++
		}
		if len(r.result.Findings) < maxResultFindings || f.Severity == scan.Critical && r.critical == 1 {
			r.result.Findings = append(r.result.Findings, f)
			if f.Severity >= scan.High {
				r.warn("scan: %s", f)
			}
		}
	}
}

// judge fails when more than before critical findings were made, unless the
// harness lets them pass.
func (r *run) judge(before int, hint string) error {
	n := r.critical - before
	if n > 0 {
		r.askReview()
	}
	if n == 0 || r.harness.Security.FailMode.V == failOpen {
		return nil
	}
	first := scan.Finding{}
	for _, f := range r.result.Findings {
		if f.Severity == scan.Critical {
			first = f // the last one is of this scan
		}
	}
	return fail(ExitScan, hint, fmt.Errorf("%d critical finding(s): %s", n, first))
}

// askReview notes that a person is to look at the run, where the harness says
// so.
func (r *run) askReview() {
	e := r.harness.Security.Escalation
	if e.OnCritical.V != harness.OnCriticalReview || r.result.Review != nil {
		return
	}
	r.result.Review = &Review{Label: e.ReviewLabel.Or(defaultReviewLabel)}
	r.warn("a person is to review this run: %s", r.result.Review.Label)
}

// scanOutput scans what was taken out, before anybody sees it: the changed
// files, the agent's output and log, and every change its commits make. When it
// blocks, nothing is delivered.
func (r *run) scanOutput(ctx context.Context) error {
	ctx, cancel := r.salvage(ctx, "scanning the results")
	defer cancel()
	before := r.critical
	r.blocked = true // also when what is there cannot be read
	if err := r.scanResults(ctx, r.scanner(nil)); err != nil {
		return fail(ExitScan, "", fmt.Errorf("scan results: %w", err))
	}
	if err := r.judge(before, "nothing was delivered; the findings are in the run record: "+r.dir.Path); err != nil {
		return err
	}
	r.blocked = false
	return nil
}

// withoutOwnMark drops canaries in what the agent program itself wrote down: it
// may keep its instructions there.
func withoutOwnMark(found []scan.Finding) []scan.Finding {
	return slices.DeleteFunc(found, func(f scan.Finding) bool {
		return f.Rule == scan.RuleCanary && strings.HasPrefix(f.File, recordsName+"/")
	})
}

func (r *run) scanResults(ctx context.Context, s *scan.Scanner) error {
	root, err := os.OpenRoot(r.results.staging)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if _, err := s.OutputTree(ctx, rootfs.New(root), func(found []scan.Finding) { r.noteFindings("", withoutOwnMark(found)) }); err != nil {
		return err
	}
	for _, branch := range append(r.taken.Branches, r.taken.Branch) {
		if branch == "" {
			continue
		}
		log := r.clone.Patches(ctx, branch)
		err := r.scanText(ctx, s, "commits of "+branch, scan.Output, log)
		if err = errors.Join(err, log.Close()); err != nil {
			return err
		}
	}
	return nil
}
