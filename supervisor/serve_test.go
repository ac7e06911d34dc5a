package supervisor

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/channel"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// serveBox serves a session over a channel as agentsh serve does.
func serveBox(t *testing.T) (*channel.Client, string) {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	cfg, _ := testConfig(t, testPolicy)
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
	boot := wire.Bootstrap{
		Version: wire.Current, Policy: []wire.PolicySource{wire.PolicySource(cfg.Policy.Sources()[0])}, Vars: cfg.Policy.Vars(),
		Governed: cfg.Governed, Home: cfg.Home, AuditPath: filepath.Join(t.TempDir(), "audit.jsonl"),
		HostKey: hostKey, AuthorizedKey: public, EnvInject: map[string]string{"FROM_CONFIG": "yes"},
	}
	served := make(chan error, 1)
	go func() { served <- Serve(context.Background(), theirs, boot, configDefaults, "test") }()
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
	return client, cfg.Cwd
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
			exit, err := client.Run(context.Background(), wire.ExecRequest{ID: t.Name(), Argv: tt.argv, Env: []string{"SECRET=1"}}, wire.Streams{Stdout: &out})
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
			if _, err := client.Run(ctx, wire.ExecRequest{ID: t.Name() + name + out.String(), Argv: []string{"cat", name}}, wire.Streams{Stdout: &out}); err != nil {
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
