package agenthost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/host"
	"agentsh/internal/channel"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// bare runs a program of this machine without a session. Its files are those of one
// directory. It has the parts of an executor that an agent's program needs.
type bare struct {
	sandbox.Executor // nil: the other parts are not used
	dir              string
	root             *os.Root
	files            *channel.Roots
}

// newBare makes the directory.
func newBare(dir string) (*bare, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// Programs find it by its real path.
	if real, err := filepath.EvalSymlinks(dir); err != nil || real != dir {
		return nil, errors.Join(fmt.Errorf("directory of the agent's program: %s is a link", dir), err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	b := &bare{dir: dir, root: root}
	b.files, err = channel.NewRoots(channel.RootsConfig{Mounts: []channel.Mount{{Path: dir, Root: root}}})
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return b, nil
}

func (b *bare) close() error {
	if b.root == nil {
		return nil
	}
	err := errors.Join(b.root.Close(), statedir.RemoveTree(b.dir))
	b.root = nil
	return err
}

// Run implements [sandbox.Executor].
func (b *bare) Run(ctx context.Context, req wire.ExecRequest, s sandbox.Streams) (wire.Exit, error) {
	began := false
	env := slices.Clone(req.Env)
	for name, value := range req.Run {
		env = append(env, name+"="+value)
	}
	res, err := host.Run(ctx, host.Command{
		Argv: req.Argv, Dir: req.Cwd, Env: env, Stdin: s.Stdin, Stdout: noted(s.Stdout, &began), Stderr: noted(s.Stderr, &began),
		Timeout: time.Duration(req.DeadlineMS) * time.Millisecond, MaxOutput: 1 << 10,
	})
	switch {
	case errors.Is(err, host.ErrTimeout):
		return wire.Exit{Kind: wire.ExitDeadline}, nil
	case err != nil && ctx.Err() != nil:
		return wire.Exit{}, err
	case err != nil && !began:
		return wire.Exit{Kind: wire.ExitSpawnFailed, Code: 127, Message: err.Error()}, nil
	case err != nil:
		return wire.Exit{}, err
	case res.Signal != 0:
		return wire.Exit{Kind: wire.ExitSignaled, Signal: int(res.Signal)}, nil
	}
	return wire.Exit{Kind: wire.ExitExited, Code: res.Code}, nil
}

// noted notes that something was written. A command whose streams are closed has begun.
func noted(w io.Writer, began *bool) io.Writer {
	if w == nil {
		w = io.Discard
	}
	return writer(func(p []byte) (int, error) {
		*began = true
		return w.Write(p)
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// ReadFile implements [sandbox.Executor].
func (b *bare) ReadFile(_ context.Context, name string, limit int64) ([]byte, error) {
	rel, err := filepath.Rel(b.dir, name)
	if err != nil {
		return nil, err
	}
	f, err := b.root.Open(rel)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return data, err
}

// Remove implements [sandbox.Executor].
func (b *bare) Remove(ctx context.Context, name string, recursive bool) error {
	return b.files.Remove(ctx, name, recursive)
}

// Stat implements [sandbox.Executor].
func (b *bare) Stat(ctx context.Context, name string) (wire.FileInfo, error) {
	return b.files.Stat(ctx, name)
}

// CopyIn implements [sandbox.Executor].
func (b *bare) CopyIn(ctx context.Context, dest string, archive io.Reader, arrived func(wire.ManifestEntry) error) error {
	m, err := b.files.CopyIn(ctx, dest, archive)
	for i := 0; i < len(m.Entries) && err == nil; i++ {
		err = arrived(m.Entries[i])
	}
	return err
}

// CopyOut implements [sandbox.Executor].
func (b *bare) CopyOut(ctx context.Context, req wire.CopyOut, w io.Writer) error {
	_, err := b.files.CopyOut(ctx, req, w)
	return err
}
