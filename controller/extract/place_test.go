package extract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"agentsh/internal/channel"
	"agentsh/internal/wire"
)

// fakeSandbox is a directory that plays the sandbox, reached over a real channel.
// Commands in it see INSIDE=1, which tells code that runs there from code that
// runs on the host.
type fakeSandbox struct {
	t      *testing.T
	dir    string // governed
	repo   string // below dir
	out    string // on the host
	target string // the operator's repository on the host
	hit    string // made by hostile code that runs on the host
	base   string
	before map[string]string
	client *channel.Client

	files  channel.Files
	replay []wire.Change // instead of what really changed
	run    func(wire.ExecRequest, wire.Streams) (wire.Exit, bool)
}

func (p *fakeSandbox) Files() channel.Files { return p.files }

func (p *fakeSandbox) Events(context.Context, wire.EventRequest) iter.Seq2[wire.Event, error] {
	return nil
}

func (p *fakeSandbox) Exec(ctx context.Context, req wire.ExecRequest, s wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
	if p.run != nil {
		if exit, done := p.run(req, s); done {
			return exit, wire.TreeEmpty{}, nil
		}
	}
	cmd := exec.CommandContext(ctx, req.Argv[0], req.Argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = req.Cwd, s.Stdout, s.Stderr
	cmd.Env = append([]string{"INSIDE=1", "HOME=" + p.dir, "PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1"}, req.Env...)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return wire.Exit{Kind: wire.ExitSpawnFailed, Code: 127, Message: err.Error()}, wire.TreeEmpty{}, nil
	}
	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return wire.Exit{Kind: wire.ExitExited, Code: code}, wire.TreeEmpty{}, nil
	}
	return wire.Exit{Kind: wire.ExitSignaled, Signal: 9}, wire.TreeEmpty{}, nil
}

// Changes compares with what was there when the place was made.
func (p *fakeSandbox) Changes(context.Context) ([]wire.Change, error) {
	if p.replay != nil {
		return p.replay, nil
	}
	now := p.snapshot()
	var all []wire.Change
	for name, is := range now {
		if was, ok := p.before[name]; !ok {
			all = append(all, wire.Change{Path: wire.Name(name), Kind: "created"})
		} else if was != is {
			all = append(all, wire.Change{Path: wire.Name(name), Kind: "modified"})
		}
	}
	for name := range p.before {
		if _, ok := now[name]; !ok {
			all = append(all, wire.Change{Path: wire.Name(name), Kind: "deleted"})
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Path < all[j].Path })
	return all, nil
}

func (p *fakeSandbox) snapshot() map[string]string {
	all := map[string]string{}
	filepath.WalkDir(p.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == p.dir {
			return err
		}
		rel, _ := filepath.Rel(p.dir, name)
		info, _ := d.Info()
		all[rel] = info.Mode().String()
		if info.Mode().IsRegular() {
			data, _ := os.ReadFile(name)
			all[rel] += string(data)
		} else if info.Mode().Type() == fs.ModeSymlink {
			target, _ := os.Readlink(name)
			all[rel] += target
		}
		return nil
	})
	return all
}

// newFakeSandbox uploads a repository with one commit and three files.
func newFakeSandbox(t *testing.T) *fakeSandbox {
	t.Helper()
	top := t.TempDir()
	p := &fakeSandbox{
		t:      t,
		dir:    filepath.Join(top, "sandbox"),
		out:    filepath.Join(top, "out"),
		target: filepath.Join(top, "target"),
		hit:    filepath.Join(top, "hit"),
	}
	p.repo = filepath.Join(p.dir, "workspace", "app")
	for _, d := range []string{p.out, p.target, filepath.Dir(p.repo)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"kept": "kept\n", "edit": "before\n", "dir/gone": "gone\n"} {
		os.MkdirAll(filepath.Dir(filepath.Join(p.target, name)), 0o755)
		os.WriteFile(filepath.Join(p.target, name), []byte(content), 0o644)
	}
	p.sh(p.target, "git init -q -b main && git add -A && git commit -qm base")
	p.base = p.sh(p.target, "git rev-parse HEAD")
	p.sh(p.target, "git clone -q --no-hardlinks . "+p.repo)
	p.before = p.snapshot()
	p.connect()
	return p
}

func (p *fakeSandbox) connect() {
	root, err := os.OpenRoot(p.dir)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { root.Close() })
	if p.files, err = channel.NewRoots(channel.RootsConfig{Mounts: []channel.Mount{{Path: p.dir, Root: root}}}); err != nil {
		p.t.Fatal(err)
	}
	hostKey, hostPub, _ := channel.NewKeyPair()
	key, pub, _ := channel.NewKeyPair()
	conn, f, err := channel.Pair()
	if err != nil {
		p.t.Fatal(err)
	}
	server, err := channel.FromFile(f)
	f.Close()
	if err != nil {
		p.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		served <- channel.NewServer(server, channel.ServerConfig{HostKey: hostKey, AuthorizedKey: pub, Handler: p}).Serve(context.Background())
	}()
	if p.client, err = channel.NewClient(context.Background(), conn, channel.ClientConfig{Key: key, HostKey: hostPub}); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { p.client.Close(); <-served })
}

// sh runs a script in dir, as the agent does in the sandbox (INSIDE is set).
func (p *fakeSandbox) sh(dir, script string) string {
	p.t.Helper()
	cmd := exec.Command("/bin/sh", "-ec", script)
	cmd.Dir = dir
	cmd.Env = []string{"INSIDE=1", "HOME=" + p.dir, "PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "HIT=" + p.hit,
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

// git is what a controller gives to Collect.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Env = dir, gitEnv()
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, said.String())
	}
	return string(out), nil
}

// stream is git whose output comes at once.
func stream(ctx context.Context, dir string, args ...string) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		out, err := git(ctx, dir, args...)
		io.WriteString(w, out)
		w.CloseWithError(err)
	}()
	return r
}

func (p *fakeSandbox) input() Input {
	return Input{
		Governed: p.dir,
		Repo:     p.repo,
		Base:     p.base,
		Target:   p.target,
		Branch:   "agent/run-1",
		Git:      git,
		Stream:   stream,
		Out:      p.out,
		Name:     "files",
	}
}

func (p *fakeSandbox) collect() (Result, error) {
	p.t.Helper()
	res, err := Collect(context.Background(), p.client, p.input())
	for _, left := range []string{".agentsh-bundle-*", ".agentsh-incoming-*"} {
		if names, _ := filepath.Glob(filepath.Join(p.out, left)); len(names) > 0 {
			p.t.Errorf("left %q", names)
		}
	}
	return res, err
}

// outside fails the test when code of the agent ran on the host, also when the
// operator then uses git as always.
func (p *fakeSandbox) outside() {
	p.t.Helper()
	for _, script := range []string{"git status", "git log --all -p", "git diff main HEAD", "git branch -a", "git fsck",
		"git checkout -q main"} {
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.Dir, cmd.Env = p.target, append(gitEnv(), "HIT="+p.hit)
		cmd.Run()
	}
	if _, err := os.Lstat(p.hit); err == nil {
		p.t.Error("code of the agent ran on the host")
	}
}

// gitEnv is the whole environment of every git of the tests: no system
// or user configuration, no prompt, nothing inherited.
func gitEnv() []string {
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/nonexistent", "LC_ALL=C", "TZ=UTC",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=/bin/false", "GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1",
		"GIT_PAGER=cat", "GIT_EDITOR=/bin/false",
	}
}
