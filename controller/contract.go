package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"agentsh/controller/git"
	"agentsh/controller/harness"
	"agentsh/controller/record"
	"agentsh/controller/sandbox/host"
	"agentsh/internal/statedir"
)

// runDirectory is the directory in which scripts of other runners start. It has
// the directory iteration-N of each iteration, and repo with the agent's work.
// Scripts of this project start in the target repository.
type runDirectory struct {
	dir     string
	git     git.Tool
	results *results
}

// inRunDirectory reports whether a script starts in the run directory: the
// harness says so, or the script reads variables of other runners and none of
// this one.
func inRunDirectory(h *harness.Harness, name harness.Text) bool {
	if h.ScriptDirectory.IsSet() {
		return h.ScriptDirectory.V == harness.InRun
	}
	text, err := record.ReadFile(h.Path(name), maxDefinition)
	return err == nil && strings.Contains(string(text), "FULLSEND_") && !strings.Contains(string(text), "AGENTSH_")
}

// iteration makes the directory of an iteration, which has the agent's output in
// output.
func (d runDirectory) iteration(n int) (string, error) {
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return "", err
	}
	name := filepath.Join(d.dir, "iteration-"+strconv.Itoa(n))
	if err := os.MkdirAll(name, 0o755); err != nil {
		return "", err
	}
	link := filepath.Join(name, outputName)
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if _, err := os.Stat(d.results.outputDir()); err != nil {
		return name, nil // the agent left no output
	}
	return name, os.Symlink(d.results.outputDir(), link)
}

// checkout makes a repository with the agent's work: the commits of a branch of
// from, and the changed files.
func (d runDirectory) checkout(ctx context.Context, from, branch string) (string, error) {
	dir := filepath.Join(d.dir, "repo")
	if err := statedir.RemoveTree(dir); err != nil {
		return "", err
	}
	args := []string{"clone", "--quiet", "--no-hardlinks"}
	if branch != "" {
		args = append(args, "--branch", branch)
	}
	if _, err := d.git.Run(ctx, d.dir, append(args, "--", from, dir)...); err != nil {
		return "", fmt.Errorf("make a checkout for scripts: %w", err)
	}
	return dir, copyFiles(filepath.Join(d.results.dir(), filesName), dir)
}

// copyFiles copies the regular files of one directory over those of another.
func copyFiles(from, to string) error {
	source, err := os.OpenRoot(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	target, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer func() { _ = target.Close() }()
	return fs.WalkDir(source.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !e.Type().IsRegular() {
			return err
		}
		return copyFile(source, target, name)
	})
}

func copyFile(source, target *os.Root, name string) (err error) {
	in, err := source.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := target.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if err := target.RemoveAll(name); err != nil {
		return err
	}
	out, err := target.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}

// runDirectory is the directory of scripts of other runners.
func (r *run) runDirectory() runDirectory {
	return runDirectory{dir: filepath.Join(r.journal.dir.Work(), "run"), git: r.checkout.git, results: r.results}
}

// foreign are the directory and the variables of a validator of another runner.
func (l *agentLoop) foreign(ctx context.Context, n int) (scripts, []string, error) {
	s := l.scripts
	dir, err := l.legacy.iteration(n)
	if err != nil {
		return s, nil, fmt.Errorf("make a directory for scripts: %w", err)
	}
	s.dir = dir
	c := l.extraction.checkout
	branch := branchPrefix + strconv.Itoa(n)
	if _, err := c.run(ctx, c.clone.Dir, "rev-parse", "--quiet", "--verify", "refs/heads/"+branch); err != nil {
		branch = "" // the agent made no commit
	}
	repo, err := l.legacy.checkout(ctx, c.clone.Dir, branch)
	return s, []string{"TARGET_REPO_DIR=" + repo, "FULLSEND_RUN_DIR=" + l.legacy.dir}, err
}

// foreignPost are the directory and the variables of a post_script of another
// runner.
func (r *run) foreignPost(ctx context.Context) (scripts, []string, error) {
	s, d := r.scripts(), r.runDirectory()
	n := len(r.result.Iterations)
	dir, err := d.iteration(n)
	if err != nil {
		return s, nil, fmt.Errorf("make a directory for scripts: %w", err)
	}
	s.dir = d.dir
	repo, err := d.checkout(ctx, r.checkout.target.Dir, r.result.Branch)
	vars := []string{"REPO_DIR=" + repo, "FULLSEND_RUN_DIR=" + d.dir}
	if r.plan.harness.ValidationLoop.Script.V != "" {
		vars = append(vars, "FULLSEND_VALIDATED_ITERATION_DIR="+filepath.Join(dir, outputName))
	}
	return s, vars, err
}

// checkHost runs the commands that check this machine before a sandbox exists.
func (r *run) checkHost(ctx context.Context) error {
	h := r.plan.harness
	for _, check := range []harness.Text{h.PreflightCheck, h.ValidationLoop.PreflightCheck} {
		if check.V == "" {
			continue
		}
		s := r.scripts()
		res, err := host.Run(ctx, host.Command{Argv: []string{"/bin/sh", "-c", check.V}, Dir: s.dir, Env: s.env, Timeout: scriptTimeout})
		if err == nil {
			err = res.Err()
		}
		if err != nil {
			return badConfig("install what the check asks for, or write it into pre_script", "%s: preflight_check: %w", check.At, err)
		}
	}
	return nil
}
