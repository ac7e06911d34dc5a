package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"agentsh/internal/layout"

	"agentsh/controller/extract"
	"agentsh/controller/runtime"
	"agentsh/controller/scan"
	"agentsh/internal/gitguard"
	"agentsh/internal/statedir"
	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
)

// resultLimits bound what an agent may leave.
var resultLimits = tarfs.Limits{Files: 100_000, Bytes: 4 << 30}

// takeOut takes the agent's work into the staging directory, replacing that of
// an earlier iteration: its commits into the host's fresh repository, the
// changed files, its output directory. What a failed agent left and cannot be
// taken is a warning.
func (r *run) takeOut(ctx context.Context, failed bool) error {
	ctx, cancel := r.salvage(ctx, "taking the work out")
	defer cancel()
	r.result.Partial, r.result.Skipped = failed, nil
	if failed && r.box.Cause() != nil {
		return nil // there is nobody to ask
	}
	err := errors.Join(r.takeWork(ctx), r.takeOutput(ctx))
	if err == nil {
		return nil
	}
	r.result.Partial = true
	if !failed {
		return fail(ExitSandbox, "", err)
	}
	r.warn("the work of the agent is not complete: %v", err)
	return nil
}

// takenPrefix is where commits of the agent are in the host's fresh repository,
// by iteration.
const takenPrefix = "agentctl-taken/"

// takeWork takes commits and changed files.
func (r *run) takeWork(ctx context.Context) error {
	if err := r.results.dropFiles(); err != nil {
		return err
	}
	taken, err := extract.Collect(ctx, r.box, extract.Input{
		Governed: layout.Sandbox, Repo: r.repoDir, Base: r.target.Head,
		Target: r.clone.Dir, Branch: takenPrefix + fmt.Sprint(r.invoke.Iteration), Git: r.git.Run, Stream: r.git.Output,
		Out: r.results.staging, Name: filesName, Limits: resultLimits,
		KeepBundle: filepath.Join(r.dir.Path, fmt.Sprintf("commits-%d.bundle", r.invoke.Iteration)),
	})
	r.taken = taken
	r.noteRefused(taken)
	r.noteSkipped(taken.Skipped)
	r.result.Changed = []Changed{}
	m := wire.Manifest{Entries: taken.Changed, Deleted: taken.Deleted, Skipped: taken.Skipped}
	if m.Entries == nil {
		m.Entries = []wire.ManifestEntry{}
	}
	if writeErr := statedir.WriteJSON(filepath.Join(r.results.staging, manifestName), m); writeErr != nil {
		return errors.Join(err, writeErr, r.results.dropFiles()) // nobody could tell whether they are whole
	}
	r.noteChanged(m)
	return err
}

// noteRefused tells which commits stay behind, and where they can be looked at.
func (r *run) noteRefused(taken extract.Result) {
	r.result.Withheld, r.result.Bundle = nil, taken.Bundle
	for _, c := range taken.Refused {
		c.Branch, c.Reason = runtime.Clean(c.Branch), runtime.Clean(c.Reason)
		r.result.Withheld = append(r.result.Withheld, c)
		r.result.Partial = true
		r.noteFindings("", []scan.Finding{{
			File: "commit " + c.Commit, Rule: c.Rule, Severity: scan.High, Message: "not taken, with what builds on it: " + c.Reason,
			Hint: "all commits are kept in the bundle " + taken.Bundle,
		}})
	}
	r.noteRepositories(filesName, taken.Unsafe)
}

// noteRepositories tells what was removed from a directory of the results.
func (r *run) noteRepositories(dir string, removed []gitguard.Problem) {
	for _, p := range removed {
		f := scan.Finding{
			File:     p.File,
			Line:     p.Line,
			Rule:     scan.RuleRepository,
			Severity: scan.High,
			Message:  "removed: " + p.Reason,
			Excerpt:  p.Key,
			Hint:     p.Hint,
		}
		r.noteFindings(dir, []scan.Finding{f})
	}
}

// noteSkipped tells what stays behind with the sandbox.
func (r *run) noteSkipped(skipped []string) {
	if len(skipped) > 0 {
		r.result.Partial = true
		r.result.Skipped = append(r.result.Skipped, skipped...)
		r.warn("not taken out: %s", few(skipped))
	}
}

// noteChanged lists the changed files: what the base has is modified.
func (r *run) noteChanged(m wire.Manifest) {
	inBase := r.inBase()
	for _, e := range m.Entries {
		if e.Type == "dir" {
			continue
		}
		status := "added"
		if inBase(string(e.Path)) {
			status = "modified"
		}
		r.result.Changed = append(r.result.Changed, Changed{Path: e.Path, Status: status})
	}
	for _, name := range m.Deleted {
		r.result.Changed = append(r.result.Changed, Changed{Path: wire.Name(name), Status: "deleted"})
	}
	sort.Slice(r.result.Changed, func(i, j int) bool { return r.result.Changed[i].Path < r.result.Changed[j].Path })
}

// takeOutput takes what the agent wrote to its output directory, whole or not
// at all.
func (r *run) takeOutput(ctx context.Context) error {
	if err := statedir.RemoveTree(filepath.Join(r.results.staging, outputName)); err != nil {
		return err
	}
	m, failed, err := r.receive(ctx, wire.CopyOut{Dir: layout.Output, SkipGit: true}, outputName, tarfs.ReceiveOptions{
		UnpackOptions: tarfs.UnpackOptions{Limits: resultLimits, RefuseGit: true},
	})
	r.noteSkipped(m.Skipped)
	switch {
	case err == nil:
		return r.makeInert(ctx, outputName)
	case errors.Is(failed, os.ErrNotExist): // the agent removed it
		return os.Mkdir(filepath.Join(r.results.staging, outputName), 0o755)
	case failed != nil && !errors.Is(failed, context.Canceled):
		return fmt.Errorf("output of the agent: %w", failed)
	}
	return fmt.Errorf("output of the agent: %w", err)
}

// makeInert removes from a directory of the results what git would act on.
func (r *run) makeInert(ctx context.Context, name string) error {
	dir := filepath.Join(r.results.staging, name)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	removed, err := extract.NewGuard(r.git.Output, "", "", layout.Output).Files(ctx, root, nil, nil)
	if err != nil {
		return errors.Join(fmt.Errorf("output of the agent: %w", err), statedir.RemoveTree(dir))
	}
	for _, p := range removed {
		p.File = name + "/" + p.File // the repository may have a file of the same name
		r.noteSkipped([]string{p.String()})
	}
	r.noteRepositories(name, removed)
	return nil
}

// receive makes name below the staging directory from an archive of the
// sandbox. failed is what the sandbox says of it.
func (r *run) receive(ctx context.Context, what wire.CopyOut, name string, o tarfs.ReceiveOptions) (m wire.Manifest, failed, err error) {
	staging, err := os.OpenRoot(filepath.Dir(filepath.Join(r.results.staging, name)))
	if err != nil {
		return m, nil, err
	}
	defer func() { _ = staging.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	read, write := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		_, err := r.box.CopyOut(ctx, what, write)
		_ = write.CloseWithError(err) // never fails; without an error it is the end
		sent <- err
	}()
	m, err = tarfs.Receive(ctx, staging, filepath.Base(name), read, o)
	if err != nil {
		cancel()
	}
	_, _ = io.Copy(io.Discard, read) // what follows the manifest says nothing
	return m, <-sent, err
}

// transcriptLimits bound what an agent program may write down about itself.
var transcriptLimits = tarfs.Limits{Files: 10_000, Bytes: 1 << 30}

// takeTranscripts takes what the program wrote down about the iteration. It is
// for people to read: what cannot be taken is a warning.
func (r *run) takeTranscripts(ctx context.Context) string {
	var paths []string
	for _, name := range r.runtime.Transcripts(r.invoke) {
		if rel, below := strings.CutPrefix(name, layout.Sandbox+"/"); below {
			paths = append(paths, rel)
		}
	}
	if len(paths) == 0 || r.box.Cause() != nil {
		return ""
	}
	ctx, cancel := r.salvage(ctx, "taking the transcripts out")
	defer cancel()
	name := filepath.Join(recordsName, fmt.Sprintf("iteration-%d", r.invoke.Iteration))
	err := os.MkdirAll(filepath.Join(r.results.staging, recordsName), 0o755)
	if err == nil {
		_, _, err = r.receive(ctx, wire.CopyOut{Dir: layout.Sandbox, Paths: paths, Gone: true, SkipGit: true}, name, tarfs.ReceiveOptions{
			UnpackOptions: tarfs.UnpackOptions{Limits: transcriptLimits, RefuseGit: true}, KeepPartial: true,
		})
	}
	if err != nil {
		r.warn("the transcripts are not complete: %v", err)
		name += tarfs.PartialSuffix
	}
	if _, err := os.Lstat(filepath.Join(r.results.staging, name)); err != nil {
		return ""
	}
	if err := r.makeInert(ctx, name); err != nil {
		r.warn("the transcripts are left behind: %v", err)
		return ""
	}
	return name
}

// takeCommits puts the agent's commits on branches of the target: those of its
// HEAD on agentctl/AGENT/RUN, those of other branches beside it.
func (r *run) takeCommits(ctx context.Context) error {
	if r.taken.Branch == "" && len(r.taken.Branches) == 0 {
		return nil
	}
	name := "agentctl/" + r.result.Agent + "/" + r.result.RunID
	branches := map[string]string{}
	for _, taken := range append(r.taken.Branches, r.taken.Branch) {
		if taken != "" {
			branches[taken] = name + strings.TrimPrefix(taken, takenPrefix+fmt.Sprint(r.invoke.Iteration))
		}
	}
	if err := r.clone.Deliver(ctx, branches, r.dir.Delivery()); err != nil {
		return err
	}
	for _, taken := range r.taken.Branches {
		r.result.Branches = append(r.result.Branches, branches[taken])
	}
	if r.taken.Branch == "" {
		return nil
	}
	commits, err := r.clone.Commits(ctx, r.taken.Branch)
	r.result.Branch = name
	for _, c := range commits {
		r.result.Commits = append(r.result.Commits, Commit{ID: c.ID, Subject: short(c.Subject)})
	}
	return err
}

// lastLine is the last line of a text that is not empty.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}
