package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller"
	"agentsh/internal/testenv"
)

// fixture is a target repository with a harness.
type fixture struct {
	t     testing.TB
	bin   string
	dir   string // contains harness.yaml, repo, out and state
	state string

	harness string   // empty: harness.yaml
	setenv  []string // more variables of the host
	above   []string // what agentctl runs below; empty: nothing
	place   []string // flags that say where the sandbox is; empty: on this machine
	counts  string   // URL of the counts of a place that listens
}

// newFixture creates a fixture. The agent is a script; more is added to the
// harness.
func newFixture(t testing.TB, agent, more string) *fixture {
	t.Helper()
	return newFixtureAt(t, func(string) {}, agent, more)
}

// newFixtureAt creates a fixture in a directory that prepare prepares.
func newFixtureAt(t testing.TB, prepare func(dir string), agent, more string) *fixture {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Program("git"))
	bin := testenv.Programs(t)
	p := &fixture{t: t, bin: bin, dir: t.TempDir()}
	prepare(p.dir)
	p.state = filepath.Join(p.dir, "state")
	policy, err := filepath.Abs("../../examples/policies/demo.yaml")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	p.write("policy.yaml", string(data), 0o644)
	p.write("agents/tester.md", "# tester\n", 0o644)
	p.write("skills/task/SKILL.md", "# task\n", 0o644)
	p.write("skills/task/run.sh", "#!/bin/bash\n"+agent+"\n", 0o755)
	p.write("harness.yaml", `agent: agents/tester.md
role: tester
runtime: command
command: [/sandbox/claude-config/skills/task/run.sh]
policy: policy.yaml
skills: [skills/task]
timeout_minutes: 5
`+more+"\n", 0o644)
	p.write("repo/a.txt", "one\n", 0o644)
	p.git("init", "-q", "-b", "main")
	p.git("add", "-A")
	p.git("commit", "-q", "-m", "first")
	t.Cleanup(p.checkClean)
	return p
}

func (p *fixture) path(name string) string { return filepath.Join(p.dir, name) }

func (p *fixture) write(name, text string, mode fs.FileMode) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(p.path(name)), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(p.path(name), []byte(text), mode); err != nil {
		p.t.Fatal(err)
	}
}

func (p *fixture) read(name string) string {
	p.t.Helper()
	data, err := os.ReadFile(p.path(name))
	if err != nil {
		p.t.Error(err)
	}
	return string(data)
}

// git runs git in the target, as its owner.
func (p *fixture) git(args ...string) string {
	p.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = p.path("repo")
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com",
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// command is agentctl with arguments, in the fixture.
func (p *fixture) command(args ...string) *exec.Cmd {
	argv := append(slices.Concat(p.above, []string{p.bin + "/agentctl"}), args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = p.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "XDG_STATE_HOME=" + p.state, "HOST_TOKEN=value-of-no-use"}
	cmd.Env = append(cmd.Env, p.setenv...)
	return cmd
}

func (p *fixture) runArgs(more ...string) []string {
	return slices.Concat([]string{"run", cmp.Or(p.harness, "harness.yaml"), "--repo", "repo", "--out", "out"}, p.place, more)
}

// run runs the harness and returns the result object and the exit code.
func (p *fixture) run(more ...string) (controller.Result, int) {
	p.t.Helper()
	cmd := p.command(p.runArgs(append([]string{"--json"}, more...)...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	p.t.Logf("%s", errs.String())
	var r controller.Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		p.t.Fatalf("--json: %v\n%s\n%s", err, out.String(), errs.String())
	}
	checkResult(p.t, "--json", out.Bytes())
	return r, cmd.ProcessState.ExitCode()
}

// checkClean fails the test if a run left anything besides its results and its
// record.
func (p *fixture) checkClean() {
	p.t.Helper()
	checkResults(p.t, p.dir)
	for _, dir := range []string{"state/agentsh/sandboxes", "place/agentsh/remote"} {
		entries, err := os.ReadDir(p.path(dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.t.Error(err)
		}
		for _, e := range entries {
			p.t.Errorf("left behind: %s/%s", dir, e.Name())
		}
	}
	for _, pattern := range []string{".agentctl-*", "state/agentsh/runs/*/work", "state/agentsh/runs/*/socket",
		"state/agentsh/runs/*/keys.json", "state/agentsh/batches/*/work", "state/agentsh/batches/*/socket", "out/*/.agentctl-*",
		"repo/.git/*.lock", "repo/.git/refs/heads/*.lock"} {
		left, _ := filepath.Glob(p.path(pattern))
		for _, name := range left {
			p.t.Errorf("left behind: %s", name)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(mounts, []byte(p.dir+"/")) {
		p.t.Errorf("a mount is left below %s: %v", p.dir, err)
	}
}

func TestTheExampleRunsEndToEnd(t *testing.T) { runExample(t, "") }

// runExample runs the example of the README with more in its harness and more flags.
func runExample(t *testing.T, more string, flags ...string) {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Program("git"), testenv.Program("curl"))
	bin := testenv.Programs(t)
	p := &fixture{t: t, bin: bin, dir: t.TempDir()}
	p.state, p.setenv = p.path("state"), []string{"HOME=" + p.dir}
	if err := os.CopyFS(p.path("examples"), os.DirFS("../../examples")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(p.path("examples/fix-bug/repo")); err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{"prepare.sh", "skills/fix-bug/fix.sh"} {
		if err := os.Chmod(p.path("examples/fix-bug/"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.write("examples/fix-bug/harness.yaml", p.read("examples/fix-bug/harness.yaml")+more, 0o644)
	if out, err := exec.Command(p.path("examples/fix-bug/prepare.sh")).CombinedOutput(); err != nil {
		t.Fatalf("prepare.sh: %v\n%s", err, out)
	}
	t.Cleanup(p.checkClean)
	run := []string{"run", "examples/fix-bug/harness.yaml", "--repo", "examples/fix-bug/repo", "--out", "out/fix-bug"}
	cmd := p.command(append(run, flags...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s of user and %s of system time", cmd.ProcessState.UserTime(), cmd.ProcessState.SystemTime())
	var r controller.Result
	if err := json.Unmarshal([]byte(p.read("out/fix-bug/result.json")), &r); err != nil {
		t.Fatal(err)
	}
	if r.Status != controller.StatusDone || r.Partial || r.ExitCode != 0 || len(r.Commits) != 1 || r.AuditGaps != 0 {
		t.Errorf("result: %+v", r)
	}
	for _, rule := range []string{"block-kill", "git_guard", "machine-secrets", "block-metadata-service"} {
		i := slices.IndexFunc(r.Refused, func(x controller.Refusal) bool { return x.Rule.Name == rule })
		if i < 0 || !strings.HasPrefix(r.Refused[i].Rule.Position(), "examples/policies/demo.yaml:") || r.Refused[i].Message == "" {
			t.Errorf("no refusal by %s with its place: %+v", rule, r.Refused)
			continue
		}
		if !strings.Contains(string(out), "["+rule+" "+r.Refused[i].Rule.Position()+"]") {
			t.Errorf("the refusal by %s is not printed:\n%s", rule, out)
		}
	}
	if !strings.Contains(p.read("out/fix-bug/files/slot.go"), "s.From <= out[last].To") {
		t.Error("the changed file is not the mended one")
	}
	repo := exec.Command("git", "-C", p.path("examples/fix-bug/repo"), "show", r.Branch+":slot.go")
	if mended, err := repo.CombinedOutput(); err != nil || !bytes.Contains(mended, []byte("s.From <= out[last].To")) {
		t.Errorf("branch %s: %v %s", r.Branch, err, mended)
	}
	if log := p.read("out/fix-bug/audit.jsonl"); !strings.Contains(log, `"block-kill"`) {
		t.Error("the audit log has no denial")
	}
}

func TestHowAnAgentEndsDecidesTheExitCode(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, agent, more string
		code              int
		status, says      string
		partial           bool
	}{
		{"an agent that does nothing", "true", "", 0, controller.StatusDone, "", false},
		{"an agent that fails", "echo x > new.txt; exit 3", "", 1, controller.StatusAgentFailed, "status 3", true},
		{"an agent that is killed", "exec sh -c 'kill -KILL $$'", "", 1, controller.StatusAgentFailed, "killed by signal 9", true},
		{"an agent whose status looks like a timeout", "exit 124", "", 1, controller.StatusAgentFailed, "status 124", true},
		{"an agent that leaves a process behind", "sleep 1000 & disown; exit 0", "", 0, controller.StatusDone, "", false},
		{"a post script that fails", "true", "post_script: fail.sh", 7, controller.StatusPostScriptFailed, "exit status 9", false},
		{
			"output that never is valid",
			"true",
			"validation_loop: {script: fail.sh, max_iterations: 2}",
			6,
			controller.StatusValidationFailed,
			"after 2 iteration(s)",
			false,
		},
		{"a pre script that fails", "true", "pre_script: fail.sh", 2, controller.StatusFailed, "exit status 9", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newFixture(t, tt.agent, tt.more)
			p.write("fail.sh", "#!/bin/sh\necho bad >&2\nexit 9\n", 0o755)
			r, code := p.run()
			says := ""
			if r.Error != nil {
				says = r.Error.Message
			}
			if code != tt.code || r.ExitCode != tt.code || r.Status != tt.status || r.Partial != tt.partial || !strings.Contains(says, tt.says) {
				t.Errorf("exit %d, result %d %s partial %v: %q", code, r.ExitCode, r.Status, r.Partial, says)
			}
		})
	}
}

func TestAScriptIsEndedByTheTimeOfItsHarness(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		more, key string
		code      int
	}{
		{"pre_script: slow.sh\npre_script_timeout_seconds: 1", "pre_script_timeout_seconds", 5},
		{"validation_loop: {script: slow.sh, timeout_seconds: 1}", "validation_loop.timeout_seconds", 5},
		{"post_script: slow.sh\npost_script_timeout_seconds: 1", "post_script_timeout_seconds", 7},
	} {
		p := newFixture(t, "true", tt.more)
		p.write("slow.sh", "#!/bin/sh\nsleep 1000 & exec sleep 1000\n", 0o755)
		r, code := p.run()
		if code != tt.code || r.Error == nil || !strings.Contains(r.Error.Message, "harness.yaml:8:") ||
			!strings.Contains(r.Error.Message, "time limit reached (1s)") || !strings.HasPrefix(r.Error.Hint, "raise "+tt.key+" in the harness") {
			t.Errorf("%s: exit %d: %+v", tt.key, code, r.Error)
		}
	}
}

func TestADeniedAgentIsNamedWithItsRule(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "true", "")
	p.write(
		"harness.yaml",
		strings.ReplaceAll(p.read("harness.yaml"), "[/sandbox/claude-config/skills/task/run.sh]", "[/bin/kill, '-0', '1']"),
		0o644,
	)
	r, code := p.run()
	if code != 1 || r.Error == nil || !strings.Contains(r.Error.Message, "block-kill policy.yaml:8") {
		t.Errorf("exit %d: %+v", code, r.Error)
	}
}

func TestWorkOfAnAgentIsExtracted(t *testing.T) {
	t.Parallel()
	p := newFixture(t, `
echo two > a.txt
mkdir -p deep/er; echo new > deep/er/file.txt
printf '#!/bin/sh\n' > tool; chmod 755 tool
ln -s a.txt good-link; ln -s /etc/passwd bad-link; mkfifo pipe
echo gone > gone.txt; rm gone.txt
git add a.txt tool; git commit -q -m 'Change a'
git checkout -q -b side; echo three > a.txt; git commit -q -a -m 'Another'
echo report > "$AGENTSH_OUTPUT_DIR/report.txt"
`, "")
	r, code := p.run()
	if code != 0 || len(r.Commits) != 2 || r.Commits[0].Subject != "Another" {
		t.Fatalf("exit %d: %+v", code, r)
	}
	got := p.read("out/files/a.txt") + p.read("out/files/deep/er/file.txt") + p.read("out/output/report.txt")
	if got != "three\nnew\nreport\n" {
		t.Errorf("files: %q", got)
	}
	if info, err := os.Stat(p.path("out/files/tool")); err != nil || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("mode: %v %v", info, err)
	}
	for _, name := range []string{"bad-link", "pipe", ".git"} {
		if _, err := os.Lstat(p.path("out/files/" + name)); err == nil {
			t.Errorf("%s came out", name)
		}
	}
	if !r.Partial {
		t.Error("what cannot travel was left out in silence")
	}
	if got := p.git("show", r.Branch+":a.txt"); got != "three" {
		t.Errorf("branch: %q", got)
	}
	if got := p.git("status", "--porcelain"); got != "" {
		t.Errorf("the target's working tree changed: %s", got)
	}
}

// TestEveryKindOfRepositoryWorks runs in repositories that differ from the usual
// one, and compares what comes out.
func TestEveryKindOfRepositoryWorks(t *testing.T) {
	t.Parallel()
	const agent = "pwd; echo two >> a.txt; git add -A; git commit -q -m 'Change it'; echo new > new.txt"
	tests := []struct {
		name, setup, repo  string
		start, path, added string
		submodules         string
	}{
		{"with object ids of SHA-256", "rm -rf .git && git init -q -b main --object-format=sha256 && git add -A && git commit -q -m first",
			"repo", "", "a.txt", "new.txt", ""},
		{"from a directory of it", "mkdir -p sub/deep && echo one > sub/deep/a.txt && git add -A && git commit -q -m second",
			"repo/sub/deep", "/sub/deep", "sub/deep/a.txt", "sub/deep/new.txt", ""},
		{"with a submodule", `git clone -q . ../lib && git -c protocol.file.allow=always submodule --quiet add ../lib lib &&
			git commit -q -m second`, "repo", "", "a.txt", "new.txt", "lib"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newFixture(t, agent, "")
			setup := exec.Command("sh", "-ec", tt.setup)
			setup.Dir, setup.Env = p.path("repo"), append(os.Environ(), "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com",
				"GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com", "GIT_CONFIG_GLOBAL=/dev/null")
			if out, err := setup.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			r, code := p.run("--repo", tt.repo)
			if code != 0 || len(r.Commits) != 1 || r.Repo != p.path("repo") || strings.Join(r.EmptySubmodules, " ") != tt.submodules {
				t.Fatalf("exit %d: %+v", code, r)
			}
			if log := p.read("out/agent.log"); log != "/sandbox/workspace/repo"+tt.start+"\n" {
				t.Errorf("the agent started in %q", log)
			}
			if got := p.git("show", r.Branch+":"+tt.path); got != "one\ntwo" {
				t.Errorf("branch: %q", got)
			}
			if got := p.git("diff", "--name-only", r.Base, r.Branch); got != tt.path {
				t.Errorf("the commit changes %q", got)
			}
			if got := p.read("out/files/" + tt.added); got != "new\n" {
				t.Errorf("%s: %q", tt.added, got)
			}
		})
	}
}

func TestLinksThatLeadOutAreNotCommittedAsDeleted(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "git status --porcelain; echo two > a.txt; git add -A; git commit -q -m all", "")
	for name, to := range map[string]string{"out": "/etc/hostname", "up": "../../x", "in": "a.txt", "odd\nname": "/etc/hostname"} {
		if err := os.Symlink(to, p.path("repo/"+name)); err != nil {
			t.Fatal(err)
		}
	}
	p.git("add", "-A")
	p.git("commit", "-q", "-m", "links")
	r, code := p.run()
	if code != 0 || r.Branch == "" {
		t.Fatalf("exit %d: %+v", code, r.Error)
	}
	if got := p.git("diff", "--name-only", r.Base, r.Branch); got != "a.txt" {
		t.Errorf("the agent's commit changes %q", got)
	}
	if log := p.read("out/agent.log"); log != "" {
		t.Errorf("git status inside: %q", log)
	}
}

func TestVariablesReachOnlyTheHostOrTheSandbox(t *testing.T) {
	t.Parallel()
	p := newFixture(t, `env > "$AGENTSH_OUTPUT_DIR/env"`, `host_files:
  - {src: tool.env, dest: /sandbox/workspace/.env.d/zz-tool.env}
env:
  runner: {ONLY_RUNNER: "yes"}
  sandbox: {ONLY_SANDBOX: "it's \"quoted\" $$x", BOTH_FILES: generated}
pre_script: pre.sh
post_script: post.sh`)
	p.write("tool.env", "BOTH_FILES=file\nFROM_FILE=1\n", 0o644)
	p.write("pre.sh", "#!/bin/sh\nenv > pre.env.txt; mv pre.env.txt ..\n", 0o755)
	p.write("post.sh", "#!/bin/sh\nenv > ../post.env.txt\n", 0o755)
	r, code := p.run()
	if code != 0 {
		t.Fatalf("exit %d: %+v", code, r.Error)
	}
	inside, pre, post := p.read("out/output/env"), p.read("pre.env.txt"), p.read("post.env.txt")
	for _, want := range []string{`ONLY_SANDBOX=it's "quoted" $x`, "BOTH_FILES=generated", "FROM_FILE=1", "AGENTSH_RUN_ID=" + r.RunID,
		"AGENTSH_ITERATION=1", "AGENTSH_DEADLINE=20", "FULLSEND_RUN_ID=" + r.RunID, "TRACEPARENT=00-", "BASH_ENV="} {
		if !strings.Contains("\n"+inside, "\n"+want) {
			t.Errorf("not inside: %s\n%s", want, inside)
		}
	}
	if strings.Contains(inside, "ONLY_RUNNER") || strings.Contains(inside, "XDG_STATE_HOME") {
		t.Errorf("host variables are inside:\n%s", inside)
	}
	for name, env := range map[string]string{"pre": pre, "post": post} {
		if !strings.Contains(env, "ONLY_RUNNER=yes") || strings.Contains(env, "ONLY_SANDBOX") ||
			!strings.Contains(env, "TARGET_REPO_DIR="+p.path("repo")) {
			t.Errorf("%s_script:\n%s", name, env)
		}
	}
	if !strings.Contains(post, "AGENTSH_BRANCH=") || !strings.Contains(post, "AGENTSH_RESULT="+p.path("out/result.json")) {
		t.Errorf("post_script is not told of the results:\n%s", post)
	}
}

func TestAFailedValidationRepeatsTheAgent(t *testing.T) {
	t.Parallel()
	p := newFixture(t, `
if [ -n "${AGENTSH_FEEDBACK_FILE:-}" ]; then cat "$AGENTSH_FEEDBACK_FILE" > a.txt; fi
echo "$AGENTSH_ITERATION" > "$AGENTSH_OUTPUT_DIR/number"`, "validation_loop: {script: validate.sh, max_iterations: 3}")
	p.write("validate.sh", `#!/bin/sh
grep -q 2 "$AGENTSH_OUTPUT_DIR/number" && exit 0
echo "number must be 2"
exit 1
`, 0o755)
	r, code := p.run()
	if code != 0 || len(r.Iterations) != 2 || r.Iterations[0].Validation != "failed" || r.Iterations[1].Validation != "passed" {
		t.Fatalf("exit %d: %+v %+v", code, r.Iterations, r.Error)
	}
	if got := p.read("out/files/a.txt"); !strings.Contains(got, "number must be 2") {
		t.Errorf("the agent got %q", got)
	}
}

func TestOutputOfAnAgentIsShownClean(t *testing.T) {
	t.Parallel()
	p := newFixture(
		t,
		`printf '\033[31mred\033[0m\n::set-env name=X::y\n##[error]z\n'; head -c 40000000 /dev/zero | tr '\0' x; echo; echo last`,
		"",
	)
	out, err := p.command(p.runArgs()...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%.2000s", err, out)
	}
	log := p.read("out/agent.log")
	for name, text := range map[string]string{"shown": string(out), "agent.log": log} {
		if strings.ContainsAny(text, "\x1b\x00") || strings.Contains(text, "##[") || strings.Contains("\n"+text, "\n::") {
			t.Errorf("%s holds what acts", name)
		}
		if !strings.Contains(text, "last\n") || !strings.Contains(text, "red\n") {
			t.Errorf("%s lost a line", name)
		}
	}
}

// adopt makes orphans of the runs children of this process until the test ends,
// so that the test can wait for them.
func adopt(t *testing.T) {
	t.Helper()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
}

// waitOrphans reaps children until there are none. It kills a child that does
// not end, and fails the test.
func waitOrphans(t *testing.T) {
	t.Helper()
	watchdog := time.AfterFunc(2*time.Minute, func() {
		for _, pid := range children() {
			cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			t.Errorf("process %d is left: %q", pid, cmdline)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	defer watchdog.Stop()
	for {
		_, err := syscall.Wait4(-1, nil, 0, nil)
		if errors.Is(err, syscall.ECHILD) {
			return
		}
		if err != nil && !errors.Is(err, syscall.EINTR) {
			t.Fatal(err)
		}
	}
}

// children are the child processes of this process.
func children() []int { return childrenOf(os.Getpid()) }

func childrenOf(parent int) []int {
	var pids []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	for _, list := range lists {
		data, _ := os.ReadFile(list)
		for _, word := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// stopAt runs the harness, sends a signal when a step begins, and waits for the
// end.
func (p *fixture) stopAt(step string, sig syscall.Signal) (string, *os.ProcessState) {
	p.t.Helper()
	cmd := p.command(p.runArgs()...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out := &watcher{want: []byte(step), found: func() { _ = cmd.Process.Signal(sig) }}
	cmd.Stdout = out
	cmd.WaitDelay = 2 * time.Minute
	if err := cmd.Run(); cmd.ProcessState == nil {
		p.t.Fatal(err)
	}
	if !out.done {
		p.t.Errorf("step %s was not reached:\n%s%s", step, out.all.String(), errs.String())
	}
	return out.all.String() + errs.String(), cmd.ProcessState
}

// watcher calls found once, after want was written.
type watcher struct {
	all   bytes.Buffer
	want  []byte
	found func()
	done  bool
}

func (w *watcher) Write(b []byte) (int, error) {
	w.all.Write(b)
	if !w.done && w.found != nil && bytes.Contains(w.all.Bytes(), w.want) {
		w.done = true
		w.found()
	}
	return len(b), nil
}

// atWork are output lines of the agent and the scripts.
var atWork = []string{"| in pre_script", "| agent at work", "| agent stops", "| in post_script"}

// runSteps are the points at which a run is stopped: the beginning of each
// step, and lines of the agent and the scripts.
func runSteps() []string {
	var steps []string
	for _, name := range controller.StepNames() {
		steps = append(steps, name+":")
	}
	return append(steps, atWork...)
}

// newStoppable creates a fixture in which a process waits forever in the step,
// if the step runs a process.
func newStoppable(t *testing.T, step string) *fixture {
	wait := func(at string) string {
		if step == at {
			return "sleep 1000"
		}
		return "true"
	}
	p := newFixture(t, "echo half > a.txt; git commit -q -a -m half; echo more > b.txt; sleep 1000 & echo agent at work; "+
		wait("| agent at work")+"; echo agent stops", "pre_script: pre.sh\npost_script: post.sh\nproviders: [github]")
	if step == "agent_host:" {
		p.write("harness.yaml", strings.Replace(p.read("harness.yaml"), "/sandbox/claude-config/skills/task/run.sh", "/bin/true", 1)+
			"container: {harness: false}\n", 0o644)
	}
	p.write(
		"providers/github.yaml",
		"name: github\ntype: rest\ncredentials: {TOKEN: \"${HOST_TOKEN}\"}\nendpoints: ['api.provider.test:443']\nheader: Authorization\n",
		0o644,
	)
	p.write("pre.sh", "#!/bin/sh\n(setsid sh -c 'while :; do sleep 1; done' &)\necho in pre_script\n"+wait("| in pre_script")+"\n", 0o755)
	p.write("post.sh", "#!/bin/sh\n(setsid sleep 1000 &)\necho in post_script\ntouch ../post-ran\n"+wait("| in post_script")+"\n", 0o755)
	return p
}

// TestAControllerKilledAtAnyMomentLeavesNothing tests the moments within the
// steps.
func TestAKilledRunLeavesNoProcessOfItsScripts(t *testing.T) {
	for _, step := range atWork {
		t.Run(step, func(t *testing.T) {
			p := newStoppable(t, step)
			adopt(t)
			p.stopAt(step, syscall.SIGKILL)
			waitOrphans(t)
			if out, err := p.command("gc").CombinedOutput(); err != nil {
				t.Errorf("gc: %v\n%s", err, out)
			}
			if out, err := p.command("gc").CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("the second gc: %v\n%s", err, out)
			}
		})
	}
}

func TestAStoppedRunLeavesNothingAtAnyStep(t *testing.T) {
	for i, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		for j, step := range runSteps() {
			if *moments == 1 && (i+j)%2 == 1 {
				continue // each step has one signal
			}
			t.Run(sig.String()+" at "+step, func(t *testing.T) {
				p := newStoppable(t, step)
				adopt(t)
				out, state := p.stopAt(step, sig)
				waitOrphans(t)
				late := step == "post_script:" || step == "delete:"
				if code := state.ExitCode(); code != 128+int(sig) && (code != 0 || !late) {
					t.Errorf("exit code %d\n%s", code, out)
				}
			})
		}
	}
}

// The agent leaves a file whose extraction takes long. The first signal starts
// the extraction, the second one ends it.
func TestASecondSignalForcesTheEnd(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			p := newFixtureAt(
				t,
				func(dir string) { mountTmpfs(t, dir, "4g") },
				`truncate -s 2500M "$AGENTSH_OUTPUT_DIR/big"; echo agent at work; sleep 1000`,
				"",
			)
			adopt(t)
			cmd := p.command(p.runArgs()...)
			started := make(chan struct{})
			signal := func() {
				<-started
				_ = cmd.Process.Signal(sig)
			}
			var second sync.Once
			p.watchOpens().begin(func(o open) {
				if filepath.Base(o.name) == "big" && strings.Contains(o.name, "/.agentctl-") {
					second.Do(signal)
				}
			})
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &watcher{want: []byte("| agent at work"), found: signal}, &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			close(started)
			_ = cmd.Wait()
			waitOrphans(t)
			if code := cmd.ProcessState.ExitCode(); code != 128+int(sig) || !strings.Contains(said.String(), "not complete") {
				t.Errorf("exit code %d\n%s", code, said.String())
			}
			if _, err := os.Lstat(p.path("out/output/big")); err == nil {
				t.Error("the file was taken out all the same")
			}
		})
	}
}

func TestWorkOfAnInterruptedAgentIsExtracted(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			p := newStoppable(t, "| agent at work")
			adopt(t)
			_, state := p.stopAt("| agent at work", sig)
			waitOrphans(t)
			if code := state.ExitCode(); code != 128+int(sig) {
				t.Errorf("exit code %d", code)
			}
			var r controller.Result
			if err := json.Unmarshal([]byte(p.read("out/result.json")), &r); err != nil {
				t.Fatal(err)
			}
			if r.Status != controller.StatusCancelled || !r.Partial || len(r.Commits) != 1 || p.read("out/files/b.txt") != "more\n" {
				t.Errorf("result: %+v", r)
			}
			if _, err := os.Stat(p.path("post-ran")); err == nil {
				t.Error("post_script ran")
			}
		})
	}
}

func TestADeadSupervisorEndsTheRun(t *testing.T) {
	for name, victim := range map[string]func(supervisor int) int{
		"the supervisor":          func(supervisor int) int { return supervisor },
		"the session's process 1": sessionInit,
	} {
		t.Run(name, func(t *testing.T) {
			p := newStoppable(t, "| agent at work")
			adopt(t)
			cmd := p.command(p.runArgs()...)
			var errs bytes.Buffer
			cmd.Stderr = &errs
			cmd.Stdout = &watcher{want: []byte("| agent at work"), found: func() {
				if pid := victim(p.supervisor()); pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
					t.Errorf("process %d was not killed", pid)
				}
			}}
			_ = cmd.Run()
			waitOrphans(t)
			t.Logf("%s", errs.String())
			if code := cmd.ProcessState.ExitCode(); code != controller.ExitSandbox || !strings.Contains(errs.String(), "agentctl: iterations: ") {
				t.Errorf("exit code %d\n%s", code, errs.String())
			}
		})
	}
}

// supervisor is the process of the fixture's only sandbox; 0: there is none.
func (p *fixture) supervisor() int {
	all := p.supervisors()
	if len(all) != 1 {
		p.t.Errorf("%d supervisors", len(all))
		return 0
	}
	return all[0]
}

// supervisors are the processes of the fixture's sandboxes.
func (p *fixture) supervisors() (pids []int) {
	files, _ := filepath.Glob(p.path("state/agentsh/sandboxes/*/info.json"))
	for _, file := range files {
		var info struct{ PID int }
		if err := json.Unmarshal([]byte(p.read(strings.TrimPrefix(file, p.dir+"/"))), &info); err != nil || info.PID == 0 {
			p.t.Errorf("%s: %v", file, err)
			continue
		}
		pids = append(pids, info.PID)
	}
	return pids
}

// sessionInit is the child of a supervisor that is process 1 of its PID
// namespace; 0: there is none. See proc(5), /proc/PID/status, NSpid.
func sessionInit(supervisor int) int {
	for _, pid := range childrenOf(supervisor) {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		for line := range strings.Lines(string(status)) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == "NSpid:" && f[len(f)-1] == "1" {
				return pid
			}
		}
	}
	return 0
}

func TestADiskThatIsTooSmallIsOneClearLine(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "true", "")
	random := exec.Command("sh", "-c", "head -c 60000000 /dev/urandom > repo/big.bin")
	random.Dir = p.dir
	if out, err := random.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	p.git("add", "-A")
	p.git("commit", "-q", "-m", "big")
	for _, size := range []string{"16m", "160m"} { // detected by preflight, and during the run
		t.Run(size, func(t *testing.T) {
			script := `mount -t tmpfs -o size=` + size + ` none state && "$0" "$@"; code=$?; find state/agentsh/sandboxes state/agentsh/runs/*/work -mindepth 1 2>/dev/null; exit $code`
			args := append([]string{"-m", "--propagation", "private", "sh", "-c", script}, append([]string{p.bin + "/agentctl"}, p.runArgs()...)...)
			if err := os.MkdirAll(p.state, 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("unshare", args...)
			cmd.Dir, cmd.Env = p.dir, p.command().Env
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			_ = cmd.Run()
			if code := cmd.ProcessState.ExitCode(); code != 4 {
				t.Errorf("exit code %d", code)
			}
			if !strings.Contains(errs.String(), "no space left") || !strings.Contains(errs.String(), "hint: free some disk space") {
				t.Errorf("it says %s", errs.String())
			}
			if strings.Contains(out.String(), "state/agentsh") {
				t.Errorf("left behind:\n%s", out.String())
			}
		})
	}
}
