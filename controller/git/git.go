// Package git runs git on the host: it clones the operator's repository for a
// sandbox, lists what a clone holds, and delivers the agent's commits. No
// configuration, hook, filter or other program of a repository runs.
//
//	Tool ── Open ──▶ Repository ── Clone ──▶ Clone ── Deliver ──▶ branches of the Repository
package git

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"agentsh/controller/sandbox/host"
)

// environment is the whole environment of git on the host. Git reads no
// configuration of the user or the system, uses only the file protocol and
// never prompts. It takes no lock to refresh an index that it only reads.
var environment = []string{
	"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/nonexistent",
	"GIT_CONFIG_NOSYSTEM=1", "GIT_ATTR_NOSYSTEM=1",
	"GIT_ALLOW_PROTOCOL=file", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=/bin/false", "GIT_OPTIONAL_LOCKS=0",
	"GIT_NO_LAZY_FETCH=1", "GIT_NO_REPLACE_OBJECTS=1", "GIT_PAGER=cat", "GIT_EDITOR=/bin/false",
}

// safeSettings override the settings of any repository. Each overridden setting
// names a program that git would run, or makes git trust unchecked objects.
var safeSettings = []string{
	"core.hooksPath=/dev/null", "core.fsmonitor=false", "core.untrackedCache=false", "core.attributesFile=/dev/null",
	"core.excludesFile=/dev/null",
	"core.alternateRefsCommand=true", "core.sshCommand=/bin/false", "core.gitProxy=/bin/false", "core.editor=/bin/false", "core.pager=cat",
	"credential.helper=", "diff.external=", "gpg.program=/bin/false", "commit.gpgSign=false",
	"protocol.ext.allow=never", "protocol.allow=never", "protocol.file.allow=always", "uploadpack.packObjectsHook=",
	"transfer.fsckObjects=true", "fetch.fsckObjects=true", "receive.fsckObjects=true",
	"submodule.recurse=false", "fetch.recurseSubmodules=false", "gc.auto=0", "maintenance.auto=false", "advice.detachedHead=false",
}

const (
	maxTime   = 10 * time.Minute // a large repository on a slow disk
	maxOutput = 8 << 20          // bytes of one answer
)

// Tool runs git on the host.
type Tool struct {
	// global is the file that replaces the user's configuration. It sets
	// safe.directory, because another user may own the operator's repository.
	global string
}

// New writes git's configuration into dir. The caller removes dir.
func New(dir string) (Tool, error) {
	g := Tool{global: filepath.Join(dir, "gitconfig")}
	if err := os.WriteFile(g.global, []byte("[safe]\n\tdirectory = *\n"), 0o600); err != nil {
		return Tool{}, fmt.Errorf("write git configuration: %w", err)
	}
	return g, nil
}

// Run runs git in dir and returns its standard output without the last line
// end. An exit status other than 0 is an error with git's last line.
func (g Tool) Run(ctx context.Context, dir string, args ...string) (string, error) {
	return g.Feed(ctx, dir, "", args...)
}

// Feed is like Run, with a standard input.
func (g Tool) Feed(ctx context.Context, dir, stdin string, args ...string) (string, error) {
	res, err := host.Run(ctx, g.command(dir, maxOutput, strings.NewReader(stdin), args))
	if err == nil {
		err = failure(res)
	}
	if err != nil {
		return "", fmt.Errorf("git %s in %s: %w", args[0], dir, err)
	}
	return strings.TrimRight(string(res.Stdout), "\n"), nil
}

// failure is the error of git, with the first line of standard error that names
// a rejected object, or a full disk. The last line does not name it.
func failure(res host.Result) error {
	err := res.Err()
	if err == nil {
		return nil
	}
	for line := range strings.Lines(string(res.Stderr)) {
		if _, text, found := strings.Cut(strings.TrimSpace(line), "error: object "); found {
			return fmt.Errorf("object %.300s: %w", text, err)
		}
	}
	for _, full := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		if strings.Contains(strings.ToLower(string(res.Stderr)), full.Error()) {
			return fmt.Errorf("%w (%w)", err, full)
		}
	}
	return err
}

// Stream runs git and returns its standard output as a stream without a size
// limit. An exit status other than 0 is the error of the last read. Closing the
// stream ends git.
func (g Tool) Stream(ctx context.Context, dir string, stdin io.Reader, args ...string) io.ReadCloser {
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	c := g.command(dir, maxOutput, stdin, args)
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
	return &gitOutput{r, func() {
		cancel()
		<-ended
	}}
}

// Output is like Stream, without a standard input.
func (g Tool) Output(ctx context.Context, dir string, args ...string) io.ReadCloser {
	return g.Stream(ctx, dir, strings.NewReader(""), args...)
}

// gitOutput is the output of a running git process.
type gitOutput struct {
	*io.PipeReader
	end func()
}

// Close ends git and waits until it has exited.
func (s *gitOutput) Close() error {
	err := s.PipeReader.Close()
	s.end()
	return err
}

// command is git with arguments, the safe settings and the safe environment.
func (g Tool) command(dir string, output int, stdin io.Reader, args []string) host.Command {
	argv := []string{"git", "--no-pager"}
	for _, setting := range safeSettings {
		argv = append(argv, "-c", setting)
	}
	argv = append(argv, args...)
	// A directory within another repository is not the top of that repository.
	env := append([]string{"GIT_CEILING_DIRECTORIES=" + filepath.Dir(dir), "GIT_CONFIG_GLOBAL=" + g.global}, environment...)
	return host.Command{Argv: argv, Dir: dir, Env: env, Stdin: stdin, MaxOutput: output, Timeout: maxTime}
}
