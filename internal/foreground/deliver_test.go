package foreground

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// writer is an output that answers as a test wants.
type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// connect runs f on streams and says whether its command was ended.
func connect(ctx context.Context, streams wire.Streams, f func(context.Context, wire.Streams)) (closed, ended bool, err error) {
	run := Connect(func(ctx context.Context, _ wire.ExecRequest, s wire.Streams) (bool, error) {
		f(ctx, s)
		ended = ctx.Err() != nil
		return false, nil
	}, func(bool) bool { return true })
	closed, err = run(ctx, wire.ExecRequest{}, streams)
	return closed, ended, err
}

func TestAnOutputFailsForGood(t *testing.T) {
	for name, tt := range map[string]struct {
		why           error
		closed, ended bool
		said          string
	}{
		"a full disk":   {&os.PathError{Op: "write", Path: "/dev/stdout", Err: unix.ENOSPC}, false, true, "standard error could not be written: no space left on device"},
		"a closed pipe": {&os.PathError{Op: "write", Path: "/dev/stdout", Err: unix.EPIPE}, true, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			out := writer(func(p []byte) (int, error) { calls++; return 0, tt.why })
			closed, ended, err := connect(context.Background(), wire.Streams{Stderr: out}, func(_ context.Context, s wire.Streams) {
				for range 3 {
					if n, err := s.Stderr.Write([]byte("text")); n != 0 || err == nil {
						t.Errorf("wrote %d, %v", n, err)
					}
				}
			})
			if calls != 1 || closed != tt.closed || ended != tt.ended || (err == nil) != (tt.said == "") || err != nil && err.Error() != tt.said {
				t.Errorf("%d writes, closed %t, ended %t, %v", calls, closed, ended, err)
			}
			if failed := (*StreamError)(nil); errors.As(err, &failed) && (failed.Code(3) != 125 || failed.Hint() == "") {
				t.Errorf("code %d, hint %q", failed.Code(3), failed.Hint())
			}
		})
	}
}

func TestAWriteThatBlocksIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		release := make(chan struct{})
		var kept []byte
		out := writer(func(p []byte) (int, error) { <-release; kept = append(kept, p...); return len(p), nil })
		_, _, err := connect(ctx, wire.Streams{Stdout: out}, func(_ context.Context, s wire.Streams) {
			cancel()
			text := []byte("text")
			if _, err := s.Stdout.Write(text); !errors.Is(err, errForced) {
				t.Errorf("the write: %v", err)
			}
			copy(text, "XXXX") // the memory of a write that was left behind is its own
		})
		failed := (*StreamError)(nil)
		if !errors.As(err, &failed) || !failed.Reported || failed.Code(3) != 3 {
			t.Errorf("%v", err)
		}
		close(release)
		synctest.Wait()
		if string(kept) != "text" {
			t.Errorf("it wrote %q", kept)
		}
	})
}

func TestAnInputEndsAsItCan(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for name, tt := range map[string]struct {
		in    io.Reader
		end   error
		ended bool
		said  string
	}{
		"an end":             {strings.NewReader("x"), io.EOF, false, ""},
		"a directory":        {dir, io.EOF, false, "standard input could not be read: is a directory: the command had an empty one"},
		"a cut by its owner": {io.MultiReader(strings.NewReader("x"), failing{}), io.ErrNoProgress, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, ended, err := connect(context.Background(), wire.Streams{Stdin: tt.in}, func(_ context.Context, s wire.Streams) {
				var end error
				for buf := make([]byte, 8); end == nil; {
					_, end = s.Stdin.Read(buf)
				}
				if !errors.Is(end, tt.end) {
					t.Errorf("ends with %v, want %v", end, tt.end)
				}
			})
			if ended != tt.ended || (err == nil) != (tt.said == "") || err != nil && err.Error() != tt.said {
				t.Errorf("ended %t, %v", ended, err)
			}
		})
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrNoProgress }

func TestBothOutputsAtOnce(t *testing.T) {
	var out, errs bytes.Buffer
	_, _, err := connect(context.Background(), wire.Streams{Stdout: &out, Stderr: &errs}, func(_ context.Context, s wire.Streams) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 100 {
				_, _ = s.Stderr.Write([]byte("e"))
			}
		}()
		for range 100 {
			_, _ = s.Stdout.Write([]byte("o"))
		}
		<-done
	})
	if err != nil || out.Len() != 100 || errs.Len() != 100 {
		t.Errorf("%d and %d bytes, %v", out.Len(), errs.Len(), err)
	}
}
