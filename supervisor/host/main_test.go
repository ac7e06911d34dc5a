package host

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor"
	"agentsh/supervisor/audit"
)

func TestMain(m *testing.M) {
	supervisor.Reexec()
	testenv.DefaultSignals()
	os.Exit(m.Run())
}

// testPolicy lets ordinary commands work and refuses a few things.
const testPolicy = `version: 1
name: test
command_rules:
  - {name: no-kill, commands: [kill, /usr/bin/kill], decision: deny, message: no signals, }
  - {name: swapped, commands: [hostid], decision: redirect, redirect_to: {command: sh, args: [-c, "echo instead $MARK"], environment: {MARK: set}}}
  - {name: short, commands: [sleep], decision: allow, timeout: 10m}
  - {name: rest, commands: ['*'], decision: allow}
file_rules:
  - {name: guarded, paths: ['${WORKSPACE}/guarded', '${WORKSPACE}/guarded/**'], operations: [write, create, delete, rename, mkdir, link, symlink, mknod], decision: deny}
  - {name: secret, paths: [/etc/shadow], operations: ['*'], decision: deny, message: not yours}
  - {name: workspace, paths: ['${WORKSPACE}', '${WORKSPACE}/**', /tmp, '/tmp/**'], operations: ['*'], decision: allow}
  - {name: system, paths: ['/usr/**', '/bin/**', '/lib/**', '/lib64/**', '/etc', '/etc/**'], operations: [read, list, stat, execute], decision: allow}
env_policy: {allow: [PASSED, PATH, HOME, SHLVL, LANG]}
env_inject: {BASH_ENV: /usr/lib/agentsh/bash_startup.sh, BOTH: policy}
`

// testBoot describes a session with a workspace of its own.
func testBoot(t *testing.T, text string) wire.Bootstrap {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	workspace := filepath.Join(dir, "work")
	if err := os.Mkdir(workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	return wire.Bootstrap{
		Version: wire.Current, Policy: []wire.PolicySource{{Name: "test.yaml", Data: []byte(text)}},
		Vars:     map[string]string{"WORKSPACE": workspace, "PROJECT_ROOT": workspace, "HOME": "/home/sandbox", "TMPDIR": "/tmp"},
		Governed: []wire.Governed{{Backing: workspace, Path: workspace}}, Home: "/home/sandbox",
	}
}

func openLog(t *testing.T) *audit.Log {
	t.Helper()
	dir := t.TempDir()
	log, err := audit.Open(filepath.Join(dir, "audit.jsonl"), audit.Options{KeyFile: filepath.Join(dir, "key")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	return log
}

// testRequest is the configuration of the session that boot describes.
func testRequest(t *testing.T, boot wire.Bootstrap, log *audit.Log) supervisor.Config {
	t.Helper()
	p, err := bootPolicy(boot)
	if err != nil {
		t.Fatal(err)
	}
	cfg := supervisor.SessionConfig(supervisor.DefaultOperator, supervisor.Request{Boot: boot, Policy: p, Audit: log})
	cfg.Log = slog.New(slog.DiscardHandler)
	return cfg
}
