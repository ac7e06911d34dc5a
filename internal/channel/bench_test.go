package channel

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
)

// BenchmarkHandshake connects, authenticates both sides and says hello.
func BenchmarkHandshake(b *testing.B) {
	for b.Loop() {
		server, conn := conns(b)
		done := make(chan error, 1)
		go func() {
			done <- NewServer(server, ServerConfig{HostKey: hostKey, AuthorizedKey: clientPub, Handler: &handler{}}).Serve(context.Background())
		}()
		c, err := NewClient(context.Background(), conn, ClientConfig{Key: clientKey, HostKey: hostPub})
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
		<-done
	}
}

// BenchmarkExecTrue runs /bin/true through an open channel; compare with
// BenchmarkExecTrueDirect, which calls the same handler.
func BenchmarkExecTrue(b *testing.B) {
	c := connect(b, &handler{})
	for b.Loop() {
		if exit, err := c.Run(context.Background(), wire.ExecRequest{Argv: []string{"/bin/true"}}, wire.Streams{}); err != nil || exit.Code != 0 {
			b.Fatal(exit, err)
		}
	}
}

func BenchmarkExecTrueDirect(b *testing.B) {
	h := &handler{}
	s := wire.Streams{Stdout: io.Discard, Stderr: io.Discard, Started: func(wire.Started) {}}
	for b.Loop() {
		if exit, _, err := h.Exec(context.Background(), wire.ExecRequest{Argv: []string{"/bin/true"}}, s); err != nil || exit.Code != 0 {
			b.Fatal(exit, err)
		}
	}
}

// BenchmarkExecNothing is what the channel itself costs a command.
func BenchmarkExecNothing(b *testing.B) {
	c := connect(b, &handler{exec: func(context.Context, wire.ExecRequest, wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
		return wire.Exit{Kind: wire.ExitExited}, wire.TreeEmpty{}, nil
	}})
	for b.Loop() {
		if _, err := c.Run(context.Background(), wire.ExecRequest{Argv: []string{"x"}}, wire.Streams{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStream is one command's output through the channel.
func BenchmarkStream(b *testing.B) {
	const total = 256 << 20
	block := make([]byte, 128<<10)
	c := connect(b, &handler{exec: func(_ context.Context, _ wire.ExecRequest, s wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
		for n := 0; n < total; n += len(block) {
			if _, err := s.Stdout.Write(block); err != nil {
				return wire.Exit{}, wire.TreeEmpty{}, err
			}
		}
		return wire.Exit{Kind: wire.ExitExited}, wire.TreeEmpty{}, nil
	}})
	b.SetBytes(total)
	for b.Loop() {
		if _, err := c.Run(context.Background(), wire.ExecRequest{Argv: []string{"x"}}, wire.Streams{}); err != nil {
			b.Fatal(err)
		}
	}
}

func benchTree(b *testing.B) string {
	dir := b.TempDir()
	for i := range 10_000 {
		sub := filepath.Join(dir, fmt.Sprint(i%100))
		os.MkdirAll(sub, 0o755)
		os.WriteFile(filepath.Join(sub, fmt.Sprint(i)), []byte(strings.Repeat("x", i%3000)), 0o644)
	}
	return dir
}

// BenchmarkCopyIn brings 10,000 small files through the channel; compare with
// BenchmarkTarPipe.
func BenchmarkCopyIn(b *testing.B) {
	c, _, _ := served(b)
	root, err := os.OpenRoot(benchTree(b))
	if err != nil {
		b.Fatal(err)
	}
	defer root.Close()
	n := 0
	for b.Loop() {
		n++
		r, w := io.Pipe()
		go func() {
			_, err := tarfs.Pack(context.Background(), root, tarfs.PackOptions{}, w)
			w.CloseWithError(err)
		}()
		if err := c.CopyIn(context.Background(), fmt.Sprintf("/sandbox/%d", n), r, none); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTarPipe is `tar -c | tar -x` of the same files.
func BenchmarkTarPipe(b *testing.B) {
	src := benchTree(b)
	for b.Loop() {
		dst := b.TempDir()
		if out, err := exec.Command("/bin/sh", "-c", `tar -C "$1" -c . | tar -C "$2" -x`, "sh", src, dst).CombinedOutput(); err != nil {
			b.Fatal(err, string(out))
		}
	}
}
