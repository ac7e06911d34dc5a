package gateways

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
)

// gateway is a directory that stands for one: it is healthy while it has a file.
type gateway string

var errSilent = &sandbox.End{Kind: sandbox.EndUnreachable, Text: "connection refused"}

func (g gateway) file() string { return filepath.Join(string(g), "healthy") }

func (g gateway) health(context.Context) (bool, error) {
	if _, err := os.Stat(g.file()); err != nil {
		return false, errSilent
	}
	return true, nil
}

// starter has a script as its command.
func (g gateway) starter(script string) Starter {
	return Starter{
		Command: []string{"sh", "-c", script},
		Dir:     filepath.Join(string(g), "state"),
		Environ: append(os.Environ(), "G="+string(g)),
	}
}

func TestAGatewayIsStartedOnce(t *testing.T) {
	g := gateway(t.TempDir())
	script := "echo started >>" + string(g) + "/starts; : >" + g.file()
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if err := g.starter(script).Ensure(t.Context(), g.health); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := g.starter(script).Ensure(t.Context(), g.health); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(string(g) + "/starts"); err != nil || string(data) != "started\n" {
		t.Errorf("%q, %v", data, err)
	}
}

// TestAGatewayGoesOnAfterItsStart starts one that is the command itself.
func TestAGatewayGoesOnAfterItsStart(t *testing.T) {
	g := gateway(t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	if err := g.starter("echo $$ >"+string(g)+"/pid; : >"+g.file()+"; exec sleep 1000").Ensure(ctx, g.health); err != nil {
		t.Fatal(err)
	}
	cancel()
	data, err := os.ReadFile(string(g) + "/pid")
	pid, wrong := strconv.Atoi(strings.TrimSpace(string(data)))
	if err := errors.Join(err, wrong); err != nil {
		t.Fatal(err)
	}
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		t.Errorf("session %d of process %d: %v", sid, pid, err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Error(err)
	}
}

func TestAGatewayThatDoesNotStartSaysWhy(t *testing.T) {
	refused := &sandbox.End{Kind: sandbox.EndRefused, Text: "another version"}
	for _, tt := range []struct {
		name, script string
		change       func(*Starter)
		health       Health
		says         []string
	}{
		{"its command fails", "echo no rights >&2; exit 3", nil, nil,
			[]string{"its command failed", "exit status 3", "no rights", "gateway.log"}},
		{"nothing is healthy", "true", func(s *Starter) { s.Wait = 10 * time.Millisecond }, nil,
			[]string{"not healthy in time", "connection refused"}},
		{"no such program", "", func(s *Starter) { s.Command = []string{"no-such-program"} }, nil,
			[]string{"executable file not found", "start: [PROGRAM, ARGUMENT]"}},
		{"it is another version", "true", nil, func(context.Context) (bool, error) { return false, refused }, []string{"another version"}},
	} {
		g := gateway(t.TempDir())
		s := g.starter(tt.script)
		if tt.change != nil {
			tt.change(&s)
		}
		health := tt.health
		if health == nil {
			health = g.health
		}
		err := s.Ensure(t.Context(), health)
		var end *sandbox.End
		if !errors.As(err, &end) {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		for _, want := range tt.says {
			if !strings.Contains(end.Text+end.Hint, want) {
				t.Errorf("%s: %q is not in %q, hint %q", tt.name, want, end.Text, end.Hint)
			}
		}
	}
}

func TestAGatewayThatAnswersIsNotStarted(t *testing.T) {
	g := gateway(t.TempDir())
	sick := errors.New("not healthy")
	err := g.starter(": >"+g.file()).Ensure(t.Context(), func(context.Context) (bool, error) { return true, sick })
	if _, failed := os.Stat(g.file()); !errors.Is(err, sick) || failed == nil {
		t.Errorf("%v, %v", err, failed)
	}
}

func TestTheEndOfARunEndsTheWaiting(t *testing.T) {
	g := gateway(t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	looks := 0
	err := g.starter("true").Ensure(ctx, func(context.Context) (bool, error) {
		if looks++; looks == 3 {
			cancel()
		}
		return false, errSilent
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestTheCommandGetsNoCredentials(t *testing.T) {
	got := passed(
		[]string{
			"PATH=/bin",
			"OPENSHELL_DRIVERS=docker",
			"OPENSHELL_REGISTRY_TOKEN=x",
			"ANTHROPIC_API_KEY=x",
			"XDG_RUNTIME_DIR=/run",
			"GH_TOKEN=x",
		},
	)
	if !slices.Equal(got, []string{"PATH=/bin", "OPENSHELL_DRIVERS=docker", "XDG_RUNTIME_DIR=/run"}) {
		t.Errorf("%q", got)
	}
}

func TestOnlyAGatewayOfThisMachineIsStarted(t *testing.T) {
	for address, here := range map[string]bool{
		"https://127.0.0.1:1": true, "http://localhost:1": true, "https://[::1]:1": true,
		"https://gateway.example.com": false, "https://10.0.0.1:1": false,
	} {
		if err := Local(address); (err == nil) != here {
			t.Errorf("%s: %v", address, err)
		}
	}
}
