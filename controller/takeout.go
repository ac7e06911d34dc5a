package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"agentsh/controller/runtime"
	"agentsh/internal/statedir"
	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
)

// Bounds of what an agent may leave.
const (
	maxBundle  = 2 << 30 // bytes
	maxChanged = 100_000 // files
	maxFiles   = 4 << 30 // bytes of all of them
	gitInside  = 120_000 // milliseconds that git may take in the sandbox
)

// takeOut takes the agent's work into the staging directory, replacing that of
// an earlier iteration: its commits as a bundle, the changed files, its output
// directory. Work of a failed agent that cannot be taken makes the result
// partial.
func (r *run) takeOut(ctx context.Context, failed bool) error {
	ctx, cancel := r.salvage(ctx, "taking the work out")
	defer cancel()
	r.result.Partial = failed
	for _, part := range []func(context.Context) error{r.takeBundle, r.takeFiles, r.takeOutput} {
		err := part(ctx)
		if err == nil {
			continue
		}
		if !failed {
			return fail(ExitSandbox, "", err)
		}
		r.warn("the work of the agent is not complete: %v", err)
	}
	return nil
}

// bundleName is the file with the agent's commits, on the host.
func (r *run) bundleName() string { return filepath.Join(r.dir.work(), "commits.bundle") }

var commitRE = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)

// takeBundle asks git in the sandbox for the commits since the base. What comes
// is data: the agent's repository never reaches the host.
func (r *run) takeBundle(ctx context.Context) error {
	if err := os.RemoveAll(r.bundleName()); err != nil {
		return err
	}
	var head bounded
	if err := r.gitInside(ctx, &head, "rev-parse", "--verify", "HEAD"); err != nil {
		return err
	}
	id := strings.TrimSpace(head.String())
	if !commitRE.MatchString(id) {
		return fmt.Errorf("git in the sandbox calls HEAD %q", runtime.Clean(short(id)))
	}
	if id == r.target.head {
		return nil
	}
	f, err := os.OpenFile(r.bundleName(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = r.gitInside(ctx, &limited{w: f, left: maxBundle}, "bundle", "create", "--quiet", "-", "HEAD", "^"+r.target.head)
	return errors.Join(err, f.Close())
}

// gitInside runs git in the sandbox's repository.
func (r *run) gitInside(ctx context.Context, stdout io.Writer, args ...string) error {
	var stderr bounded
	req := wire.ExecRequest{
		Argv: append([]string{"git", "--no-pager", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"}, args...),
		Cwd:  r.repoDir, DeadlineMS: gitInside,
	}
	exit, err := r.box.Run(ctx, req, wire.Streams{Stdout: stdout, Stderr: &stderr})
	if err != nil {
		return fmt.Errorf("git %s in the sandbox: %w", args[0], err)
	}
	if exit.ExitCode() != 0 {
		return fmt.Errorf("git %s in the sandbox: status %d: %s", args[0], exit.ExitCode(), lastLine(runtime.CleanText(exit.Message+"\n"+stderr.String())))
	}
	return nil
}

// takeFiles takes the files of the repository that are not as they came.
func (r *run) takeFiles(ctx context.Context) error {
	changes, err := r.box.Changes(ctx)
	if err != nil {
		return err
	}
	below := rel(r.repoDir) + "/"
	var paths, deleted []string
	r.result.Changed = []Changed{}
	for _, c := range changes {
		name, ok := strings.CutPrefix(c.Path, below)
		if !ok || inGit(name) {
			continue
		}
		if len(paths)+len(deleted) == maxChanged {
			return fmt.Errorf("more than %d files of the repository were changed", maxChanged)
		}
		if c.Kind == "deleted" {
			deleted = append(deleted, name)
		} else {
			paths = append(paths, name)
		}
		r.result.Changed = append(r.result.Changed, Changed{Path: runtime.Clean(name), Status: changeStatus(c.Kind)})
	}
	sort.Slice(r.result.Changed, func(i, j int) bool { return r.result.Changed[i].Path < r.result.Changed[j].Path })
	m := wire.Manifest{Entries: []wire.ManifestEntry{}, Deleted: deleted}
	if len(paths) > 0 {
		m, err = r.receive(ctx, filesName, wire.CopyOut{Dir: r.repoDir, Paths: outermost(paths), SkipGit: true, Deleted: deleted})
	} else {
		err = r.empty(filesName)
	}
	if err != nil {
		return err
	}
	return statedir.WriteJSON(filepath.Join(r.results.staging, manifestName), m)
}

func changeStatus(kind string) string {
	if kind == "created" {
		return "added"
	}
	return kind
}

// inGit reports whether a path is in or at a .git.
func inGit(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if tarfs.IsGitDir(part) {
			return true
		}
	}
	return false
}

// outermost drops the paths that lie below another one.
func outermost(paths []string) []string {
	sort.Strings(paths)
	have := map[string]bool{}
	for _, p := range paths {
		have[p] = true
	}
	var out []string
	for _, p := range paths {
		inside := false
		for i := strings.LastIndexByte(p, '/'); i > 0 && !inside; i = strings.LastIndexByte(p[:i], '/') {
			inside = have[p[:i]]
		}
		if !inside {
			out = append(out, p)
		}
	}
	return out
}

// takeOutput takes what the agent wrote to its output directory.
func (r *run) takeOutput(ctx context.Context) error {
	_, err := r.box.Stat(ctx, outputDir)
	if errors.Is(err, os.ErrNotExist) {
		return r.empty(outputName)
	}
	if err != nil {
		return err
	}
	_, err = r.receive(ctx, outputName, wire.CopyOut{Dir: outputDir, SkipGit: true})
	return err
}

// receive unpacks an archive of the sandbox as name in the staging directory,
// whole or not at all.
func (r *run) receive(ctx context.Context, name string, req wire.CopyOut) (wire.Manifest, error) {
	if err := statedir.RemoveTree(filepath.Join(r.results.staging, name)); err != nil {
		return wire.Manifest{}, err
	}
	staging, err := os.OpenRoot(r.results.staging)
	if err != nil {
		return wire.Manifest{}, err
	}
	defer func() { _ = staging.Close() }()
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := r.box.CopyOut(ctx, req, write)
		_ = write.CloseWithError(err) // never fails
		done <- err
	}()
	limits := tarfs.Limits{Files: maxChanged, Bytes: maxFiles}
	m, err := tarfs.Receive(ctx, staging, name, read, tarfs.ReceiveOptions{UnpackOptions: tarfs.UnpackOptions{Limits: limits, RefuseGit: true}})
	_ = read.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // ends the sender when the receiver gave up
	if sendErr := <-done; err != nil && sendErr != nil && !errors.Is(sendErr, io.ErrClosedPipe) {
		err = sendErr // what the sandbox says explains more
	}
	if len(m.Skipped) > 0 {
		r.result.Partial = true
		r.warn("not taken out: %s", listed(m.Skipped))
	}
	return m, err
}

// empty makes an empty directory of results.
func (r *run) empty(name string) error {
	dir := filepath.Join(r.results.staging, name)
	return errors.Join(statedir.RemoveTree(dir), os.Mkdir(dir, 0o755))
}

// takeCommits puts the agent's commits on a branch of the target. They pass a
// repository of their own first, where every object is checked.
func (r *run) takeCommits(ctx context.Context) error {
	if _, err := os.Lstat(r.bundleName()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	branch := "agentctl/" + r.result.Agent + "/" + r.result.RunID
	commits, err := r.target.takeBundle(ctx, r.bundleName(), r.clone, branch)
	if err != nil {
		return err
	}
	r.result.Branch, r.result.Commits = branch, commits
	return nil
}

// bounded keeps the first bytes of what is written to it.
type bounded struct{ strings.Builder }

// Write never fails.
func (b *bounded) Write(p []byte) (int, error) {
	const most = 64 << 10
	b.Builder.Write(p[:min(len(p), max(most-b.Len(), 0))])
	return len(p), nil
}

// limited fails when more than left bytes are written.
type limited struct {
	w    io.Writer
	left int64
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= int64(len(p)); l.left < 0 {
		return 0, fmt.Errorf("more than %d bytes of commits", int64(maxBundle))
	}
	return l.w.Write(p)
}

// lastLine is the last line of a text that is not empty.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}
