package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/local"
	"agentsh/controller/sandbox/remote"
	"agentsh/internal/channel"
	"agentsh/internal/tarfs"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// stream is the size of what a benchmark sends, in bytes.
const stream = 64 << 20

// zeros are stream bytes.
func zeros() io.Reader { return io.LimitReader(zero{}, stream) }

type zero struct{}

func (zero) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// counter counts what is written.
type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// tree makes files of many sizes, about 20 MB, and returns their directory.
func tree(b *testing.B) string {
	b.Helper()
	dir, content := b.TempDir(), random(64<<10)
	for i := range 3000 {
		name := filepath.Join(dir, fmt.Sprint("d", i%50), fmt.Sprint("f", i))
		size := i * 7919 % 13_000
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, content[:size], 0o644)); err != nil {
			b.Fatal(err)
		}
	}
	return dir
}

// BenchmarkCarriers measures each carrier, and what plain programs do over the same ssh.
func BenchmarkCarriers(b *testing.B) {
	testenv.Need(b, testenv.Root, testenv.UserNotif, testenv.FUSE)
	program, files := testenv.Agentsh(b), tree(b)
	dir := b.TempDir()
	address := testenv.SSHPlace(b, dir)
	b.Run("plain", func(b *testing.B) { plain(b, files, filepath.Join(dir, "plain")) })
	backends := map[string]func() (sandbox.Backend, error){
		"local": func() (sandbox.Backend, error) {
			return local.New(local.Config{State: openState(b, b.TempDir()), Agentsh: program}), nil
		},
		"exec": func() (sandbox.Backend, error) {
			cfg := remote.Config{State: openState(b, dir), Agentsh: program}
			return remote.Open(remote.NameExec, "exec:env -i HOME="+dir+" XDG_STATE_HOME="+dir+"/place /bin/sh", "", cfg)
		},
		"ssh": func() (sandbox.Backend, error) {
			return remote.Open(remote.NameSSH, address, "", remote.Config{State: openState(b, dir), Agentsh: program})
		},
	}
	for name, at := range map[string]string{"unix": "unix:DIR/s", "tcp": "tcp:127.0.0.1:0", "ws": "ws:127.0.0.1:0"} {
		backends[name] = func() (sandbox.Backend, error) {
			there := b.TempDir()
			address, key := listen(b, program, there, at)
			return remote.Open(remote.NameSocket, address, key, remote.Config{State: openState(b, there)})
		}
	}
	for _, name := range []string{"local", "unix", "tcp", "ws", "exec", "ssh"} {
		b.Run(name, func(b *testing.B) {
			backend, err := backends[name]()
			if err != nil {
				b.Fatal(err)
			}
			carried(b, backend, files)
		})
	}
}

// processor is the processor time of this process and of its children that have ended.
func processor() time.Duration {
	var sum time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if syscall.Getrusage(who, &u) == nil {
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return sum
}

// measured runs do for each round. The processor time is that of this process and its
// children: a busy machine changes it little.
func measured(b *testing.B, size int64, do func() error) {
	b.Helper()
	if size > 0 {
		b.SetBytes(size)
	}
	before := processor()
	for b.Loop() {
		if err := do(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((processor()-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// carried measures a backend.
func carried(b *testing.B, backend sandbox.Backend, files string) {
	ctx, n := context.Background(), 0
	open := func() (sandbox.Sandbox, error) {
		n++
		box, err := backend.Create(ctx, spec(fmt.Sprint("bench-", n)))
		if err == nil {
			_, err = box.Ready(ctx)
		}
		return box, err
	}
	box, err := open() // the place has the program then
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := box.Delete(ctx); err != nil {
			b.Error(err)
		}
	}()
	run := func(in io.Reader, out io.Writer, argv ...string) error {
		exit, err := box.Run(ctx, wire.ExecRequest{Argv: argv, Cwd: "/sandbox"}, sandbox.Streams{Stdin: in, Stdout: out})
		if err == nil && exit.ExitCode() != 0 {
			err = fmt.Errorf("%q: %+v", argv, exit)
		}
		return err
	}
	b.Run("sandbox", func(b *testing.B) {
		measured(b, 0, func() error {
			x, err := open()
			return errors.Join(err, x.Delete(ctx))
		})
	})
	b.Run("exec", func(b *testing.B) { measured(b, 0, func() error { return run(nil, nil, "true") }) })
	b.Run("in", func(b *testing.B) {
		measured(b, stream, func() error { return run(zeros(), nil, "sh", "-c", "exec cat >/dev/null") })
	})
	b.Run("out", func(b *testing.B) {
		measured(b, stream, func() error {
			var c counter
			err := run(nil, &c, "head", "-c", fmt.Sprint(stream), "/dev/zero")
			if err == nil && c.n != stream {
				err = fmt.Errorf("%d bytes", c.n)
			}
			return err
		})
	})
	root, err := os.OpenRoot(files)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	b.Run("archive in", func(b *testing.B) {
		measured(b, 0, func() error {
			n++
			return copyIn(ctx, box, root, fmt.Sprint("/sandbox/in", n))
		})
	})
	to, err := os.OpenRoot(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = to.Close() }()
	b.Run("archive out", func(b *testing.B) {
		if err := copyIn(ctx, box, root, "/sandbox/all"); err != nil {
			b.Fatal(err)
		}
		measured(b, 0, func() error {
			n++
			_, err := channel.ReceiveArchive(
				ctx,
				box,
				wire.CopyOut{Dir: "/sandbox/all"},
				channel.ArchiveTarget{Parent: to, Name: fmt.Sprint("out", n)},
			)
			return err
		})
	})
}

// copyIn sends a directory.
func copyIn(ctx context.Context, box sandbox.Sandbox, root *os.Root, to string) error {
	r, w := io.Pipe()
	var packing sync.WaitGroup
	packing.Go(func() {
		_, err := tarfs.Pack(ctx, root, tarfs.PackOptions{}, w)
		_ = w.CloseWithError(err)
	})
	defer packing.Wait()
	defer r.Close()
	return box.CopyIn(ctx, to, r, func(wire.ManifestEntry) error { return nil })
}

// plain measures ssh and tar, which an operator would use without agentctl.
func plain(b *testing.B, files, dir string) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	n := 0
	sh := func(in io.Reader, out io.Writer, script string) error {
		n++
		var errs bytes.Buffer
		cmd := exec.Command("sh", "-ec", strings.NewReplacer("FILES", files, "DIR", dir, "N", fmt.Sprint(n)).Replace(script))
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &errs
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%w: %s", err, &errs)
		}
		return nil
	}
	for _, what := range []struct {
		name, script string
		in           func() io.Reader
		size         int64
	}{
		{"exec", "ssh root@place true", func() io.Reader { return nil }, 0},
		{"in", "ssh root@place 'cat >/dev/null'", zeros, stream},
		{"out", fmt.Sprintf("ssh root@place head -c %d /dev/zero >/dev/null", stream), func() io.Reader { return nil }, stream},
		{"archive in", "tar c -C FILES . | ssh root@place 'mkdir DIR/N && tar x -C DIR/N'", func() io.Reader { return nil }, 0},
		{"archive out", "mkdir DIR/N && ssh root@place 'tar c -C FILES .' | tar x -C DIR/N", func() io.Reader { return nil }, 0},
	} {
		b.Run(what.name, func(b *testing.B) {
			measured(b, what.size, func() error { return sh(what.in(), io.Discard, what.script) })
		})
	}
}
