package host

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/channel"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor"
)

// serveBox serves a session over a channel as agentsh serve does.
func serveBox(t *testing.T) (*channel.Client, string) {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	boot := testBoot(t, testPolicy)
	hostKey, hostPublic, err := channel.NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	key, public, err := channel.NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	ours, file, err := channel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := channel.FromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	boot.EnvDir, boot.AuditPath = boot.Governed[0].Path+"/.env.d", filepath.Join(t.TempDir(), "audit.jsonl")
	boot.HostKey, boot.AuthorizedKey, boot.EnvInject = hostKey, public, map[string]string{"FROM_CONFIG": "yes"}
	served := make(chan error, 1)
	go func() {
		served <- Serve(context.Background(), theirs, boot, Options{Operator: supervisor.DefaultOperator, Build: "test"})
	}()
	client, err := channel.NewClient(context.Background(), ours, channel.ClientConfig{Key: key, HostKey: hostPublic})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return client, boot.Governed[0].Path
}

func TestAControllerRunsCommandsUnderTheSamePolicy(t *testing.T) {
	client, _ := serveBox(t)
	tests := []struct {
		name string
		argv []string
		kind string
		want string // part of the output
	}{
		{"a denied program", []string{"kill", "1"}, wire.ExitDenied, ""},
		{"a denied program, nested", []string{"sh", "-c", "/bin/kill 1 || echo refused"}, wire.ExitExited, "refused"},
		{"env_inject", []string{"env"}, wire.ExitExited, "BASH_ENV=/usr/lib/agentsh/bash_startup.sh"},
		{"env_inject of the operator", []string{"env"}, wire.ExitExited, "FROM_CONFIG=yes"},
		{"the filter", []string{"sh", "-c", "echo ${SECRET-none}"}, wire.ExitExited, "none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			exit, err := client.Run(
				context.Background(),
				wire.ExecRequest{ID: t.Name(), Argv: tt.argv, Env: []string{"SECRET=1"}},
				wire.Streams{Stdout: &out},
			)
			if err != nil || exit.Kind != tt.kind || !strings.Contains(out.String(), tt.want) {
				t.Errorf("exit %+v, %q, %v", exit, out.String(), err)
			}
		})
	}
}

func TestAControllersFilesAreSeenByCommands(t *testing.T) {
	client, workspace := serveBox(t)
	ctx := context.Background()
	for _, name := range []string{workspace + "/in.txt", "/tmp/in.txt"} {
		cat := func() string {
			var out bytes.Buffer
			if _, err := client.Run(ctx, wire.ExecRequest{ID: t.Name() + name + out.String(), Argv: []string{"cat", name}},
				wire.Streams{Stdout: &out}); err != nil {
				t.Fatal(err)
			}
			return out.String()
		}
		if err := client.WriteFile(ctx, name, []byte("one"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := cat(); got != "one" {
			t.Errorf("%s holds %q", name, got)
		}
	}
}

// TestVariablesAreThoseThatWereDelivered: neither a command nor who copies files in
// sets variables of later commands, or breaks them, by a link either.
func TestVariablesAreThoseThatWereDelivered(t *testing.T) {
	client, workspace := serveBox(t)
	ctx := context.Background()
	run := func(script string) string {
		t.Helper()
		var out bytes.Buffer
		exit, err := client.Run(
			ctx,
			wire.ExecRequest{ID: rand.Text(), Argv: []string{"sh", "-c", script}},
			wire.Streams{Stdout: &out, Stderr: &out},
		)
		if err != nil || exit.Kind != wire.ExitExited {
			t.Fatalf("%s: %+v, %v", script, exit, err)
		}
		return strings.TrimSpace(out.String())
	}
	if err := client.WriteFile(ctx, workspace+"/.env.d/a.env", []byte("FROM=controller\n"), 0o644); err == nil {
		t.Error("written without its directory")
	}
	if err := client.Mkdir(ctx, workspace+"/.env.d", 0o777); err != nil {
		t.Fatal(err)
	}
	if err := client.WriteFile(ctx, workspace+"/.env.d/a.env", []byte("FROM=controller\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, attack := range []string{
		"true", "echo FROM=agent >.env.d/a.env", "echo FROM=agent >.env.d/z.env", "echo 'not a line' >.env.d/b.env", "mkfifo .env.d/c.env",
		"mv .env.d old; mkdir .env.d; echo FROM=agent >.env.d/generated.env", "rm -rf .env.d; ln -s old .env.d", "ln -s .env.d there",
	} {
		run(attack)
		if got := run("echo $FROM"); got != "controller" {
			t.Errorf("after %q: %q", attack, got)
		}
	}
	for _, name := range []string{"/.env.d", "/.env.d/y.env"} {
		if err := client.WriteFile(ctx, workspace+name, []byte("FROM=operator\n"), 0o644); err == nil ||
			!strings.Contains(err.Error(), "env.sandbox in the harness") {
			t.Errorf("%s is written: %v", name, err)
		}
		if err := client.Remove(ctx, workspace+name, true); err == nil || !strings.Contains(err.Error(), "has no effect") {
			t.Errorf("%s is removed: %v", name, err)
		}
		if err := client.Mkdir(ctx, workspace+name, 0o755); err == nil || !strings.Contains(err.Error(), "has no effect") {
			t.Errorf("%s is made: %v", name, err)
		}
	}
	if err := client.WriteFile(ctx, workspace+"/there/x.env", []byte("FROM=operator\n"), 0o644); err != nil {
		t.Log(err)
	}
	if got := run("echo $FROM"); got != "controller" {
		t.Errorf("after all: %q", got)
	}
}

// slowly delays the first open of a file by d.
func slowly(t *testing.T, name string, d time.Duration) {
	t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, name); err != nil {
		t.Fatal(err)
	}
	go func() {
		var event [24]byte // struct fanotify_event_metadata
		if n, err := unix.Read(fd, event[:]); n != len(event) {
			t.Errorf("read of an event: %d bytes, %v", n, err)
			return
		}
		<-time.After(d)
		file := int32(binary.NativeEndian.Uint32(event[16:]))
		_ = unix.FanotifyMark(fd, unix.FAN_MARK_REMOVE, unix.FAN_OPEN_PERM, unix.AT_FDCWD, name)
		answer := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, uint32(file)), unix.FAN_ALLOW)
		if _, err := unix.Write(fd, answer); err != nil {
			t.Errorf("answer: %v", err)
		}
		_ = unix.Close(int(file))
	}()
}

// TestALifetimeBeginsWhenTheSessionIsOpen opens one for longer than it may live.
func TestALifetimeBeginsWhenTheSessionIsOpen(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	boot := testBoot(t, testPolicy)
	dir := t.TempDir()
	boot.AuditPath, boot.AuditKey, boot.LifetimeSeconds = filepath.Join(dir, "audit.jsonl"), filepath.Join(dir, "key"), 1
	if err := os.WriteFile(boot.AuditKey, []byte(strings.Repeat("5a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	slowly(t, boot.AuditKey, 1100*time.Millisecond)
	var err error
	if boot.HostKey, boot.AuthorizedKey, err = channel.NewKeyPair(); err != nil {
		t.Fatal(err)
	}
	ours, file, err := channel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	theirs, err := channel.FromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	err = Serve(context.Background(), theirs, boot, Options{Operator: supervisor.DefaultOperator, Build: "test"})
	data, _ := os.ReadFile(boot.AuditPath)
	if !strings.Contains(string(data), `"cause":"lifetime"`) {
		t.Errorf("the session did not end by its lifetime: %v\n%s", err, data)
	}
}
