package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"agentsh/controller/sandbox/host"
)

// gitEnv is the whole environment of git on the host. It reads no file of the
// user or the system, speaks no protocol but to files of this machine, asks
// nothing, and takes no locks to refresh what it only reads.
var gitEnv = []string{
	"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/nonexistent",
	"GIT_CONFIG_NOSYSTEM=1", "GIT_ATTR_NOSYSTEM=1",
	"GIT_ALLOW_PROTOCOL=file", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=/bin/false", "GIT_OPTIONAL_LOCKS=0",
	"GIT_NO_LAZY_FETCH=1", "GIT_NO_REPLACE_OBJECTS=1", "GIT_PAGER=cat", "GIT_EDITOR=/bin/false",
}

// gitSafe are settings that outrank those of any repository: each names a
// program that git would run, or makes it trust objects without a look.
var gitSafe = []string{
	"core.hooksPath=/dev/null", "core.fsmonitor=false", "core.untrackedCache=false", "core.attributesFile=/dev/null",
	"core.excludesFile=/dev/null",
	"core.alternateRefsCommand=true", "core.sshCommand=/bin/false", "core.gitProxy=/bin/false", "core.editor=/bin/false", "core.pager=cat",
	"credential.helper=", "diff.external=", "gpg.program=/bin/false", "commit.gpgSign=false",
	"protocol.ext.allow=never", "protocol.allow=never", "protocol.file.allow=always", "uploadpack.packObjectsHook=",
	"transfer.fsckObjects=true", "fetch.fsckObjects=true", "receive.fsckObjects=true",
	"submodule.recurse=false", "fetch.recurseSubmodules=false", "gc.auto=0", "maintenance.auto=false", "advice.detachedHead=false",
}

const (
	gitTimeout = 10 * time.Minute // a large repository on a slow disk
	gitOutput  = 8 << 20          // bytes of one answer
)

// errNotRepository reports a directory that is no git repository of its own.
var errNotRepository = errors.New("not a git repository")

// gitTool runs git on the host.
type gitTool struct {
	// global is the file git reads in place of the user's configuration. It
	// vouches for the owner of the target: the operator named it.
	global string
}

// newGitTool writes the configuration into dir, which the caller removes.
func newGitTool(dir string) (gitTool, error) {
	g := gitTool{global: filepath.Join(dir, "gitconfig")}
	if err := os.WriteFile(g.global, []byte("[safe]\n\tdirectory = *\n"), 0o600); err != nil {
		return gitTool{}, fmt.Errorf("write git configuration: %w", err)
	}
	return g, nil
}

// run runs git in dir and returns its standard output without the last line
// end. A status other than 0 is an error with git's own last line.
func (g gitTool) run(ctx context.Context, dir string, args ...string) (string, error) {
	return g.feed(ctx, dir, "", args...)
}

// feed is run with a standard input.
func (g gitTool) feed(ctx context.Context, dir, stdin string, args ...string) (string, error) {
	res, err := host.Run(ctx, g.command(dir, gitOutput, strings.NewReader(stdin), args))
	if err == nil {
		err = gitError(res)
	}
	if err != nil {
		return "", fmt.Errorf("git %s in %s: %w", args[0], dir, err)
	}
	return strings.TrimRight(string(res.Stdout), "\n"), nil
}

// gitError is how git ended, with the first line that names an object it
// refused: the last line says only that there is one.
func gitError(res host.Result) error {
	err := res.Err()
	if err == nil {
		return nil
	}
	for line := range strings.Lines(string(res.Stderr)) {
		if _, text, found := strings.Cut(strings.TrimSpace(line), "error: object "); found {
			return fmt.Errorf("object %.300s: %w", text, err)
		}
	}
	return err
}

// stream runs git and returns its standard output as it comes, however much it
// is. A status other than 0 is the error of the last read. Closing it ends git.
func (g gitTool) stream(ctx context.Context, dir string, stdin io.Reader, args ...string) io.ReadCloser {
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	c := g.command(dir, gitOutput, stdin, args)
	c.Stdout, c.MaxOutput = w, 4<<10
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		res, err := host.Run(ctx, c)
		if err == nil {
			err = res.Err()
		}
		if err != nil {
			err = fmt.Errorf("git %s in %s: %w", args[0], dir, err)
		}
		_ = w.CloseWithError(err) // never fails; without an error it is the end
	}()
	return &gitStream{r, func() {
		cancel()
		<-ended
	}}
}

// output is stream without a standard input.
func (g gitTool) output(ctx context.Context, dir string, args ...string) io.ReadCloser {
	return g.stream(ctx, dir, strings.NewReader(""), args...)
}

// gitStream is the output of a running git.
type gitStream struct {
	*io.PipeReader
	end func()
}

// Close ends git and waits for its end.
func (s *gitStream) Close() error {
	err := s.PipeReader.Close()
	s.end()
	return err
}

// command is git with arguments, hardened.
func (g gitTool) command(dir string, output int, stdin io.Reader, args []string) host.Command {
	argv := []string{"git", "--no-pager"}
	for _, setting := range gitSafe {
		argv = append(argv, "-c", setting)
	}
	argv = append(argv, args...)
	// A directory inside another repository is not that repository.
	env := append([]string{"GIT_CEILING_DIRECTORIES=" + filepath.Dir(dir), "GIT_CONFIG_GLOBAL=" + g.global}, gitEnv...)
	return host.Command{Argv: argv, Dir: dir, Env: env, Stdin: stdin, MaxOutput: output, Timeout: gitTimeout}
}

// target is the operator's repository.
type target struct {
	git    gitTool
	dir    string // absolute, links resolved
	head   string // commit
	branch string // the branch HEAD is on; empty: detached
	index  string // file
}

// open finds out where HEAD of the repository at dir is.
func (g gitTool) open(ctx context.Context, dir string) (target, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return target{}, err
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return target{}, err
	}
	if _, err := os.Lstat(filepath.Join(abs, ".git")); err != nil {
		return target{}, fmt.Errorf("%s: %w", dir, errNotRepository)
	}
	out, err := g.run(
		ctx,
		abs,
		"rev-parse",
		"--path-format=absolute",
		"HEAD^{commit}",
		"--symbolic-full-name",
		"HEAD",
		"--show-toplevel",
		"--git-path",
		"index",
	)
	if err != nil {
		return target{}, g.whyNot(ctx, dir, abs)
	}
	head, rest, _ := strings.Cut(out, "\n")
	ref, rest, _ := strings.Cut(rest, "\n")
	index, ok := strings.CutPrefix(rest, abs+"\n") // the directory's own name may hold line ends
	if !ok {
		return target{}, fmt.Errorf("%s: %w", dir, errNotRepository)
	}
	t := target{git: g, dir: abs, head: head, index: index}
	if branch, ok := strings.CutPrefix(ref, "refs/heads/"); ok {
		t.branch = branch
	}
	return t, nil
}

// whyNot is what a directory lacks to be a target.
func (g gitTool) whyNot(ctx context.Context, dir, abs string) error {
	if top, err := g.run(ctx, abs, "rev-parse", "--show-toplevel"); err != nil || top != abs {
		return errors.Join(fmt.Errorf("%s: %w", dir, errNotRepository), err)
	}
	return fmt.Errorf("%s has no commit yet", dir)
}

// size is what the target's objects take on the disk, in bytes.
func (t target) size(ctx context.Context) (int64, error) {
	out, err := t.git.run(ctx, t.dir, "count-objects", "-v")
	if err != nil {
		return 0, err
	}
	var total int64
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if name != "size" && name != "size-pack" {
			continue
		}
		kib, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("git count-objects in %s: %w", t.dir, err)
		}
		total += kib << 10
	}
	return total, nil
}

// clone makes a fresh repository at dest with the history of the target's HEAD
// and nothing else of it: no configuration, hook, remote, tag or other branch.
// Its working tree is empty: files travel from the objects, see [target.tree].
func (t target) clone(ctx context.Context, dest, author string) error {
	branch := t.branch
	if branch == "" {
		branch = "work"
	}
	if _, err := t.git.run(ctx, filepath.Dir(dest), "init", "--quiet", "--template=", "--initial-branch="+branch, "--", dest); err != nil {
		return err
	}
	if err := addSettings(filepath.Join(dest, ".git", "config"), author); err != nil {
		return err
	}
	// What the operator has is not checked again: git inside only works with it.
	_, err := t.git.run(
		ctx,
		dest,
		"-c",
		"transfer.fsckObjects=false",
		"-c",
		"fetch.fsckObjects=false",
		"fetch",
		"--quiet",
		"--no-tags",
		"--no-write-fetch-head",
		"--no-recurse-submodules",
		"--update-head-ok",
		"--update-shallow",
		"--",
		t.dir,
		"+"+t.head+":refs/heads/"+branch,
	)
	return err
}

// addSettings adds the agent's name to a configuration, and that git does not
// pack by itself. See git-config(1), Syntax: author needs no quotes.
func addSettings(config, author string) error {
	if !plainName.MatchString(author) {
		return fmt.Errorf("agent name %q: only letters, digits, - and _", author)
	}
	f, err := os.OpenFile(config, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("write git configuration: %w", err)
	}
	_, err = fmt.Fprintf(f, "[user]\n\tname = %s\n\temail = %s@agentctl.invalid\n[gc]\n\tauto = 0\n", author, author)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write git configuration: %w", err)
	}
	return nil
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// uncommitted lists tracked files of the target that differ from HEAD, and
// leaves the index of the clone as HEAD is. It looks at them through the clone,
// so that no filter or monitor of the target's configuration runs, with a copy
// of the target's index: a file with the times and size noted there is not read.
func (t target) uncommitted(ctx context.Context, clone string) ([]string, error) {
	index := filepath.Join(clone, ".git", "index")
	diff := func() (string, error) {
		return t.git.run(ctx, t.dir, "--git-dir="+filepath.Join(clone, ".git"), "--work-tree="+t.dir,
			"diff", "--name-only", "-z", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "HEAD", "--")
	}
	fresh := func() error {
		if err := os.Remove(index); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		_, err := t.git.run(ctx, clone, "read-tree", "HEAD")
		return err
	}
	err := t.copyIndex(index)
	var out string
	if err == nil {
		out, err = diff()
	}
	// An index that is split, or written by a newer git, does not work alone.
	again := err != nil
	if err := fresh(); err != nil {
		return nil, err
	}
	if again {
		if out, err = diff(); err != nil {
			return nil, err
		}
	}
	return splitNUL(out), nil
}

// maxIndex bounds the index that is copied, in bytes.
const maxIndex = 1 << 30

func (t target) copyIndex(to string) error {
	in, err := os.Open(t.index)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(in, maxIndex))
	info, statErr := in.Stat()
	if err = errors.Join(err, statErr, out.Close()); err != nil {
		return err
	}
	// Git reads a file again that was written in the second the index was.
	return os.Chtimes(to, info.ModTime(), info.ModTime())
}

// maxCommits bounds the commits that a result lists.
const maxCommits = 200

// commits lists what is in ref and not in the base.
func (t target) commits(ctx context.Context, dir, ref string) ([]Commit, error) {
	out, err := t.git.run(
		ctx,
		dir,
		"log",
		"-z",
		"--no-show-signature",
		"--no-ext-diff",
		"--max-count="+strconv.Itoa(maxCommits),
		"--format=%H %s",
		ref,
		"^"+t.head,
	)
	if err != nil {
		return nil, err
	}
	commits := []Commit{}
	for _, line := range splitNUL(out) {
		id, subject, _ := strings.Cut(line, " ")
		commits = append(commits, Commit{ID: id, Subject: short(subject)})
	}
	return commits, nil
}

func splitNUL(s string) []string {
	var out []string
	for _, part := range strings.Split(s, "\x00") {
		if part != "" {
			out = append(out, part)
		}
	}
	return out
}
