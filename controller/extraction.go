package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"agentsh/controller/extract"
	"agentsh/controller/git"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/controller/scan"
	"agentsh/internal/channel"
	"agentsh/internal/gitguard"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
)

// resultLimits bound the extracted work of an agent. The names are held in memory.
var resultLimits = tarfs.Limits{Files: 100_000, Bytes: 4 << 30, AllNames: 24 << 20}

// branchPrefix is the prefix of the clone's branches with the agent's commits.
// The number of the iteration follows.
const branchPrefix = "agentctl-extracted/"

// work is the extracted work of the agent's last iteration.
type work struct {
	extracted extract.Result
	iteration int // 0: nothing was extracted yet
	changed   []Changed
	refused   []extract.Refused
	skipped   []string // files that cannot leave the sandbox, each with the reason
	partial   bool     // the agent was stopped, or part of its work was not extracted
}

// into writes the work into the result.
func (w work) into(r *Result) {
	r.Partial, r.Skipped = w.partial, w.skipped
	if w.iteration > 0 {
		r.Changed, r.RefusedCommits, r.Bundle = w.changed, w.refused, w.extracted.Bundle
	}
}

// bundleFile is where a record has the commits that are in no repository.
func bundleFile(recordDir string, iteration int) string {
	return filepath.Join(recordDir, fmt.Sprintf("commits-%d.bundle", iteration))
}

// branches are the branches of the clone with the agent's commits.
func (w work) branches() []string {
	list := slices.Clone(w.extracted.Branches)
	if w.extracted.Branch != "" {
		list = append(list, w.extracted.Branch)
	}
	return list
}

// takingOut is what a part of the extraction does, for errors.
const takingOut = "taking the work out"

// extraction extracts the agent's work from the sandbox.
type extraction struct {
	sandbox   sandbox.Sandbox
	checkout  checkout
	results   *results
	recordDir string // receives the bundle of refused commits
	findings  *findings
	control   *control
	progress  progress
}

// newExtraction takes the agent's work out of the sandbox of a run.
func newExtraction(r *run) extraction {
	return extraction{
		sandbox: r.box.sandbox, checkout: r.checkout, results: r.results, recordDir: r.journal.dir.Path,
		findings: r.findings, control: r.control, progress: r.progress,
	}
}

// run extracts the work of an iteration into the staging directory and replaces
// the work of an earlier one. Commits go into the clone, changed files and
// output into the results. If the agent failed, missing work is only a warning.
func (x extraction) run(ctx context.Context, before work, iteration int, failed bool) (work, error) {
	if failed && x.sandbox.Cause() != nil { // the supervisor is gone
		before.partial = true
		return before, nil
	}
	w, err := x.repository(ctx, before, iteration)
	w.partial = w.partial || failed
	err = errors.Join(err, x.output(ctx, &w))
	if err == nil {
		return w, nil
	}
	w.partial = true
	if !failed {
		return w, fail(ExitSandbox, "", err)
	}
	if x.control.forced.Err() != nil { // each part says that it was stopped
		err = errForced
	}
	x.progress.warn("the work of the agent is not complete: %v", err)
	return w, nil
}

// repository extracts commits and changed files.
func (x extraction) repository(ctx context.Context, before work, iteration int) (work, error) {
	if err := x.results.dropFiles(); err != nil {
		before.partial, before.skipped = false, nil
		return before, err
	}
	var extracted extract.Result
	var m wire.Manifest
	err := x.control.do(ctx, takingOut, func(ctx context.Context) error {
		err := x.undo(ctx, extracted, iteration)
		if err == nil {
			extracted, m, err = x.collect(ctx, iteration)
		}
		return err
	})
	w := work{extracted: extracted, iteration: iteration}
	x.reportRefused(&w)
	x.reportSkipped(&w, extracted.Skipped)
	w.changed = changedPaths(m, x.checkout.tree, extracted.By)
	return w, err
}

// collect extracts commits and changed files, and writes the manifest of the files. Without a manifest there are no files.
func (x extraction) collect(ctx context.Context, iteration int) (extract.Result, wire.Manifest, error) {
	c := x.checkout
	extracted, err := extract.Collect(ctx, x.sandbox, extract.Input{
		Governed: layout.Sandbox, Repo: c.dir, Base: c.target.Head,
		Target: c.clone.Dir, Branch: branchPrefix + fmt.Sprint(iteration), Git: c.run, Stream: c.output,
		Out: x.results.staging, Name: filesName, Limits: resultLimits,
		KeepBundle: bundleFile(x.recordDir, iteration),
	})
	m := wire.Manifest{Entries: extracted.Changed, Deleted: extracted.Deleted, Skipped: extracted.Skipped}
	if m.Entries == nil {
		m.Entries = []wire.ManifestEntry{}
	}
	if writeErr := statedir.WriteJSON(filepath.Join(x.results.staging, manifestName), m); writeErr != nil {
		return extracted, wire.Manifest{}, errors.Join(err, writeErr, x.results.dropFiles()) // without a manifest the files cannot be verified
	}
	return extracted, m, err
}

// undo removes what an attempt has extracted of an iteration. It was incomplete.
func (x extraction) undo(ctx context.Context, before extract.Result, iteration int) error {
	err := x.results.dropFiles()
	if len((work{extracted: before}).branches()) > 0 {
		err = errors.Join(err, x.checkout.git.RemoveBranches(ctx, x.checkout.clone.Dir, branchPrefix+fmt.Sprint(iteration)))
	}
	if before.Bundle != "" {
		err = errors.Join(err, os.Remove(before.Bundle))
	}
	return err
}

// reportRefused reports the commits that were not extracted.
func (x extraction) reportRefused(w *work) {
	for _, c := range w.extracted.Refused {
		c.Branch, c.Reason = runtime.Clean(c.Branch), runtime.Clean(c.Reason)
		w.refused = append(w.refused, c)
		w.partial = true
		x.findings.add("", []scan.Finding{{
			File: "commit " + c.Commit, Rule: c.Rule, Severity: scan.High,
			Message: "not extracted, with the commits that build on it: " + c.Reason,
			Hint:    "all commits are in the bundle " + w.extracted.Bundle,
		}})
	}
	x.reportRemoved(filesName, w.extracted.Unsafe)
}

// reportRemoved reports the git files that were removed from a directory of the
// results.
func (x extraction) reportRemoved(dir string, removed []gitguard.Problem) {
	for _, p := range removed {
		x.findings.add(dir, []scan.Finding{{
			File: p.File, Line: p.Line, Rule: scan.RuleRepository, Severity: scan.High,
			Message: "removed: " + p.Reason, Excerpt: p.Key, Hint: p.Hint,
		}})
	}
}

// reportSkipped reports files that cannot leave the sandbox.
func (x extraction) reportSkipped(w *work, skipped []string) {
	if len(skipped) > 0 {
		w.partial = true
		w.skipped = append(w.skipped, skipped...)
		x.progress.warn("not extracted: %s", few(skipped))
	}
}

// changedPaths lists the changed files, sorted. A file in the base commit is
// modified; any other file is added. by has the paths that others changed.
func changedPaths(m wire.Manifest, base []git.TreeEntry, by map[string]wire.ChangedBy) []Changed {
	known := make(map[string]bool, len(base))
	for _, e := range base {
		known[e.Path] = wire.IsNamePath(e.Path)
	}
	changed := []Changed{}
	for _, e := range m.Entries {
		if e.Type == "dir" {
			continue
		}
		status := "added"
		if known[string(e.Path)] {
			status = "modified"
		}
		changed = append(changed, Changed{Path: e.Path, Status: status, By: by[string(e.Path)]})
	}
	for _, name := range m.Deleted {
		changed = append(changed, Changed{Path: wire.Name(name), Status: "deleted", By: by[name]})
	}
	sort.Slice(changed, func(i, j int) bool { return changed[i].Path < changed[j].Path })
	return changed
}

// output extracts the agent's whole output directory, or nothing.
func (x extraction) output(ctx context.Context, w *work) error {
	dir := filepath.Join(x.results.staging, outputName)
	var m wire.Manifest
	err := x.control.do(ctx, takingOut, func(ctx context.Context) (err error) {
		if err := statedir.RemoveTree(dir); err != nil {
			return err
		}
		m, err = x.receive(ctx, x.sandbox, wire.CopyOut{Dir: layout.Output, SkipGit: true}, outputName, tarfs.ReceiveOptions{
			UnpackOptions: tarfs.UnpackOptions{Limits: resultLimits, RefuseGit: true},
		})
		var answer *wire.Error                                            // of the sandbox: a file that is missing on the host is no answer
		if errors.As(err, &answer) && errors.Is(answer, fs.ErrNotExist) { // the agent removed it
			return os.Mkdir(dir, 0o755)
		}
		return err
	})
	x.reportSkipped(w, m.Skipped)
	if err != nil {
		return fmt.Errorf("output of the agent: %w", err)
	}
	ctx, cancel := x.control.salvage(ctx, takingOut)
	defer cancel()
	return x.removeUnsafe(ctx, outputName, w)
}

// removeUnsafe removes files that git would execute or read as configuration
// from a directory of the results.
func (x extraction) removeUnsafe(ctx context.Context, name string, w *work) error {
	dir := filepath.Join(x.results.staging, name)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	removed, err := extract.NewGuard(x.checkout.git.Output, "", "", layout.Output).Files(ctx, root, nil, nil)
	if err != nil {
		return errors.Join(fmt.Errorf("output of the agent: %w", err), statedir.RemoveTree(dir))
	}
	for _, p := range removed {
		p.File = name + "/" + p.File // the repository may contain a file of the same name
		x.reportSkipped(w, []string{p.String()})
	}
	x.reportRemoved(name, removed)
	return nil
}

// receive copies files to name in the staging directory.
func (x extraction) receive(
	ctx context.Context, from channel.ArchiveSource, req wire.CopyOut, name string, o tarfs.ReceiveOptions,
) (wire.Manifest, error) {
	parent, err := os.OpenRoot(filepath.Dir(filepath.Join(x.results.staging, name)))
	if err != nil {
		return wire.Manifest{}, err
	}
	defer func() { _ = parent.Close() }()
	return channel.ReceiveArchive(ctx, from, req, channel.ArchiveTarget{Parent: parent, Name: filepath.Base(name), Options: o})
}

// transcriptLimits bound the transcripts of an agent program.
var transcriptLimits = tarfs.Limits{Files: 10_000, Bytes: 1 << 30}

// programLogs are the agent program's own logs, where it ran.
type programLogs struct {
	from  sandbox.Executor
	gone  func() error // why from has ended; nil: it has not
	root  string       // that from serves
	files []string     // absolute
}

// transcripts extracts the agent program's own logs of an iteration. It returns
// their directory below the results, empty if there are none. They are only for
// people to read, so an error is only a warning. skipped are the files that were
// not taken, each with the reason.
func (x extraction) transcripts(ctx context.Context, logs programLogs, iteration int) (dir string, skipped []string) {
	var paths []string
	for _, name := range logs.files {
		if rel, below := strings.CutPrefix(name, logs.root+"/"); below {
			paths = append(paths, rel)
		}
	}
	if len(paths) == 0 || logs.gone() != nil {
		return "", nil
	}
	name := filepath.Join(transcriptsName, fmt.Sprintf("iteration-%d", iteration))
	at := filepath.Join(x.results.staging, name)
	var m wire.Manifest
	err := x.control.do(ctx, "taking the transcripts out", func(ctx context.Context) error {
		err := errors.Join(statedir.RemoveTree(at), statedir.RemoveTree(at+tarfs.PartialSuffix), os.MkdirAll(filepath.Dir(at), 0o755))
		if err == nil {
			wanted := wire.CopyOut{Dir: wire.Name(logs.root), Paths: paths, Gone: true, SkipGit: true}
			m, err = x.receive(ctx, logs.from, wanted, name, tarfs.ReceiveOptions{
				UnpackOptions: tarfs.UnpackOptions{Limits: transcriptLimits, RefuseGit: true, KeepPartial: true},
			})
		}
		return err
	})
	ctx, cancel := x.control.salvage(ctx, "taking the transcripts out")
	defer cancel()
	if err != nil {
		x.progress.warn("the transcripts are not complete: %v", err)
		name += tarfs.PartialSuffix
	}
	if _, err := os.Lstat(filepath.Join(x.results.staging, name)); err != nil {
		return "", nil
	}
	var w work // the transcripts are no part of it, except for what was skipped
	x.reportSkipped(&w, m.Skipped)
	if err := x.removeUnsafe(ctx, name, &w); err != nil {
		x.progress.warn("the transcripts were removed: %v", err)
		return "", w.skipped
	}
	return name, w.skipped
}

// maxAudit is the largest audit log that is taken, in bytes.
const maxAudit = 4 << 30

// openAudit opens the audit log of a sandbox. The sandbox may have made it up: a read
// beyond the limit fails.
func openAudit(ctx context.Context, s sandbox.Sandbox) (io.ReadCloser, error) {
	log, err := s.AuditLog(ctx)
	if err != nil {
		return nil, err
	}
	return &bounded{ReadCloser: log, left: maxAudit}, nil
}

// bounded fails after a number of bytes.
type bounded struct {
	io.ReadCloser
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("it has more than %d bytes", int64(maxAudit))
	}
	return n, err
}

// addAudit copies the audit log of the ended sandbox to the results. It counts
// the events that were missing in the stream.
func addAudit(ctx context.Context, s sandbox.Sandbox, to *results, c *counts) error {
	log, err := openAudit(ctx, s)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	defer log.Close()
	if err := to.copyAudit(log); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	f, err := os.Open(filepath.Join(to.staging, auditName))
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	defer f.Close()
	return c.read(f)
}

// delivered are the agent's commits in the target repository.
type delivered struct {
	branch  string // branch with the commits of the agent's HEAD; empty: no new commits
	others  []string
	commits []Commit // of branch
}

// deliverCommits creates branches of the target with the agent's commits. The
// branch name has the commits of the agent's HEAD; the names of further
// branches are derived from it. git prepares them in dir.
func deliverCommits(ctx context.Context, c git.Clone, w work, name, dir string) (delivered, error) {
	var d delivered
	if w.extracted.Branch == "" && len(w.extracted.Branches) == 0 {
		return d, nil
	}
	branches := map[string]string{}
	for _, from := range w.branches() {
		branches[from] = name + strings.TrimPrefix(from, branchPrefix+fmt.Sprint(w.iteration))
	}
	if err := c.Deliver(ctx, branches, dir); err != nil {
		return d, err
	}
	for _, from := range w.extracted.Branches {
		d.others = append(d.others, branches[from])
	}
	if w.extracted.Branch == "" {
		return d, nil
	}
	commits, err := c.Commits(ctx, w.extracted.Branch)
	d.branch, d.commits = name, []Commit{}
	for _, c := range commits {
		d.commits = append(d.commits, Commit{ID: c.ID, Subject: short(c.Subject)})
	}
	return d, err
}
