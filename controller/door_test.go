package controller

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

	"agentsh/internal/channel"
	"agentsh/internal/wire"
)

// inside is a supervisor whose commands end when they are told to.
type inside struct {
	running chan struct{} // gets one for each that has begun
	end     chan struct{} // closed: all end
}

func (i *inside) Exec(ctx context.Context, req wire.ExecRequest, s wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
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

func (*inside) Files() channel.Files { return nil }

func (*inside) Changes(context.Context) ([]wire.Change, error) { return nil, nil }

func (*inside) Events(context.Context, uint64) iter.Seq2[wire.Event, error] {
	return func(func(wire.Event, error) bool) {}
}

// opened is a run whose door leads to a supervisor.
func opened(t *testing.T) (*inside, *door, RunInfo, chan bool) {
	t.Helper()
	in := &inside{running: make(chan struct{}, 100), end: make(chan struct{})}
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
	// A path longer than a socket's can be.
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ended := make(chan bool, 10)
	d := &door{path: dir, to: client, end: func(_ string, force bool) { ended <- force }}
	if err := d.open(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	})
	return in, d, RunInfo{Path: dir, Record: Record{RunID: "r", Sandbox: "r"}}, ended
}

func TestAShutDoorEndsWhoIsInAndLetsNobodyIn(t *testing.T) {
	in, d, run, _ := opened(t)
	const callers = 20
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			c, err := run.Attach(context.Background(), "test")
			if err != nil {
				t.Error(err)
				in.running <- struct{}{}
				return
			}
			defer c.Close()
			exit, err := c.Run(context.Background(), wire.ExecRequest{Argv: []string{"wait"}}, wire.Streams{})
			if err == nil {
				t.Errorf("the end of the command was told: %+v", exit)
			}
		})
	}
	for range callers {
		<-in.running
	}
	d.shut()
	wg.Wait()
	if err := d.close(); err != nil {
		t.Error(err)
	}
	if err := d.close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	if c, err := run.Attach(context.Background(), "test"); err == nil {
		c.Close()
		t.Error("somebody came in")
	} else if !strings.Contains(err.Error(), "not ready yet, or is ending") {
		t.Error(err)
	}
	for _, name := range []string{doorSocket, doorKeys} {
		if _, err := os.Lstat(filepath.Join(run.Path, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	acts, err := run.Done()
	if err != nil || len(acts) != callers || acts[0].What != "exec wait" || !strings.HasPrefix(acts[0].By, "operator ") {
		t.Errorf("%d acts, %v", len(acts), err)
	}
}

func TestACallerNeedsTheKeyOfTheRun(t *testing.T) {
	_, _, run, ended := opened(t)
	c, err := run.Attach(context.Background(), "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.StopRun(true); err != nil || !<-ended {
		t.Errorf("stop: %v", err)
	}
	c.Close()
	file := filepath.Join(run.Path, doorKeys)
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("keys: %v, %v", info.Mode(), err)
	}
	other := &door{path: t.TempDir(), to: nil}
	if err := other.open(context.Background()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.close() }()
	data, err := os.ReadFile(filepath.Join(other.path, doorKeys))
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if c, err := run.Attach(context.Background(), "test"); err == nil {
		c.Close()
		t.Error("the key of another run let somebody in")
	}
}

func TestNothingIsDoneThatCannotBeWrittenDown(t *testing.T) {
	_, d, run, _ := opened(t)
	c, err := run.Attach(context.Background(), "test")
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
	d.size = maxActs
	d.mu.Unlock()
	if exit := do(); exit.Kind != wire.ExitSpawnFailed || !strings.Contains(exit.Message, "its list is full") {
		t.Errorf("beyond the list: %+v", exit)
	}
	d.mu.Lock()
	d.size = 0
	_ = d.acts.Close()
	d.mu.Unlock()
	if exit := do(); exit.Kind != wire.ExitSpawnFailed || !strings.Contains(exit.Message, "write down") {
		t.Errorf("without the list: %+v", exit)
	}
	if d.acts, err = os.Open(os.DevNull); err != nil {
		t.Fatal(err)
	}
}
