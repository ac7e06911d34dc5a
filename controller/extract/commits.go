package extract

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/internal/wire"
)

// Limits of the output of the sandbox's git.
const (
	maxBranches      = 32       // branches with new commits
	maxCommits       = 1000     // commit ids in a result
	maxCommandOutput = 1 << 20  // bytes of one command's output
	maxHeader        = 64 << 10 // bytes before a bundle's pack
)

// hardened are the settings of every git that the host runs here. They override the
// target repository's own configuration.
var hardened = []string{
	"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.sshCommand=/bin/false",
	"-c", "protocol.allow=never", "-c", "protocol.file.allow=always",
	"-c", "transfer.fsckObjects=true", "-c", "fetch.fsckObjects=true", "-c", "receive.fsckObjects=true",
	"-c", "fetch.recurseSubmodules=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
	"-c", "credential.helper=", "-c", "safe.bareRepository=all", "-c", "safe.directory=*",
}

// host runs git on the host with the hardened settings.
func (in Input) host(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := in.Git(ctx, dir, append(append([]string{}, hardened...), args...)...)
	if err != nil {
		return "", fmt.Errorf("git %s: %w", verb(args), err)
	}
	return strings.TrimSpace(out), nil
}

// verb returns the subcommand among the arguments of git.
func verb(args []string) string {
	for len(args) > 2 && args[0] == "-c" {
		args = args[2:]
	}
	return args[0]
}

// tip is one branch of the agent with new commits. The agent chooses its name, which
// never becomes a part of a host path.
type tip struct {
	ref string // HEAD, or refs/heads/...
	id  string
}

// lenient disables git's own object checks for a fetch. The objects are examined in a
// scratch repository, and only acceptable commits leave it.
var lenient = []string{"-c", "transfer.fsckObjects=false", "-c", "fetch.fsckObjects=false"}

// collectCommits fetches new commits into the target. Those of HEAD become in.Branch;
// other branches get names derived from it.
func collectCommits(ctx context.Context, ex sandbox.Executor, in Input, res *Result) error {
	tips, err := newTips(ctx, ex, in)
	if err != nil {
		return fmt.Errorf("commits: %w", err)
	}
	if len(tips) == 0 {
		return nil
	}
	at, err := in.about(ctx)
	if err != nil {
		return fmt.Errorf("commits: %w", err)
	}
	if at.work, err = os.MkdirTemp(in.Out, ".agentsh-bundle-"); err != nil {
		return fmt.Errorf("commits: %w", err)
	}
	err = fetch(ctx, ex, in, tips, at)
	if err == nil {
		err = in.publishSound(ctx, tips, at, res)
	}
	if err = errors.Join(err, os.RemoveAll(at.work)); err != nil {
		return fmt.Errorf("commits: %w", err)
	}
	return nil
}

// publishSound publishes the acceptable commits. If others exist, it stores the
// bundle.
func (in Input) publishSound(ctx context.Context, tips []tip, at scratch, res *Result) error {
	sound, refused, err := in.acceptableTips(ctx, tips, at)
	if err != nil {
		return err
	}
	if len(refused) > 0 {
		res.Refused, res.Partial = refused, true
		if in.KeepBundle != "" {
			if err := os.Rename(filepath.Join(at.work, "bundle"), in.KeepBundle); err != nil {
				return fmt.Errorf("keep the bundle of refused commits: %w", err)
			}
			res.Bundle = in.KeepBundle
		}
	}
	if len(sound) == 0 {
		return nil
	}
	return in.publish(ctx, sound, at.work, res)
}

// scratch describes the repository in which commits are examined before they are
// fetched into the target.
type scratch struct {
	work    string // directory
	format  string // of object names in the target
	objects string // directory of the target
}

// about reads the target's properties that a borrowing repository needs. It checks
// that the target has the base.
func (in Input) about(ctx context.Context) (scratch, error) {
	args := []string{"rev-parse", "--path-format=absolute", "--show-object-format", "--git-path", "objects"}
	if in.Base != "" {
		args = append(args, in.Base+"^{commit}")
	}
	said, err := in.host(ctx, in.Target, args...)
	if err != nil {
		return scratch{}, fmt.Errorf("base %s is not in the target: %w", in.Base, err)
	}
	at := scratch{}
	at.format, at.objects, _ = strings.Cut(said, "\n")
	at.objects = strings.TrimSuffix(at.objects, "\n"+in.Base)
	return at, nil
}

// newTips asks the sandbox for HEAD and for branches with commits that base does not
// contain. The agent controls the answers: they only select what is requested next.
func newTips(ctx context.Context, ex sandbox.Executor, in Input) ([]tip, error) {
	head, err := ask(ctx, ex, in, "rev-parse", "--verify", "--quiet", "--end-of-options", "HEAD^{commit}")
	var no *refusal
	if err != nil && (!errors.As(err, &no) || no.exit.Kind != wire.ExitExited || no.exit.Code != 1) {
		return nil, err
	}
	if head != "" && !isObjectID(head) {
		return nil, fmt.Errorf("the sandbox's git names %.100q as its HEAD", head)
	}
	args := []string{"for-each-ref", "--format=%(objectname) %(refname)", "refs/heads/"}
	if known := cmp.Or(head, in.Base); known != "" {
		args = append(args, "--no-merged="+known)
	}
	list, err := ask(ctx, ex, in, args...)
	if err != nil {
		return nil, err
	}
	candidates := []tip{}
	if head != "" {
		candidates = append(candidates, tip{"HEAD", head})
	}
	for line := range strings.Lines(list) {
		id, ref, _ := strings.Cut(strings.TrimSpace(line), " ")
		candidates = append(candidates, tip{ref, id})
	}
	var tips []tip
	for _, t := range candidates {
		if !isObjectID(t.id) || t.ref != "HEAD" && !strings.HasPrefix(t.ref, "refs/heads/") || strings.ContainsAny(t.ref, " \x00") {
			return nil, fmt.Errorf("the sandbox's git names %.100q %.100q", t.id, t.ref)
		}
		isNew, err := hasNew(ctx, ex, in, t.id)
		if err != nil {
			return nil, err
		}
		if isNew {
			tips = append(tips, t)
		}
		if len(tips) > maxBranches {
			return nil, fmt.Errorf("more than %d branches have new commits", maxBranches)
		}
	}
	return tips, nil
}

// hasNew reports whether a commit has ancestors, or is one, that base does not
// contain.
func hasNew(ctx context.Context, ex sandbox.Executor, in Input, id string) (bool, error) {
	if id == in.Base {
		return false, nil
	}
	args := []string{"rev-list", "--max-count=1", id}
	if in.Base != "" {
		args = append(args, "^"+in.Base)
	}
	out, err := ask(ctx, ex, in, append(args, "--")...) // a file may have any name
	return out != "", err
}

// refusal is the error of a git in the sandbox that exited with a code other than 0.
type refusal struct {
	exit wire.Exit
	text string
}

func (r *refusal) Error() string { return r.text }

// ask runs git in the sandbox and returns its output.
func ask(ctx context.Context, ex sandbox.Executor, in Input, args ...string) (string, error) {
	var out bytes.Buffer
	err := runGit(ctx, ex, in, output{&out, maxCommandOutput, time.Minute}, args...)
	return strings.TrimSpace(out.String()), err
}

// output is the destination and the limits of the output of a git in the sandbox.
type output struct {
	w     io.Writer
	bytes int64
	time  time.Duration
}

// runGit runs git in the sandbox, where the agent's configuration has no more rights
// than the agent. It kills git after too much output or too much time.
func runGit(ctx context.Context, ex sandbox.Executor, in Input, out output, args ...string) error {
	ctx, done := context.WithTimeoutCause(ctx, out.time, fmt.Errorf("took more than %s", out.time))
	defer done()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	said := &firstBytes{left: 4096}
	exit, err := ex.Run(ctx, wire.ExecRequest{
		Argv: append([]string{"git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "--no-pager"}, args...),
		Cwd:  in.Repo,
		Env:  []string{"LC_ALL=C", "GIT_OPTIONAL_LOCKS=0", "GIT_NO_REPLACE_OBJECTS=1"},
	}, sandbox.Streams{Stdout: &bounded{out.w, out.bytes, stop}, Stderr: said})
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("git %s in the sandbox: %w", args[0], cause)
	}
	if err != nil {
		return fmt.Errorf("git %s in the sandbox: %w", args[0], err)
	}
	if exit.Kind != wire.ExitExited || exit.Code != 0 {
		text := cmp.Or(exit.Message, strings.TrimSpace(said.String()))
		return &refusal{exit, fmt.Sprintf("git %s in the sandbox: %s %d: %q", args[0], exit.Kind, exit.ExitCode(), text)}
	}
	return nil
}

// bounded stops a command that writes too much.
type bounded struct {
	w    io.Writer
	left int64
	stop context.CancelCauseFunc
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		err := errors.New("wrote more bytes than are taken")
		b.stop(err)
		return 0, err
	}
	return b.w.Write(p)
}

// firstBytes stores the first bytes and discards the rest.
type firstBytes struct {
	bytes.Buffer
	left int
}

func (f *firstBytes) Write(p []byte) (int, error) {
	n := min(len(p), f.left)
	f.left -= n
	f.Buffer.Write(p[:n])
	return len(p), nil
}

// fetch fetches the tips into a fresh repository in work that borrows the target's
// objects. Only objects of the agent get there.
func fetch(ctx context.Context, ex sandbox.Executor, in Input, tips []tip, at scratch) error {
	file := filepath.Join(at.work, "bundle")
	if err := receiveBundle(ctx, ex, in, tips, file); err != nil {
		return err
	}
	if err := checkHeader(file, tips); err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	repo, err := in.borrowing(ctx, at, "repo")
	if err != nil {
		return err
	}
	args := append(slices.Clone(lenient), "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", file)
	for i, t := range tips {
		args = append(args, fmt.Sprintf("%s:refs/heads/%d", t.ref, i))
	}
	_, err = in.host(ctx, repo, args...)
	return err
}

// borrowing makes a bare repository in at.work that borrows the target's objects. Of
// these only the base is visible: received commits build on it alone.
func (in Input) borrowing(ctx context.Context, at scratch, name string) (string, error) {
	if _, err := in.host(ctx, at.work, "init", "--quiet", "--bare", "--template=", "--object-format="+at.format, name); err != nil {
		return "", err
	}
	repo := filepath.Join(at.work, name)
	if err := os.MkdirAll(filepath.Join(repo, "objects", "info"), 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(repo, "objects", "info", "alternates"), []byte(at.objects+"\n"), 0o600); err != nil {
		return "", err
	}
	if in.Base == "" {
		return repo, nil
	}
	return repo, os.WriteFile(filepath.Join(repo, "refs", "base"), []byte(in.Base+"\n"), 0o600)
}

// receiveBundle streams a bundle of the tips' new commits into file.
func receiveBundle(ctx context.Context, ex sandbox.Executor, in Input, tips []tip, file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	args := []string{"bundle", "create", "--quiet", "-"}
	for _, t := range tips {
		args = append(args, t.ref)
	}
	if in.Base != "" {
		args = append(args, "^"+in.Base)
	}
	err = runGit(ctx, ex, in, output{f, in.MaxBundle, 10 * time.Minute}, append(args, "--")...) // a file may have any name
	return errors.Join(err, f.Close())
}

// checkHeader checks the part of a bundle before its pack: the format, the
// prerequisites, and the refs. The refs must be exactly the tips. A filtered bundle is
// refused. See gitformat-bundle(5).
func checkHeader(file string, tips []tip) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReader(io.LimitReader(f, maxHeader))
	line, err := r.ReadString('\n')
	if err != nil || line != "# v2 git bundle\n" && line != "# v3 git bundle\n" {
		return fmt.Errorf("starts with %.40q", line)
	}
	seen := map[string]bool{}
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return fmt.Errorf("header does not end within %d bytes", maxHeader)
		}
		if line = strings.TrimSuffix(line, "\n"); line == "" {
			break
		}
		switch line[0] {
		case '@':
			if line != "@object-format=sha1" && line != "@object-format=sha256" {
				return fmt.Errorf("needs %.100q", line)
			}
		case '-':
			if id, _, _ := strings.Cut(line[1:], " "); !isObjectID(id) {
				return fmt.Errorf("builds on %.100q", line)
			}
		default:
			id, ref, _ := strings.Cut(line, " ")
			if !contains(tips, tip{ref, id}) || seen[ref] {
				return fmt.Errorf("holds %.200q, which was not asked for", line)
			}
			seen[ref] = true
		}
	}
	if len(seen) != len(tips) {
		return fmt.Errorf("holds %d of %d branches", len(seen), len(tips))
	}
	return nil
}

func contains(tips []tip, t tip) bool {
	for _, x := range tips {
		if x == t {
			return true
		}
	}
	return false
}

// publish fetches the checked objects into the target and creates the branches. A
// fetch from a local path runs git's object checks. A fetch from a bundle does not in
// every version of git.
func (in Input) publish(ctx context.Context, tips []tip, work string, res *Result) error {
	args := []string{
		"fetch",
		"--quiet",
		"--no-tags",
		"--no-write-fetch-head",
		"--no-recurse-submodules",
		"--atomic",
		filepath.Join(work, "repo"),
	}
	names := make([]string, len(tips))
	for i, t := range tips {
		names[i] = branchName(in.Branch, t.ref)
		for _, other := range names[:i] {
			if other == names[i] {
				names[i] = fmt.Sprintf("%s-%d", names[i], i)
			}
		}
		if _, err := in.host(ctx, in.Target, "rev-parse", "--verify", "--quiet", "refs/heads/"+names[i]); err == nil {
			return fmt.Errorf("branch %s exists in the target", names[i])
		}
		ref := fmt.Sprintf("refs/sound/%d", i)
		if _, err := in.host(ctx, filepath.Join(work, "repo"), "update-ref", ref, t.id); err != nil {
			return err
		}
		args = append(args, ref+":refs/heads/"+names[i])
	}
	if _, err := in.host(ctx, in.Target, args...); err != nil {
		return err
	}
	for i, t := range tips {
		if t.ref != "HEAD" {
			res.Branches = append(res.Branches, names[i])
			continue
		}
		res.Branch = names[i]
		list := []string{"rev-list", fmt.Sprintf("--max-count=%d", maxCommits), "refs/heads/" + names[i]}
		if in.Base != "" {
			list = append(list, "^"+in.Base)
		}
		out, err := in.host(ctx, in.Target, list...)
		if err != nil {
			return err
		}
		res.Commits = strings.Fields(out)
	}
	return nil
}

// branchName returns the name of a branch on the host for a ref of the agent.
func branchName(branch, ref string) string {
	if ref == "HEAD" {
		return branch
	}
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '-'
	}, strings.TrimPrefix(ref, "refs/heads/"))
	return branch + "-" + name[:min(len(name), 64)]
}

// isObjectID reports whether s is a complete SHA-1 or SHA-256 object name.
func isObjectID(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

// isBranch reports whether s is a valid branch name in plain characters. See
// git-check-ref-format(1).
func isBranch(s string) bool {
	ok := s != "" && len(s) <= 128 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") == ""
	return ok && !strings.Contains(s, "..") && !strings.Contains(s, "//") && !strings.Contains(s, "/.") && !strings.Contains(s, "./") &&
		!strings.HasPrefix(s, "-") && !strings.HasPrefix(s, "/") && !strings.HasPrefix(s, ".") &&
		!strings.HasSuffix(s, "/") && !strings.HasSuffix(s, ".") && !strings.HasSuffix(s, ".lock") && !strings.Contains(s, ".lock/")
}
