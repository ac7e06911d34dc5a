package attach

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"agentsh/controller/record"
	"agentsh/internal/channel"
	"agentsh/internal/wire"
)

// supervisor simulates a supervisor whose commands run until end is closed.
type supervisor struct {
	running chan struct{} // receives a value for each started command
	end     chan struct{} // closed: all end
}

func (i *supervisor) Exec(ctx context.Context, req wire.ExecRequest, s wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
	if req.Argv[0] == "true" {
		return wire.Exit{Kind: wire.ExitExited}, wire.TreeEmpty{}, nil
	}
	s.Started(wire.Started{PID: 1})
	i.running <- struct{}{}
	select {
	case <-ctx.Done():
		return wire.Exit{Kind: wire.ExitSignaled, Signal: 9}, wire.TreeEmpty{}, nil
	case <-i.end:
		return wire.Exit{Kind: wire.ExitExited}, wire.TreeEmpty{}, nil
	}
}

func (*supervisor) Files() channel.Files { return nil }

func (*supervisor) Changes(context.Context) ([]wire.Change, error) { return nil, nil }

func (*supervisor) Events(context.Context, wire.EventRequest) iter.Seq2[wire.Event, error] {
	return func(func(wire.Event, error) bool) {}
}

// serve attaches a run to a supervisor.
func serve(t *testing.T) (*supervisor, *Server, record.Run, chan bool) {
	t.Helper()
	in := &supervisor{running: make(chan struct{}, 100), end: make(chan struct{})}
	ours, theirs, err := channel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := channel.FromFile(theirs)
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	var keys [4][]byte
	for i := 0; i < 4; i += 2 {
		if keys[i], keys[i+1], err = channel.NewKeyPair(); err != nil {
			t.Fatal(err)
		}
	}
	served := make(chan error, 1)
	go func() {
		served <- channel.NewServer(conn, channel.ServerConfig{HostKey: keys[0], AuthorizedKey: keys[3], Handler: in}).Serve(context.Background())
	}()
	client, err := channel.NewClient(context.Background(), ours, channel.ClientConfig{Key: keys[2], HostKey: keys[1]})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	// The path is longer than the address of a socket can be.
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ended := make(chan bool, 10)
	d, err := Listen(context.Background(), dir, client, func(_ string, force bool) { ended <- force })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return in, d, record.Run{Path: dir, Record: record.Record{RunID: "r", Sandbox: "r"}}, ended
}

func TestStopClosesConnectionsAndAcceptsNoMore(t *testing.T) {
	in, d, run, _ := serve(t)
	const clients = 20
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			c, err := Dial(context.Background(), run, "test")
			if err != nil {
				t.Error(err)
				in.running <- struct{}{}
				return
			}
			defer c.Close()
			exit, err := c.Run(context.Background(), wire.ExecRequest{Argv: []string{"wait"}}, wire.Streams{})
			if err == nil {
				t.Errorf("the end of the command was reported: %+v", exit)
			}
		})
	}
	for range clients {
		<-in.running
	}
	d.Stop()
	wg.Wait()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	if c, err := Dial(context.Background(), run, "test"); err == nil {
		c.Close()
		t.Error("a client connected")
	} else if !strings.Contains(err.Error(), "not ready yet, or is ending") {
		t.Error(err)
	}
	for _, name := range []string{socketFile, keysFile} {
		if _, err := os.Lstat(filepath.Join(run.Path, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	actions, err := Actions(run)
	if err != nil || len(actions) != clients || actions[0].What != "exec wait" || !strings.HasPrefix(actions[0].By, "operator ") {
		t.Errorf("%d actions, %v", len(actions), err)
	}
}

func TestAClientNeedsTheKeyOfTheRun(t *testing.T) {
	_, _, run, ended := serve(t)
	c, err := Dial(context.Background(), run, "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.StopRun(t.Context(), true); err != nil || !<-ended {
		t.Errorf("stop: %v", err)
	}
	c.Close()
	file := filepath.Join(run.Path, keysFile)
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("keys: %v, %v", info.Mode(), err)
	}
	other, err := Listen(context.Background(), t.TempDir(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	data, err := os.ReadFile(filepath.Join(other.path, keysFile))
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if c, err := Dial(context.Background(), run, "test"); err == nil {
		c.Close()
		t.Error("the key of another run was accepted")
	}
}

func TestAnActionThatCannotBeRecordedIsRefused(t *testing.T) {
	_, d, run, _ := serve(t)
	c, err := Dial(context.Background(), run, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	do := func() wire.Exit {
		exit, err := c.Run(context.Background(), wire.ExecRequest{Argv: []string{"true"}}, wire.Streams{})
		if err != nil {
			t.Fatal(err)
		}
		return exit
	}
	if exit := do(); exit.Kind != wire.ExitExited {
		t.Errorf("%+v", exit)
	}
	d.mu.Lock()
	d.size = maxActions
	d.mu.Unlock()
	if exit := do(); exit.Kind != wire.ExitSpawnFailed || !strings.Contains(exit.Message, "is full") {
		t.Errorf("beyond the list: %+v", exit)
	}
	d.mu.Lock()
	d.size = 0
	_ = d.actions.Close()
	d.mu.Unlock()
	if exit := do(); exit.Kind != wire.ExitSpawnFailed || !strings.Contains(exit.Message, "record the operator") {
		t.Errorf("without the list: %+v", exit)
	}
	if d.actions, err = os.Open(os.DevNull); err != nil {
		t.Fatal(err)
	}
}

func TestAListenerThatCannotListenLeavesNoKeys(t *testing.T) {
	for _, name := range []string{actionsFile, socketFile} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, name, "in-the-way"), 0o700); err != nil {
			t.Fatal(err)
		}
		s, err := Listen(t.Context(), dir, nil, nil)
		if err == nil {
			s.Stop()
			t.Fatalf("%s: it listens", name)
		}
		if _, err := os.Stat(filepath.Join(dir, keysFile)); err == nil {
			t.Errorf("%s: the keys are left", name)
		}
	}
}
