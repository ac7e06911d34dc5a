package boxes

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"agentsh/controller"
	"agentsh/controller/sandbox"
	"agentsh/internal/wire"
)

// talk is a client of a server whose sandbox box is a made-up one.
type talk struct {
	*Server
	in      *io.PipeWriter
	answers *bufio.Reader
	done    chan error
}

func newTalk(t *testing.T, most int, of sandbox.Sandbox) *talk {
	t.Helper()
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	c := &talk{newServer(Config{}), toServer, bufio.NewReaderSize(fromServer, 1<<20), make(chan error, 1)}
	c.rooms.most = most
	done := make(chan struct{})
	close(done)
	c.boxes["box"] = &Box{Held: controller.Held{ID: "box", Box: of}, Commands: Runner{Box: of},
		end: func() {}, over: make(chan struct{}), done: done}
	go func() {
		c.done <- c.serve(t.Context(), in, out)
		_ = out.Close()
	}()
	return c
}

// ask sends n requests.
func (c *talk) ask(t *testing.T, n int, method, params string) {
	t.Helper()
	for i := range n {
		if _, err := fmt.Fprintf(c.in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s}}`+"\n", i, method, params); err != nil {
			t.Error(err)
		}
	}
}

// got is an answer to a client.
type got struct {
	Error struct{ Message string }
	size  int // of the line
}

// answer reads the next answer.
func (c *talk) answer(t *testing.T) (a got) {
	t.Helper()
	line, err := c.answers.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	if a.size = len(line); a.size < 1000 { // else it is a result
		if err := json.Unmarshal(line, &a); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
	}
	return a
}

// end ends the stream, and checks that nothing is held then.
func (c *talk) end(t *testing.T) {
	t.Helper()
	_ = c.in.Close()
	if err := <-c.done; err != nil {
		t.Error(err)
	}
	if c.rooms.used != 0 || len(c.rooms.large) != 0 || len(c.slots) != 0 {
		t.Errorf("%d bytes, %d large files and %d calls are held at the end", c.rooms.used, len(c.rooms.large), len(c.slots))
	}
}

// madeUp is a sandbox whose commands print size bytes, and whose file and lists have as many. All wait for release.
type madeUp struct {
	sandbox.Sandbox
	size    int
	release chan struct{}
	waiting atomic.Int32
	killed  atomic.Int32 // commands
}

func (m *madeUp) wait(ctx context.Context) {
	m.waiting.Add(1)
	defer m.waiting.Add(-1)
	select {
	case <-m.release:
	case <-ctx.Done():
		m.killed.Add(1)
	}
}

func (m *madeUp) Run(ctx context.Context, _ wire.ExecRequest, s sandbox.Streams) (wire.Exit, error) {
	_, _ = s.Stdout.Write(bytes.Repeat([]byte("y"), m.size)) // a command that is not ended waits
	m.wait(ctx)
	return wire.Exit{Kind: wire.ExitExited}, nil
}

func (m *madeUp) ReadFile(ctx context.Context, _ string, limit int64) ([]byte, error) {
	if int64(m.size) > limit {
		return nil, &wire.Error{Code: wire.CodeLimit, Message: "the file is too large"}
	}
	m.wait(ctx)
	return make([]byte, m.size), nil
}

func (m *madeUp) EachChange(ctx context.Context, fn func(wire.Change) error) error {
	if err := fn(wire.Change{Path: wire.Name(strings.Repeat("p", m.size)), Kind: wire.Created}); err != nil {
		return err
	}
	m.wait(ctx)
	return nil
}

func (m *madeUp) List(context.Context, string) (list []wire.FileInfo, err error) {
	for range m.size / 1000 {
		list = append(list, wire.FileInfo{Name: wire.Name(strings.Repeat("n", 1000-entryRoom))})
	}
	return list, nil
}

// TestTheAnswersThatWaitAreBounded has eight commands and eight lists that hold 3 MiB each, 1 MiB more than each may in any
// case, where there is room for half of them.
func TestTheAnswersThatWaitAreBounded(t *testing.T) {
	for method, params := range map[string]string{
		"exec":    `"sandbox":"box","argv":["yes"],"max_output_bytes":4000000`,
		"changes": `"sandbox":"box"`,
	} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				box := &madeUp{size: 3 << 20, release: make(chan struct{})}
				c := newTalk(t, 4<<20+1000, box)
				c.ask(t, 8, method, params)
				synctest.Wait()
				if n := box.waiting.Load(); n != 4 || c.rooms.used > c.rooms.most {
					t.Errorf("%d calls hold %d bytes together", n, c.rooms.used)
				}
				for range 4 {
					if a := c.answer(t); a.Error.Message != errRoom.Error() {
						t.Errorf("%.200v", a)
					}
				}
				if n := box.killed.Load(); method == "exec" && n != 4 {
					t.Errorf("%d commands were ended", n)
				}
				close(box.release)
				for range 4 {
					if a := c.answer(t); a.Error.Message != "" {
						t.Error(a.Error.Message)
					}
				}
				c.ask(t, 1, method, params)
				if a := c.answer(t); a.Error.Message != "" {
					t.Errorf("after all answers: %s", a.Error.Message)
				}
				c.end(t)
			})
		})
	}
}

// TestCommandsWithTheUsualOutputAlwaysFit has as many as may run print as much as they may by default.
func TestCommandsWithTheUsualOutputAlwaysFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := &madeUp{size: 2 << 20, release: make(chan struct{})}
		c := newTalk(t, 0, box)
		const calls = 6
		c.ask(t, calls, "exec", `"sandbox":"box","argv":["yes"]`)
		synctest.Wait()
		close(box.release)
		for range calls {
			if a := c.answer(t); a.Error.Message != "" || a.size < defaultOutput {
				t.Errorf("%.200v", a)
			}
		}
		c.end(t)
	})
}

// TestLargeFilesWaitForTheirTurn reads ten.
func TestLargeFilesWaitForTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := &madeUp{size: smallFile + 1, release: make(chan struct{})}
		c := newTalk(t, 0, box)
		const calls = 10
		c.ask(t, calls, "read", `"sandbox":"box","path":"large"`)
		synctest.Wait()
		if n := box.waiting.Load(); n != maxLarge {
			t.Errorf("%d calls read", n)
		}
		if _, err := io.WriteString(c.in, `{"jsonrpc":"2.0","method":"cancel","params":{"id":9}}`+"\n"); err != nil {
			t.Fatal(err)
		}
		cancelled := 0
		close(box.release)
		for range calls {
			if a := c.answer(t); a.Error.Message != "" {
				cancelled++
			}
		}
		if cancelled > 1 {
			t.Errorf("%d calls were cancelled", cancelled)
		}
		c.end(t)
	})
}

// TestAListThatDoesNotFitIsRefused lists a directory of 4 MiB.
func TestAListThatDoesNotFitIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTalk(t, 1<<20, &madeUp{size: 4 << 20})
		c.ask(t, 1, "files", `"sandbox":"box","path":"."`)
		if a := c.answer(t); a.Error.Message != errRoom.Error() {
			t.Errorf("%.200v", a)
		}
		c.end(t)
	})
}

// TestAClientThatReadsNothingIsNotReadEither has a client ask without reading.
func TestAClientThatReadsNothingIsNotReadEither(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTalk(t, 0, nil)
		const calls = 5 * maxCalls
		var sent atomic.Int32
		go func() {
			for i := range calls {
				if _, err := fmt.Fprintf(c.in, `{"jsonrpc":"2.0","id":%d,"method":"list"}`+"\n", i); err != nil {
					t.Error(err)
				}
				sent.Add(1)
			}
		}()
		synctest.Wait()
		if n := sent.Load(); n > 2*maxCalls+100 { // the reader of the server has some lines
			t.Errorf("the server has read %d requests, and the client no answer", n)
		}
		for range calls {
			c.answer(t)
		}
		c.end(t)
	})
}

// TestLongTextsOfControlCharactersAreBase64 has JSON make six bytes of each.
func TestLongTextsOfControlCharactersAreBase64(t *testing.T) {
	for text, want := range map[string]bool{
		strings.Repeat("a line\n", 1<<18):  true,
		strings.Repeat("<&>", 1<<19):       true,
		strings.Repeat("\"\n", 1<<20):      true,
		strings.Repeat("\x01", 1000):       true,
		strings.Repeat("\x01", 2<<20):      false,
		strings.Repeat("\x1b[0m\xff", 100): false,
	} {
		if got := asText([]byte(text)); got != want {
			t.Errorf("%.20q: %v", text, got)
		}
		line, err := encode(answer{Result: map[string]string{"text": text}})
		if err != nil || want && len(text) > smallFile && len(line) > 2*len(text)+100 {
			t.Errorf("%.20q: %d bytes of JSON for %d, %v", text, len(line), len(text), err)
		}
	}
}
