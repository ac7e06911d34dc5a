package supervisor

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor/egress"
	"agentsh/supervisor/probe"
	"agentsh/supervisor/view"
)

// wholePolicy is one that a place without a file server can hold.
const wholePolicy = `version: 1
name: whole
command_rules:
  - {name: no-id, commands: [id], decision: deny}
  - {name: rest, commands: ['*'], decision: allow}
file_rules:
  - {name: secret, paths: [/etc/shadow], operations: ['*'], decision: deny}
  - {name: workspace, paths: ['${WORKSPACE}', '${WORKSPACE}/**', '${HOME}', '${HOME}/**'], operations: ['*'], decision: allow}
  - {name: system, paths: ['/usr/**', '/bin/**', '/lib/**', '/lib64/**', '/etc', '/etc/**'], operations: [read, list, stat, execute], decision: allow}
env_inject: {BASH_ENV: /usr/lib/agentsh/bash_startup.sh, INJECTED: 'yes'}
`

// limitedMachine is a machine without one mechanism, and what must apply there.
type limitedMachine struct {
	name      string
	without   []string // for testenv.Without
	prefix    []string // command that changes the machine; nil: none
	mechanism string
	steps     []string // of the refusal without the fallback
	events    []string // in the hint of the session's first event
	nested    bool     // env_inject is put back at nested programs
	forbidden string   // an engine
}

var limitedMachines = []limitedMachine{
	{name: "no Landlock", without: []string{testenv.WithoutLandlock}, mechanism: "landlock", steps: []string{"the kernel has no Landlock"},
		events: []string{"without landlock ("}, nested: true},
	{name: "no WAIT_KILLABLE_RECV", without: []string{testenv.WithoutKillable}, mechanism: "wait_killable", steps: []string{"load the filter"},
		events: []string{"without wait_killable ("}, nested: true, forbidden: "trace"},
	{name: "no ptrace", without: []string{testenv.WithoutPtrace}, mechanism: "exec_verify", steps: []string{"verify programs by ptrace"},
		events: []string{"without exec_verify (", "env_inject is not put back"}},
	{name: "no FUSE", prefix: []string{"unshare", "-m", "sh", "-ec", `mount --bind /dev/null /dev/fuse; exec "$@"`, "sh"}, mechanism: "file_server",
		steps: []string{"mount FUSE at"}, events: []string{"without file_server ("}, nested: true},
	{name: "no namespaces", without: []string{testenv.WithoutNamespaces}, mechanism: "namespaces", steps: []string{"start session init"},
		events: []string{"without namespaces (", "without file_server (", "Landlock alone"}, nested: true},
	{name: "no pivot_root", without: []string{testenv.WithoutPivotRoot}, mechanism: "namespaces",
		steps:  []string{"change to the new root", "seccomp-root.json"},
		events: []string{"without namespaces (a root directory of its own: "}, nested: true},
	{name: "no CAP_SYS_PTRACE", prefix: []string{"setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"},
		mechanism: "namespaces", steps: []string{"/root: permission denied", "--cap-add SYS_PTRACE"},
		events: []string{"without namespaces (look into a session: "}, nested: true},
}

const limitedEnv = "AGENTSH_TEST_LIMITED"

// Each machine is a run of this test in a process without the mechanism.
func TestAMachineWithoutAMechanism(t *testing.T) {
	for _, p := range limitedMachines {
		if os.Getenv(limitedEnv) == p.name {
			t.Run("inside", p.test)
			return
		}
	}
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Landlock)
	for _, p := range limitedMachines {
		t.Run(p.name, func(t *testing.T) {
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			argv := slices.Concat(p.prefix, []string{self, "-test.run=^TestAMachineWithoutAMechanism$", "-test.v"})
			if argv[0], err = exec.LookPath(argv[0]); err != nil {
				t.Fatal(err)
			}
			cmd := &exec.Cmd{Path: argv[0], Args: argv}
			if len(p.without) > 0 {
				cmd = testenv.Without(t, p.without, argv...)
			}
			cmd.Env = append(os.Environ(), limitedEnv+"="+p.name)
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "held without "+p.mechanism) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func (p limitedMachine) test(t *testing.T) {
	cfg, log := testConfig(t, wholePolicy)
	giveWorkspace(t, cfg)
	if p.forbidden != "" {
		cfg.Forbidden = []probe.Setting{{Name: p.forbidden, At: "c.yaml:1:17"}}
	}
	p.refused(t, cfg)
	cfg.Degraded = []probe.Setting{{Name: p.mechanism, At: "c.yaml:2:3"}}
	required := cfg
	required.Require = []probe.Setting{
		{Name: map[string]string{"file_server": "file_governed", "namespaces": "mount_namespace"}[p.mechanism], At: "c.yaml:1:1"},
	}
	if required.Require[0].Name == "" {
		required.Require[0].Name = p.mechanism
	}
	if slices.Contains(probe.Requirements(), required.Require[0].Name) {
		if _, err := Open(context.Background(), required); err == nil || !strings.HasPrefix(err.Error(), "c.yaml:1:1: require ") {
			t.Errorf("require and degraded: %v", err)
		}
	}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
	p.checkEnforced(t, b)
	_, left := b.run(t, "bash", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat("/proc/" + strings.TrimSpace(left)); p.mechanism == probe.Namespaces && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("process %s outlives its session: %v", left, err)
	}
	if p.mechanism == probe.Namespaces {
		checkAuthorities(t, cfg.Degraded)
	}
	t.Log("held without " + p.mechanism)
}

// checkAuthorities opens a session that inspects TLS: commands must find its
// authorities where the variables say.
func checkAuthorities(t *testing.T, degraded []probe.Setting) {
	cfg, _ := testConfig(t, wholePolicy+strings.TrimSuffix(netRules, "env_policy:"))
	giveWorkspace(t, cfg)
	cfg.Degraded = degraded
	cfg.Network.Egress.Credentials = []egress.Credential{
		{Name: "api.TOKEN", Placeholder: "placeholder-of-the-token", Value: "the-real-value",
			Endpoints: []string{"allowed.test"}, Header: "Authorization"},
	}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Session: s, workspace: cfg.Cwd}
	if exit, out := b.run(t, "bash", "-c", `grep -c BEGIN.CERT "$SSL_CERT_FILE"`); exit.Code != 0 || out == "0\n" {
		t.Errorf("authorities of the session: %+v %s", exit, out)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// refused checks what is said without the fallback.
func (p limitedMachine) refused(t *testing.T, cfg Config) {
	s, err := Open(context.Background(), cfg)
	if err == nil {
		_ = s.Close()
		t.Fatal("a session opened without the fallback")
	}
	for _, want := range append(p.steps, "degraded: ["+p.mechanism+"]", probe.Consequence(p.mechanism)) {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the refusal does not say %q: %v", want, err)
		}
	}
}

// holds runs commands and looks at what they could do.
func (p limitedMachine) checkEnforced(t *testing.T, b *box) {
	begin := b.begins(t)
	for _, want := range p.events {
		if len(begin) != 1 || begin[0].Decision != "degraded" || !strings.Contains(begin[0].Hint, want) {
			t.Errorf("the first event does not say %q: %+v", want, begin)
		}
	}
	if p.mechanism == probe.Landlock {
		checkHeldElsewhere(t, b, begin[0])
	}
	if exit, out := b.run(t, "true"); exit.Kind != wire.ExitExited || exit.Code != 0 {
		t.Errorf("true: %+v %s", exit, out)
	}
	if exit, _ := b.run(t, "id"); exit.Kind != wire.ExitDenied {
		t.Errorf("a denied command: %+v", exit)
	}
	for _, c := range []struct{ name, script string }{
		{"a denied program, nested", `! /usr/bin/id`},
		{"a denied file", `! cat /etc/shadow | grep .`},
		{"writing outside", `! { : >/etc/agentsh-test; } 2>/dev/null`},
		{"reading what no rule allows", `! { : <"` + filepath.Dir(b.workspace) + `/audit.jsonl"; } 2>/dev/null`},
		{"the workspace", `echo x >file && [ "$(cat file)" = x ]`},
		{"a signal outside", `! kill -0 ` + strconv.Itoa(os.Getpid()) + ` 2>/dev/null`},
		{"a namespace of one's own", `! unshare -U true`},
		{"the scheduling of the session init", `for t in $PPID $(ls /proc/$PPID/task); do
			renice 19 -p $t && exit 1; renice 19 -g $t && exit 1; ionice -c3 -p $t && exit 1
			taskset -p 1 $t && exit 1; chrt -b -p 0 $t && exit 1; done; true`},
		{"the scheduling of the session's own", `renice 19 -p $$ && taskset -p 3 $$ && ionice -c3 -p $$ && chrt -b -p 0 $$`},
		{"env_inject", `[ "$INJECTED" = yes ]`},
	} {
		if exit, out := b.run(t, "bash", "-c", c.script); exit.Kind != wire.ExitExited || exit.Code != 0 {
			t.Errorf("%s: %+v %s", c.name, exit, out)
		}
	}
	exit, out := b.run(t, "bash", "-c", `env -i sh -c '[ "$INJECTED" = yes ]'`)
	if put := exit.Code == 0; put != p.nested {
		t.Errorf("env_inject at a nested program: %+v %s", exit, out)
	}
	_, err := b.Changes(context.Background())
	if lost := b.Missing().Has(probe.FileServer); lost != (err != nil) {
		t.Errorf("change record: %v", err)
	}
}

// checkHeldElsewhere looks at a session without Landlock's scopes: its pid and network
// namespaces hold the same.
func checkHeldElsewhere(t *testing.T, b *box, begin wire.Event) {
	t.Helper()
	if b.Missing().Has(probe.LandlockScopes) {
		t.Error("scopes are missing although namespaces hold their guarantees")
	}
	want := map[string]string{
		"files": "mount_namespace", "signals": "pid_namespace", "abstract_sockets": "net_namespace", "net_namespace": "net_namespace",
		"exec_verify": "ptrace", "env_inject_nested": "ptrace", "file_governed": "fuse",
	}
	if !maps.Equal(begin.HeldBy, want) {
		t.Errorf("held by %v", begin.HeldBy)
	}
	cfg, _ := testConfig(t, wholePolicy)
	cfg.Degraded = []probe.Setting{{Name: probe.Landlock, At: "c.yaml:2:3"}}
	cfg.Require = []probe.Setting{
		{Name: "signals", At: "c.yaml:1:1"}, {Name: "abstract_sockets", At: "c.yaml:1:2"}, {Name: "files", At: "c.yaml:1:3"},
	}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatalf("guarantees that namespaces hold: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	cfg.Require = []probe.Setting{{Name: "landlock_scopes", At: "c.yaml:1:1"}}
	if _, err := Open(context.Background(), cfg); err == nil || !strings.Contains(err.Error(),
		"its guarantees are held by pid_namespace and net_namespace: require: [signals, abstract_sockets]") {
		t.Errorf("a mechanism that is required by name: %v", err)
	}
	cfg.Require, cfg.Network.Shared = []probe.Setting{{Name: "abstract_sockets", At: "c.yaml:1:2"}}, true
	if _, err := Open(context.Background(), cfg); err == nil ||
		!strings.Contains(err.Error(), "c.yaml:1:2: require abstract_sockets: no mechanism holds it in this session") {
		t.Errorf("abstract sockets in a network that is shared: %v", err)
	}
	outside, err := net.Listen("unix", "@agentsh-test-"+filepath.Base(b.workspace))
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	for what, script := range map[string]string{
		"an abstract socket outside": `! python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).connect("\0" + sys.argv[1])' ` +
			outside.Addr().String()[1:] + ` 2>/dev/null`,
		"signals for a process outside": `! python3 -c 'import fcntl, sys; fcntl.fcntl(0, fcntl.F_SETOWN, int(sys.argv[1]))' ` +
			strconv.Itoa(os.Getpid()) + ` 2>/dev/null`,
		"a process descriptor of one's own": `python3 -c 'import os, signal
signal.pidfd_send_signal(os.pidfd_open(os.getpid()), 0)'`,
	} {
		if exit, out := b.run(t, "bash", "-c", script); exit.Code != 0 {
			t.Errorf("%s: %+v %s", what, exit, out)
		}
	}
}

func TestAFallbackForAMechanismThatWorksChangesNothing(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Landlock)
	cfg, log := testConfig(t, testPolicy)
	for _, name := range []string{"landlock_scopes", "landlock", "wait_killable", "exec_verify", "file_server", "namespaces"} {
		cfg.Degraded = append(cfg.Degraded, probe.Setting{Name: name, At: "--degraded"})
	}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	b := &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
	begin := b.events(t, func(e wire.Event) bool { return e.Type == wire.EventSession })
	if len(s.Missing()) > 0 || s.files == nil || begin[0].Decision != "" {
		t.Errorf("missing %v, event %+v", s.Missing(), begin[0])
	}
}

// TestASessionWithoutAListener opens sessions where seccomp(2) makes none, or none whose
// waits signals do not interrupt: commands are traced, and held as everywhere.
func TestASessionWithoutAListener(t *testing.T) {
	without := os.Getenv(limitedEnv)
	if without == "" {
		testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		for _, without := range []string{testenv.WithoutListener, testenv.WithoutKillable} {
			cmd := testenv.Without(t, []string{without}, self, "-test.run=^TestASessionWithoutAListener$", "-test.v")
			cmd.Env = append(os.Environ(), limitedEnv+"="+without)
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "traced all the same") {
				t.Errorf("without %s: %v\n%s", without, err, out)
			}
		}
		return
	}
	cfg, log := testConfig(t, testPolicy)
	giveWorkspace(t, cfg)
	cfg.Require = []probe.Setting{{Name: "exec_verify", At: "c.yaml:1:1"}, {Name: "env_inject_nested", At: "c.yaml:1:2"}}
	if without == testenv.WithoutKillable { // the fallback is allowed, and not used
		cfg.Degraded = []probe.Setting{{Name: probe.WaitKillable, At: "c.yaml:2:1"}}
	}
	b := openConfig(t, cfg, log)
	if b.Engine() != "trace" {
		t.Fatalf("the engine is %s", b.Engine())
	}
	begin := b.begins(t)
	if len(begin) != 1 || begin[0].Mechanism != "trace" || begin[0].Decision != "" {
		t.Errorf("the session begins with %+v", begin)
	}
	b.prints(t, map[string]string{
		"echo $BOTH; env -i sh -c 'echo $BOTH'":                               "policy\npolicy\n",
		"/usr/bin/kill -0 1 2>/dev/null; echo $?":                             "126\n",
		"printf '#!/bin/sh\necho script $1\n' >s; chmod +x s; ./s one; cat s": "script one\n#!/bin/sh\necho script $1\n",
		"sh -c 'exit 3' & wait $!; echo $?; exec env echo k":                  "3\nk\n",
	})
	t.Log("traced all the same")
}

func TestAnEngineThatIsForbiddenIsNotUsed(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	cfg, log := wholeConfig(t, testPolicy)
	cfg.Forbidden = []probe.Setting{{Name: "listener", At: "c.yaml:1:17"}}
	if b := openConfig(t, cfg, log); b.Engine() != "trace" {
		t.Errorf("the engine is %s", b.Engine())
	}
	cfg, _ = wholeConfig(t, testPolicy)
	cfg.Forbidden = []probe.Setting{{Name: "listener", At: "c.yaml:1:17"}, {Name: "trace", At: "c.yaml:1:27"}}
	_, err := Open(context.Background(), cfg)
	if err == nil || !strings.Contains(err.Error(), "c.yaml:1:17: forbid_engine has listener") ||
		!strings.Contains(err.Error(), "c.yaml:1:27: ") {
		t.Errorf("both are forbidden: %v", err)
	}
	cfg, _ = wholeConfig(t, testPolicy)
	cfg.Require = []probe.Setting{{Name: "engine_listener", At: "c.yaml:1:11"}, {Name: "engine_trace", At: "c.yaml:1:28"}}
	if _, err := Open(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "c.yaml:1:28: require has engine_trace") ||
		!strings.Contains(err.Error(), "c.yaml:1:11: require has engine_listener") {
		t.Errorf("both are required: %v", err)
	}
	for _, engine := range Engines {
		cfg, log := wholeConfig(t, testPolicy)
		cfg.Require = []probe.Setting{{Name: "engine_" + engine, At: "c.yaml:1:11"}}
		b := openConfig(t, cfg, log)
		if b.Engine() != engine {
			t.Errorf("the engine is %s, and %s is required", b.Engine(), engine)
		}
	}
	cfg, _ = wholeConfig(t, strings.Replace(testPolicy, "file_rules:\n",
		"file_rules:\n  - {name: variables, paths: ['/proc/*/environ'], operations: [read, write], decision: deny}\n", 1))
	cfg.Forbidden = []probe.Setting{{Name: "listener", At: "c.yaml:1:17"}}
	_, err = Open(context.Background(), cfg)
	if err == nil || !strings.Contains(err.Error(), "test.yaml:9:5: rule variables decides about single files below /proc") {
		t.Errorf("a rule that needs the listener: %v", err)
	}
}

// A kernel without mount_setattr(2) holds the same by remounting, also what is
// mounted inside a tree that is shown.
func TestMountsAreReadOnlyOnOldKernels(t *testing.T) {
	const inside = "AGENTSH_TEST_OLD_MOUNTS"
	if os.Getenv(inside) == "" {
		testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Landlock)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		unshare, err := exec.LookPath("unshare")
		if err != nil {
			t.Fatal(err)
		}
		below := t.TempDir()
		cmd := testenv.Without(t, []string{testenv.WithoutSetAttr}, unshare, "-m", "sh", "-ec",
			`mount -t tmpfs -o mode=1777 "a b" /usr/share; exec "$@"`, "sh", self, "-test.run=^TestMountsAreReadOnlyOnOldKernels$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"="+below)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "read-only all the same") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	b := openBox(t, testPolicy)
	exit, out := b.run(
		t,
		"bash",
		"-c",
		`for dir in / /usr /usr/share /etc; do { : >$dir/file; } 2>/dev/null && echo $dir; done; { : >/etc/hosts; } 2>/dev/null && echo hosts; : >file`,
	)
	if exit.Code != 0 || out != "" {
		t.Errorf("written: %q, %+v", out, exit)
	}
	if exit, out := b.run(t, "grep", " /usr/share ", "/proc/self/mounts"); !strings.Contains(out, "/usr/share tmpfs ro,nosuid,nodev") {
		t.Errorf("%+v %s", exit, out)
	}
	t.Log("read-only all the same")
}

func TestARequirementOfTheSession(t *testing.T) {
	testenv.Need(t, testenv.Root)
	cfg, _ := testConfig(t, testPolicy)
	cfg.Network.Shared, cfg.Files.Governed = true, nil
	cfg.Require = []probe.Setting{
		{Name: "net_namespace", At: "c.yaml:3:5"}, {Name: "file_governed", At: "c.yaml:4:5"}, {Name: "landlock", At: "c.yaml:5:5"},
	}
	_, err := Open(context.Background(), cfg)
	if err == nil || err.Error() != "c.yaml:3:5: require net_namespace: the session shares the network of this machine\n"+
		"c.yaml:4:5: require file_governed: the session has no workspace under file policy\n"+
		"  to go on without: take the name out of require, at the place that is named" {
		t.Errorf("%v", err)
	}
}

// giveWorkspace makes the user of commands own the workspace, as sessions without a file
// server need it.
func giveWorkspace(t *testing.T, cfg Config) {
	t.Helper()
	if err := os.Chown(cfg.Cwd, view.DedicatedID, view.DedicatedID); err != nil {
		t.Fatal(err)
	}
}

// begins are the events of the session's start.
func (b *box) begins(t *testing.T) []wire.Event {
	t.Helper()
	return b.events(t, func(e wire.Event) bool { return e.Type == wire.EventSession && e.Phase == "begin" })
}

// prints runs scripts, each of which must end with its output.
func (b *box) prints(t *testing.T, scripts map[string]string) {
	t.Helper()
	for script, want := range scripts {
		if exit, out := b.run(t, "bash", "-c", script); !strings.HasSuffix(out, want) {
			t.Errorf("%s: %+v %q", script, exit, out)
		}
	}
}
