package channel

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"strings"
	"sync"
	"testing"

	"agentsh/internal/wire"
)

// relayed lets a second client in to h, over a first one.
func relayed(t testing.TB, h Handler, cfg RelayConfig) (first, second *Client) {
	t.Helper()
	first = connect(t, h)
	host, hostPublic, err := NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	key, public, err := NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	cfg.HostKey, cfg.AuthorizedKey = host, public
	server, conn := conns(t)
	served := make(chan error, 1)
	go func() { served <- first.Relay(context.Background(), server, cfg) }()
	second, err = NewClient(context.Background(), conn, ClientConfig{Key: key, HostKey: hostPublic})
	if err != nil {
		t.Fatalf("%v (relay: %v)", err, <-served)
	}
	t.Cleanup(func() {
		second.Close()
		if err := <-served; err != nil {
			t.Errorf("relay: %v", err)
		}
	})
	return first, second
}

func TestARelayedCommandHasItsStreamsAndItsExitCode(t *testing.T) {
	_, c := relayed(t, &handler{}, RelayConfig{})
	long := strings.Repeat("0123456789abcdef", 1<<18) // 4 MiB, more than any window
	exit, out, errs := run(t, c, strings.NewReader(long), "sh", "-c", "cat; echo oops >&2; exit 7")
	if exit.Kind != wire.ExitExited || exit.Code != 7 || out != long || errs != "oops\n" {
		t.Errorf("exit %+v, %d bytes, %q", exit, len(out), errs)
	}
	if exit, _, _ := run(t, c, nil, "cat"); exit.Kind != wire.ExitExited || exit.Code != 0 {
		t.Errorf("without input: %+v", exit)
	}
	if exit, _, _ := run(t, c, nil, "sh", "-c", "kill -TERM $$"); exit.Signal != 15 {
		t.Errorf("signal: %+v", exit)
	}
}

func TestARelayNamesItsCallerAndReportsTheCall(t *testing.T) {
	var mu sync.Mutex
	var asked []wire.ExecRequest
	var told []string
	h := &handler{files: &noFiles{}, exec: func(_ context.Context, req wire.ExecRequest, _ wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, req)
		return wire.Exit{Kind: wire.ExitExited}, wire.TreeEmpty{}, nil
	}}
	_, c := relayed(t, h, RelayConfig{By: "operator", Note: func(what string) error {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, what)
		if strings.Contains(what, "never") {
			return errors.New("not today")
		}
		return nil
	}})
	ctx := context.Background()
	if _, err := c.Run(ctx, wire.ExecRequest{ID: "run-2", Argv: []string{"ls", "\x1b[31m"}, By: "somebody else"}, wire.Streams{}); err != nil {
		t.Error(err)
	}
	exit, err := c.Run(ctx, wire.ExecRequest{Argv: []string{"never"}}, wire.Streams{})
	if err != nil || exit.Kind != wire.ExitSpawnFailed || !strings.Contains(exit.Message, "not today") {
		t.Errorf("what was not noted: %+v, %v", exit, err)
	}
	exit, err = c.Run(ctx, wire.ExecRequest{Argv: []string{"x"}, Run: map[string]string{"AGENTSH_RUN_ID": "other"}}, wire.Streams{})
	if err != nil || exit.Kind != wire.ExitSpawnFailed {
		t.Errorf("variables of the run: %+v, %v", exit, err)
	}
	if _, err := c.Stat(ctx, "/x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat: %v", err)
	}
	if err := c.Mkdir(ctx, "/y\n", 0o755); !errors.Is(err, os.ErrPermission) {
		t.Errorf("mkdir: %v", err)
	}
	if err := c.Recover(ctx, wire.RecoveryRequest{}); err == nil || !strings.Contains(err.Error(), "not for this client") {
		t.Errorf("recover: %v", err)
	}
	if _, err := c.Approvals(ctx); err == nil {
		t.Error("the session as a whole was reached")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) != 1 || asked[0].By != "operator" || !strings.HasPrefix(asked[0].ID, operatorID) {
		t.Errorf("asked: %+v", asked)
	}
	if got := strings.Join(told, "|"); got != `exec ls "\x1b[31m"|exec never|mkdir /y\n` {
		t.Errorf("told: %s", got)
	}
}

// noFiles has no file and lets none be made.
type noFiles struct{ Files }

func (noFiles) Stat(context.Context, string) (wire.FileInfo, error) {
	return wire.FileInfo{}, os.ErrNotExist
}

func (noFiles) Mkdir(context.Context, string, os.FileMode) error { return os.ErrPermission }

func TestARelayPassesArchivesAndEventsOn(t *testing.T) {
	big := bytes.Repeat([]byte("x"), 5<<20)
	h := &handler{files: &archives{data: big}, events: func(_ context.Context, req wire.EventRequest) iter.Seq2[wire.Event, error] {
		return func(yield func(wire.Event, error) bool) {
			for i := req.From; i < req.From+100; i++ {
				if !yield(wire.Event{Seq: i}, nil) {
					return
				}
			}
			yield(wire.Event{}, errors.New("the log is full"))
		}
	}}
	_, c := relayed(t, h, RelayConfig{})
	var out bytes.Buffer
	if err := c.CopyOut(context.Background(), wire.CopyOut{Dir: "/x"}, &out); err != nil || !bytes.Equal(out.Bytes(), big) {
		t.Errorf("%d bytes came out, %v", out.Len(), err)
	}
	var arrived []wire.ManifestEntry
	if err := c.CopyIn(context.Background(), "/x", bytes.NewReader(big), collect(&arrived)); err != nil || len(arrived) != 1 ||
		arrived[0].Size != int64(len(big)) {
		t.Errorf("copy in: %+v, %v", arrived, err)
	}
	n := 0
	err := c.Events(context.Background(), wire.EventRequest{From: 5}, func(e wire.Event) error {
		if e.Seq != uint64(5+n) {
			t.Errorf("event %d, want %d", e.Seq, 5+n)
		}
		n++
		return nil
	})
	if n != 100 || err == nil || !strings.Contains(err.Error(), "the log is full") {
		t.Errorf("%d events, %v", n, err)
	}
}

// archives gives and counts bytes.
type archives struct {
	Files
	data []byte
}

func (a *archives) CopyOut(_ context.Context, _ wire.CopyOut, w io.Writer) (wire.Manifest, error) {
	_, err := w.Write(a.data)
	return wire.Manifest{}, err
}

func (a *archives) CopyIn(_ context.Context, _ string, r io.Reader) (wire.Manifest, error) {
	n, err := io.Copy(io.Discard, r)
	return wire.Manifest{Entries: []wire.ManifestEntry{{Size: n}}}, err
}

func TestARelayedClientThatGoesKillsItsCommandsAlone(t *testing.T) {
	first, c := relayed(t, &handler{}, RelayConfig{})
	mine := first.Command(context.Background(), wire.ExecRequest{Argv: []string{"sh", "-c", "echo up; cat"}})
	in, feed := io.Pipe()
	out, gives := io.Pipe()
	mine.Stdin, mine.Stdout = in, gives
	if err := mine.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	started, end := make(chan struct{}), make(chan error, 1)
	theirs := c.Command(context.Background(), wire.ExecRequest{Argv: []string{"sleep", "1000"}})
	theirs.OnStarted = func(wire.Started) { close(started) }
	if err := theirs.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := theirs.Wait()
		end <- err
	}()
	<-started
	c.Close()
	if err := <-end; err == nil {
		t.Error("the command's end was told")
	}
	go func() {
		_, _ = io.WriteString(feed, "still here")
		feed.Close()
	}()
	go func() { _, _ = io.Copy(io.Discard, out) }()
	if exit, err := mine.Wait(); err != nil || exit.Kind != wire.ExitExited || exit.Code != 0 {
		t.Errorf("the first client's command: %+v, %v", exit, err)
	}
}

func TestOnlyARelayWithStopCanBeStopped(t *testing.T) {
	asked := make(chan bool, 2)
	_, c := relayed(t, &handler{}, RelayConfig{Stop: func(force bool) { asked <- force }})
	for _, force := range []bool{false, true} {
		if err := c.StopRun(t.Context(), force); err != nil || <-asked != force {
			t.Errorf("stop %v: %v", force, err)
		}
	}
	first, none := relayed(t, &handler{}, RelayConfig{})
	for name, c := range map[string]*Client{"a relay without": none, "a supervisor": first} {
		if err := c.StopRun(t.Context(), true); err == nil {
			t.Errorf("%s was stopped", name)
		}
	}
}

func TestARelayedClientThatDoesNotReadDelaysNoOther(t *testing.T) {
	first, c := relayed(t, &handler{}, RelayConfig{})
	ctx, cancel := context.WithCancel(context.Background())
	held, holds := io.Pipe()
	stuck := c.Command(ctx, wire.ExecRequest{Argv: []string{"sh", "-c", "exec yes"}})
	stuck.Stdout = holds
	if err := stuck.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(held, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 4<<20)
	for name, other := range map[string]*Client{"the first": first, "the same": c} {
		if exit, out, _ := run(t, other, strings.NewReader(long), "cat"); exit.Code != 0 || out != long {
			t.Errorf("another command of %s client: %+v, %d bytes", name, exit, len(out))
		}
	}
	cancel()
	held.Close()
	if exit, _ := stuck.Wait(); exit.Kind != wire.ExitSignaled {
		t.Errorf("%+v", exit)
	}
}
