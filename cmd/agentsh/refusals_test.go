package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

// lessThan is a machine without some mechanisms.
type lessThan struct {
	name      string
	without   []string // for testenv.Without
	prefix    []string // a command that changes the machine; nil: none
	policy    string   // rules beside those of the plain pack
	config    string   // lines of the configuration
	flags     string   // what the refusal says
	floor     string   // a requirement that any does not lift; empty: every one is met
	unhelpful string   // the refusal says that no fallback helps, and why
}

var lessThanWhole = []lessThan{
	{name: "no Landlock", without: []string{testenv.WithoutLandlock}, flags: "landlock", floor: "landlock"},
	{name: "no WAIT_KILLABLE_RECV", without: []string{testenv.WithoutKillable}, config: "forbid_engine: [trace]\n", flags: "wait_killable"},
	{name: "no ptrace", without: []string{testenv.WithoutPtrace}, flags: "exec_verify", floor: "exec_verify"},
	{name: "no FUSE", prefix: []string{"unshare", "-m", "sh", "-ec", `mount --bind /dev/null /dev/fuse; exec "$@"`, "sh"}, flags: "file_server",
		floor: "file_governed"},
	{name: "no namespaces", without: []string{testenv.WithoutNamespaces}, flags: "namespaces", floor: "net_namespace"},
	{name: "no Landlock and no FUSE", without: []string{testenv.WithoutLandlock},
		prefix: []string{"unshare", "-m", "sh", "-ec", `mount --bind /dev/null /dev/fuse; exec "$@"`, "sh"}, flags: "file_server,landlock",
		floor: "landlock_scopes"},
	{name: "no ptrace and no namespaces", without: []string{testenv.WithoutPtrace, testenv.WithoutNamespaces}, flags: "exec_verify,namespaces",
		floor: "pid_namespace"},
	{name: "no engine", without: []string{testenv.WithoutListener, testenv.WithoutPtrace}, flags: "nested_commands", floor: "engine_listener"},
	{name: "no control groups", prefix: []string{"unshare", "-m", "sh", "-ec", `mount -t tmpfs none /sys/fs/cgroup; exec "$@"`, "sh"},
		policy: "resource_limits: {max_memory_mb: 512}\n", flags: "cgroup", floor: "cgroup"},
	{name: "neither Landlock nor namespaces", without: []string{testenv.WithoutLandlock, testenv.WithoutNamespaces},
		unhelpful: "no fallback"},
}

// What a refusal says is pasted: the session starts. A floor holds beside degraded: any.
func TestARefusalSaysWhatStartsTheSession(t *testing.T) {
	for _, m := range lessThanWhole {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			m.check(t)
		})
	}
}

// said is what a refusal proposes: a line of the configuration, and a flag.
var said = regexp.MustCompile(`(degraded: \[[^]]*\]) in /etc/agentsh/config.yaml, or (--degraded [a-z_,]*[a-z])`)

func (m lessThan) check(t *testing.T) {
	dir := workDir(t)
	plain, err := filepath.Abs("../../packaging/policies/plain.yaml")
	if err != nil {
		t.Fatal(err)
	}
	put := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("policy.yaml", "version: 1\nname: whole\nextends: ["+plain+"]\n"+m.policy)
	if err := os.Chown(filepath.Join(dir, "work"), 60700, 60700); err != nil {
		t.Fatal(err)
	}
	const first = "version: 1\n"
	refusal, code := m.run(t, dir, first)
	found := said.FindAllStringSubmatch(refusal, -1)
	if m.unhelpful != "" {
		if code != 125 || !strings.Contains(refusal, m.unhelpful) || len(found) > 0 {
			t.Errorf("exit %d, %s", code, refusal)
		}
		return
	}
	if code != 125 || len(found) == 0 {
		t.Fatalf("without a fallback: exit %d, %s", code, refusal)
	}
	last := found[len(found)-1] // of several fallbacks the last line has all
	if last[2] != "--degraded "+m.flags {
		t.Errorf("%q is proposed:\n%s", last[2], refusal)
	}
	if out, code := m.run(t, dir, first, strings.Fields(last[2])...); code != 0 {
		t.Errorf("with the flag %s: exit %d, %s", last[2], code, out)
	}
	if out, code := m.run(t, dir, first+last[1]+"\n"); code != 0 {
		t.Errorf("with the line %s: exit %d, %s", last[1], code, out)
	}
	if strings.Contains(m.flags, ",") {
		if out, code := m.run(t, dir, first+"degraded: any\n"); code != 0 {
			t.Errorf("with any: exit %d, %s", code, out)
		}
	}
	if m.floor == "" {
		return
	}
	out, code := m.run(t, dir, first+"degraded: any\nrequire: ["+m.floor+"]\n")
	if code != 125 || !strings.Contains(out, "config.yaml:3:11: require "+m.floor) {
		t.Errorf("with any, below the floor %s: exit %d, %s", m.floor, code, out)
	}
}

// run starts a session on such a machine and gives what it says.
func (m lessThan) run(t *testing.T, dir, config string, flags ...string) (string, int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(config+m.config), 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "agentsh")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	_ = os.Symlink(self, link) // the name by which the test binary is agentsh; it may be there
	argv := slices.Concat([]string{link, "exec", "--config", "config.yaml", "-p", "policy.yaml", "-w", "work", "--audit", "log.jsonl"},
		flags, []string{"--", "true"})
	if m.prefix != nil {
		if m.prefix[0], err = exec.LookPath(filepath.Base(m.prefix[0])); err != nil {
			t.Fatal(err)
		}
		argv = append(slices.Clone(m.prefix), argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	if m.without != nil {
		cmd = testenv.Without(t, m.without, argv...)
	}
	like := program(t, dir)
	cmd.Dir, cmd.Env = like.Dir, like.Env
	out, err := cmd.CombinedOutput()
	return string(out), exitCode(err)
}

// A program that prints the answer of a refused request shows the reason. agentsh prints it
// where the program does not, and where the output of the program is elsewhere.
func TestAReasonInAnAnswerIsPrintedOnce(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Landlock, testenv.Program("curl"))
	dir := workDir(t)
	work := filepath.Join(dir, "work")
	write(t, filepath.Join(work, "p.yaml"), `version: 1
name: once
command_rules: [{name: all, commands: ['*'], decision: allow}]
file_rules: [{name: all, paths: ['/usr/**', '/etc/**', '/dev/**', '${WORKSPACE}/**'], operations: ['*'], decision: allow}]
network_rules: [{name: no-evil, domains: [evil.example, other.example], decision: deny, message: stay here}]
`)
	const line = "agentsh: denied: %s.example:80 (rule no-evil, p.yaml:5:17): stay here\n"
	evil, other := fmt.Sprintf(line, "evil"), fmt.Sprintf(line, "other")
	for script, want := range map[string][2]string{ // in one file; standard output alone
		"curl -s http://evil.example/":                                 {evil, evil},
		"curl -s http://evil.example/ >&2":                             {evil, ""},
		"curl -s -o /dev/null http://evil.example/":                    {evil, ""},
		"curl -s http://evil.example/; curl -sf http://evil.example/":  {evil, evil},
		"curl -s http://evil.example/; curl -sf http://other.example/": {evil + other, evil},
		"curl -s http://evil.example/ http://other.example/x":          {evil + other, evil + other},
		"x=$(curl -s http://evil.example/); echo \"> $x\"":             {"> " + evil + evil, "> " + evil},
	} {
		cmd := program(t, dir, "exec", "-p", "p.yaml", "--", "bash", "-c", script)
		cmd.Dir = work
		both, _ := cmd.CombinedOutput() // the status is that of curl
		cmd = program(t, dir, "exec", "-p", "p.yaml", "--", "bash", "-c", script)
		cmd.Dir = work
		var stderr strings.Builder
		cmd.Stderr = &stderr
		alone, _ := cmd.Output()
		if got := strings.TrimSuffix(string(both), "\n"); got != strings.TrimSuffix(want[0], "\n") {
			t.Errorf("%s: prints\n%s\nwant\n%s", script, both, want[0])
		}
		if got := strings.TrimSuffix(string(alone), "\n"); got != strings.TrimSuffix(want[1], "\n") || !strings.Contains(stderr.String(), evil) {
			t.Errorf("%s: prints\n%s\nand on standard error\n%s", script, alone, stderr.String())
		}
	}
}
