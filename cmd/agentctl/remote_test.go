package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"agentsh/controller"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor/audit"
)

func TestTheExampleRunsOverSSH(t *testing.T) {
	dir := t.TempDir()
	runExample(t, "", "--backend", "ssh", "--connect", testenv.SSHPlace(t, dir))
	checkPlace(t, dir)
}

func TestARunGoesOverAnyCarrier(t *testing.T) {
	for name, connect := range map[string]string{
		"a shell": "env HOME=DIR XDG_STATE_HOME=DIR/place sh",
		"a shell with namespaces of its own": "env -i HOME=DIR XDG_STATE_HOME=DIR/place " +
			"/usr/bin/unshare --mount --pid --uts --fork --mount-proc /bin/sh",
		"bash after a greeting": "DIR/carrier",
	} {
		t.Run(name, func(t *testing.T) {
			p := newFixture(t, `echo two > a.txt; git commit -q -a -m two; kill -TERM 1; echo report > "$AGENTSH_OUTPUT_DIR/report.txt"`, "")
			p.write("carrier", "#!/bin/bash\necho Welcome; echo to this place >&2\nexport HOME="+p.dir+" XDG_STATE_HOME="+p.path("place")+
				"\nexec bash\n", 0o755)
			p.place = []string{"--backend", "exec", "--connect", "exec:" + strings.ReplaceAll(connect, "DIR", p.dir)}
			r, code := p.run()
			if code != 0 || len(r.Commits) != 1 || len(r.Refused) != 1 || r.AuditGaps != 0 || p.read("out/output/report.txt") != "report\n" {
				t.Errorf("exit code %d: %+v", code, r)
			}
			p.checkClean()
			checkPlace(t, p.dir)
		})
	}
}

// checkPlace fails the test if a sandbox is left at a place.
func checkPlace(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "place/agentsh/remote"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for _, e := range entries {
		t.Errorf("sandbox %s is left", e.Name())
	}
}

// elsewhere has the runs of a fixture in sandboxes that another state directory has, behind
// a carrier.
func (p *fixture) elsewhere() *fixture {
	p.place = []string{"--backend", "exec", "--connect",
		"exec:env -i HOME=" + p.dir + " XDG_STATE_HOME=" + p.path("place") + " TMPDIR=/tmp /bin/sh"}
	return p
}

func TestARunElsewhereLeavesWhatALocalRunLeaves(t *testing.T) {
	t.Parallel()
	const agent = `echo two > a.txt; git commit -q -a -m two; echo more > b.txt; kill -TERM 1; echo "$SAID" >&2; ln -s a.txt link
cat /etc/shadow; printf x > "$(printf 'odd\n\303')"; echo report > "$AGENTSH_OUTPUT_DIR/report.txt"`
	const more = "env: {sandbox: {SAID: hello}}\npre_script: ok.sh"
	var found [2]controller.Result
	var files, reports [2]string
	for i := range found {
		p := newFixture(t, agent, more)
		p.write("ok.sh", "#!/bin/sh\nexit 0\n", 0o755)
		if i == 1 {
			p.elsewhere()
		}
		var code int
		if found[i], code = p.run(); code != 0 {
			t.Fatalf("exit code %d", code)
		}
		list, err := exec.Command("sh", "-c", "cd "+p.dir+"/out && find . | LC_ALL=C sort").Output()
		if err != nil {
			t.Fatal(err)
		}
		files[i] = string(list)
		f, err := os.Open(p.path("out/audit.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if head, err := audit.Verify(f); err != nil || head.Seq == 0 {
			t.Errorf("audit log: %+v, %v", head, err)
		}
		log := p.read("out/audit.jsonl")
		if last := log[strings.LastIndex(strings.TrimSpace(log), "\n")+1:]; !strings.Contains(last, `"type":"session"`) ||
			!strings.Contains(last, `"phase":"end"`) {
			t.Errorf("the last event is %s", last)
		}
		out, errs, code := p.try("", "runs", "report", "latest")
		if code != 0 {
			t.Errorf("report: %d\n%s", code, errs)
		}
		reports[i] = out
		if out, errs, code := p.try("", "runs", "show", "latest"); code != 0 || !strings.Contains(out, found[i].RunID) {
			t.Errorf("show: %d %s %s", code, out, errs)
		}
	}
	if files[0] != files[1] {
		t.Errorf("local\n%s\nelsewhere\n%s", files[0], files[1])
	}
	local, remote := found[0], found[1]
	if remote.Backend != "exec" || len(remote.Refused) != len(local.Refused) || len(remote.Commits) != len(local.Commits) ||
		remote.AuditGaps != 0 || len(remote.Skipped) != len(local.Skipped) || remote.Policy != local.Policy {
		t.Errorf("local\n%+v\nelsewhere\n%+v", local, remote)
	}
	if strings.Count(reports[0], "\n") != strings.Count(reports[1], "\n") {
		t.Errorf("local\n%s\nelsewhere\n%s", reports[0], reports[1])
	}
}

func TestOperatorsEnterASandboxElsewhere(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "echo waiting; until [ -e /sandbox/workspace/go ]; do sleep 0.1; done", "").elsewhere()
	run := p.startAs("| waiting", p.runArgs())
	if out, errs, code := p.try("", "sandbox", "exec", "latest", "--", "cat", "a.txt"); code != 0 || out != "one\n" {
		t.Errorf("exec: %d %q %s", code, out, errs)
	}
	if out, errs, code := p.try("", "sandbox", "list"); code != 0 || !strings.Contains(out, " exec ") {
		t.Errorf("list: %d %q %s", code, out, errs)
	}
	if out, errs, code := p.try("", "sandbox", "logs", "--events", "latest"); code != 0 || !strings.Contains(out, "cat") {
		t.Errorf("logs: %d %q %s", code, out, errs)
	}
	if out, errs, code := p.try("", "sandbox", "exec", "latest", "--", "touch", "/sandbox/workspace/go"); code != 0 {
		t.Errorf("exec: %d %q %s", code, out, errs)
	}
	if code := run.wait(); code != 0 {
		t.Errorf("the run ended with %d", code)
	}
}

func TestAControllerThatIsKilledLeavesNothingElsewhere(t *testing.T) {
	p := newFixture(t, "cat a.txt; echo waiting; sleep 1000", "").elsewhere()
	adopt(t)
	run := p.startAs("| waiting", p.runArgs("--lease", "10s"))
	if err := run.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = run.cmd.Wait()
	waitOrphans(t) // the supervisor of the place is one
	if left, _ := filepath.Glob(p.path("place/agentsh/remote/*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	out, errs, code := p.try("", append([]string{"gc"}, p.place...)...)
	if code != 0 || !strings.Contains(out, "removed sandbox ") {
		t.Errorf("gc: %d %q %s", code, out, errs)
	}
	logs, _ := filepath.Glob(p.path("state/agentsh/runs/*/audit.jsonl"))
	if len(logs) != 1 || !strings.Contains(p.read(strings.TrimPrefix(logs[0], p.dir+"/")), `"cat"`) {
		t.Errorf("the audit log is not in the record: %v", logs)
	}
}

// gc without the place reaches only what the run left here.
func TestWhatGoesOnElsewhereIsNamedByGc(t *testing.T) {
	p := newFixture(t, "cat a.txt; echo waiting; sleep 1000", "").elsewhere()
	adopt(t)
	run := p.startAs("| waiting", p.runArgs("--lease", "60s"))
	if err := run.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = run.cmd.Wait()
	const note = "it goes on at its place until its lease ends, or until 'agentctl gc --backend exec' and the --connect of its run"
	out, errs, code := p.try("", "gc", "--json")
	if code != 0 || !strings.Contains(out, `"elsewhere": "exec"`) {
		t.Errorf("gc --json: %d %q %s", code, out, errs)
	}
	run = p.startAs("| waiting", p.runArgs("--lease", "60s"))
	if err := run.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = run.cmd.Wait()
	if out, errs, code = p.try("", "gc"); code != 0 || !strings.Contains(out, note) {
		t.Errorf("gc: %d %q %s", code, out, errs)
	}
	if out, errs, code = p.try("", append([]string{"gc"}, p.place...)...); code != 0 || !strings.Contains(out, "removed sandbox ") ||
		strings.Contains(out, "goes on") {
		t.Errorf("gc with the place: %d %q %s", code, out, errs)
	}
	waitOrphans(t)
}

// A place may have several addresses. A live run is not collected by another one.
func TestALiveRunIsNotCollectedUnderAnotherAddress(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "echo waiting; until [ -e /sandbox/workspace/go ]; do sleep 0.1; done", "").elsewhere()
	run := p.startAs("| waiting", p.runArgs())
	other := "exec:env " + strings.TrimPrefix(p.place[3], "exec:")
	out, errs, code := p.try("", "gc", "--backend", "exec", "--connect", other)
	if code != 0 || strings.Contains(out, "removed sandbox ") {
		t.Errorf("gc: %d %q %s", code, out, errs)
	}
	if out, errs, code := p.try("", "sandbox", "exec", "latest", "--", "touch", "/sandbox/workspace/go"); code != 0 {
		t.Errorf("exec: %d %q %s", code, out, errs)
	}
	if code := run.wait(); code != 0 {
		t.Errorf("the run ended with %d", code)
	}
}

func TestAHarnessSaysWhereItsSandboxIs(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "true", "backend: exec\nconnect: exec:sh carrier").elsewhere()
	carrier := strings.TrimPrefix(p.place[3], "exec:")
	p.write("carrier", "touch used; exec "+carrier+"\n", 0o644)
	p.place = nil
	if r, code := p.run(); code != 0 || r.Backend != "exec" {
		t.Errorf("exit code %d, backend %s", code, r.Backend)
	}
	if out, errs, code := p.try("", "sandbox", "list"); code != 0 {
		t.Errorf("list: %d %s %s", code, out, errs)
	}
	if err := os.Remove(p.path("used")); err != nil {
		t.Error(err)
	}
	if out, errs, code := p.try("", "lint", "--repo", "repo", "harness.yaml"); code != 0 {
		t.Errorf("lint: %d %s %s", code, out, errs)
	}
	if err := os.Remove(p.path("used")); err != nil {
		t.Errorf("lint made no sandbox there: %v", err)
	}
	if r, code := p.run("--backend", "local"); code != 0 || r.Backend != "local" {
		t.Errorf("--backend local: exit code %d, backend %s", code, r.Backend)
	}
	if _, err := os.Stat(p.path("used")); err == nil {
		t.Error("--backend local has no precedence")
	}
	for text, want := range map[string]string{
		"backend: ssh\n":                                "wrong.yaml:8:10: backend: backend ssh needs an address",
		"connect: exec:sh\n":                            "wrong.yaml:8:10: backend: --connect: the local backend",
		"backend: ssh\nconnect: exec:sh\n":              "begins with ssh://",
		"backend: cloud\n":                              "wrong.yaml:8:10: ",
		"backend: socket\nconnect: tcp://127.0.0.1:1\n": "needs the key of the place: name its file with --connect-key",
		"backend: socket\nconnect: tcp://127.0.0.1:1\nconnect_key: none.key\n": "none.key: no such file or directory",
		"connect_key: none.key\n": "wrong.yaml:8:14: backend: --connect-key: the local backend",
	} {
		p.write("wrong.yaml", strings.Replace(p.read("harness.yaml"), "backend: exec\nconnect: exec:sh carrier\n", text, 1), 0o644)
		_, errs, code := p.try("", "run", "wrong.yaml", "--repo", "repo", "--out", "out")
		if code != controller.ExitConfiguration || !strings.Contains(errs, want) {
			t.Errorf("%q: exit code %d, want %s\n%s", text, code, want, errs)
		}
	}
}

func TestGCAsksThePlaceWhatIsLeft(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "true", "").elsewhere()
	if _, code := p.run(); code != 0 {
		t.Fatal(code)
	}
	var mine wire.PlaceLabels
	p.readJSON("state/agentsh/owner.json", &mine)
	for name, owner := range map[string]string{"mine": mine.Owner, "others": "other"} {
		dir := p.path("place/agentsh/remote/" + name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		p.write("place/agentsh/remote/"+name+"/labels.json", `{"version":1,"owner":"`+owner+`"}`, 0o600)
	}
	for _, args := range [][]string{{"gc", "--dry-run"}, {"gc"}} {
		out, errs, code := p.try("", append(args, p.place...)...)
		if code != 0 || !strings.Contains(out, "sandbox mine\n") || strings.Contains(out, "others") {
			t.Errorf("%s: %d %q %s", args, code, out, errs)
		}
	}
	if err := os.RemoveAll(p.path("place/agentsh/remote/others")); err != nil {
		t.Error(err)
	}
}

func TestARunWhoseSupervisorElsewhereIsKilledFailsAndKeepsItsAuditLog(t *testing.T) {
	p := newFixture(t, "cat a.txt; echo waiting; sleep 1000", "").elsewhere()
	adopt(t)
	run := p.startAs("| waiting", p.runArgs())
	var labels wire.PlaceLabels
	found, _ := filepath.Glob(p.path("place/agentsh/remote/*/labels.json"))
	if len(found) != 1 {
		t.Fatal(found)
	}
	p.readJSON(strings.TrimPrefix(found[0], p.dir+"/"), &labels)
	if err := syscall.Kill(labels.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := run.wait(); code != controller.ExitSandbox || !strings.Contains(run.errs.String(), "the supervisor was killed") {
		t.Errorf("exit code %d", code)
	}
	waitOrphans(t)
	if log := p.read("out/audit.jsonl"); !strings.Contains(log, `"cat"`) {
		t.Errorf("audit log: %s", log)
	}
}

func TestARunGoesOnOverStreamsThatBreak(t *testing.T) {
	t.Parallel()
	p := newFixture(t, `for i in $(seq 30); do echo $i; seq 20000; sleep 0.1; done > "$AGENTSH_OUTPUT_DIR/all"
echo two > a.txt; git commit -q -a -m two; cat "$AGENTSH_OUTPUT_DIR/all" | tail -n 40000`, "").elsewhere()
	// Each stream is killed after a time, wherever it is.
	p.write("carrier", "echo >> streams; exec timeout -s KILL 0.8 "+strings.TrimPrefix(p.place[3], "exec:")+"\n", 0o644)
	p.place[3] = "exec:sh carrier"
	r, code := p.run("--quiet")
	if code != 0 || len(r.Commits) != 1 || r.AuditGaps != 0 {
		t.Errorf("exit code %d: %+v", code, r)
	}
	want, err := exec.Command("bash", "-c", "for i in $(seq 30); do echo $i; seq 20000; done").Output()
	if err != nil {
		t.Fatal(err)
	}
	if p.read("out/output/all") != string(want) {
		t.Error("the output of the agent is another")
	}
	if n := len(p.read("streams")); n < 3 {
		t.Errorf("%d streams", n)
	}
	f, err := os.Open(p.path("out/audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := audit.Verify(f); err != nil {
		t.Error(err)
	}
}

// TestAnAddressOfTheCommandLineIsForTheBackendOfTheHarness: the flags have precedence one by one.
func TestAnAddressOfTheCommandLineIsForTheBackendOfTheHarness(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "echo two >a.txt; git commit -qam two", "backend: exec\nconnect: exec:false\n")
	there := "exec:env HOME=" + p.path("place") + " XDG_STATE_HOME=" + p.path("place") + " sh"
	if r, code := p.run("--connect", there); code != 0 || r.Backend != "exec" || len(r.Commits) != 1 {
		t.Errorf("exit code %d, backend %s: %+v", code, r.Backend, r.Error)
	}
	if problems, code := p.linted("--connect", there); code != 0 {
		t.Errorf("lint: exit code %d: %+v", code, problems)
	}
	for _, tt := range []struct {
		more  string
		flags []string
		want  string
	}{
		{"", []string{"--connect", "exec:sh"}, "write backend: NAME in the harness"},
		{"", []string{"--connect-key", "key"}, "--connect-key: the local backend is on this machine"},
		{"backend: exec\n", []string{"--backend", "local", "--connect", "exec:sh"}, "--connect: the local backend is on this machine"},
		{"backend: openshell\n", []string{"--connect", "http://gateway.example.com"}, "hint: see doc/platforms/openshell.md"},
		{"backend: blaxel\n", []string{"--connect", "nothing"}, "hint: see doc/platforms/blaxel.md"},
		{"backend: kubernetes\n", []string{"--connect", "nothing"}, "hint: see doc/platforms/kubernetes.md"},
		{"backend: openshell\n", []string{"--connect", "https://127.0.0.1:1", "--connect-key", "key"}, "openshell: {token_file: FILE}"},
	} {
		p := newFixture(t, "true", tt.more)
		if out, errs, code := p.try("", p.runArgs(tt.flags...)...); code != controller.ExitConfiguration || !strings.Contains(errs, tt.want) {
			t.Errorf("%q %v: exit code %d, want %q\n%s%s", tt.more, tt.flags, code, tt.want, out, errs)
		}
	}
}

// TestAnImageOfThisHostIsRefusedWhereTheBackendGetsImages: the path would be ignored there.
func TestAnImageOfThisHostIsRefusedWhereTheBackendGetsImages(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"docker", "kubernetes", "openshell", "blaxel"} {
		p := newFixture(t, "true", "image: example.com/agent:1\nbackend: "+backend+"\n")
		p.write("kubeconfig", "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n"+
			"users: [{name: u, user: {token: t}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n", 0o600)
		p.setenv = append(p.setenv, "KUBECONFIG="+p.path("kubeconfig"), "BL_API_KEY=key-of-blaxel", "BL_WORKSPACE=w", "OPENSHELL_GATEWAY_ENDPOINT=https://127.0.0.1:1")
		out, errs, code := p.try("", p.runArgs("--image", "example.com/agent:1="+p.path("repo"))...)
		if want := "--image example.com/agent:1: backend " + backend; code != controller.ExitConfiguration || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, want %q\n%s%s", backend, code, want, out, errs)
		}
	}
}

func TestWrongPlacesAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "true", "")
	p.write("place.key", strings.Repeat("YWJj", 11)+"\n", 0o600)
	for _, tt := range []struct {
		flags []string
		code  int
		want  string
	}{
		{[]string{"--backend", "exec"}, controller.ExitConfiguration, "needs an address"},
		{[]string{"--connect", "exec:sh"}, controller.ExitConfiguration, "add --backend"},
		{[]string{"--backend", "ssh", "--connect", "exec:sh"}, controller.ExitConfiguration, "begins with ssh://"},
		{[]string{"--backend", "exec", "--connect", "exec:sh", "--agentsh-config", "c.yaml"}, controller.ExitConfiguration, "of the place"},
		{[]string{"--backend", "socket", "--connect", "tcp://127.0.0.1:1", "--connect-key", "place.key"}, controller.ExitSandbox,
			"connection refused: is 'agentsh serve --listen' running there"},
		{[]string{"--backend", "socket", "--connect", "ws://127.0.0.1:1/", "--connect-key", "place.key"}, controller.ExitSandbox,
			"connection refused: is 'agentsh serve --listen' running there"},
		{[]string{"--backend", "exec", "--connect", "exec:no-such-program"}, controller.ExitSandbox, "no-such-program"},
		{[]string{"--backend", "exec", "--connect", "exec:sh", "--keep-sandbox"}, controller.ExitConfiguration, "--keep-sandbox"},
		{[]string{"--backend", "exec", "--connect", "exec:false"}, controller.ExitSandbox, "exit status 1"},
		{[]string{"--backend", "exec", "--connect", "exec:echo hello"}, controller.ExitSandbox, "no shell at the place"},
	} {
		if out, errs, code := p.try("", p.runArgs(tt.flags...)...); code != tt.code || !strings.Contains(errs, tt.want) {
			t.Errorf("%v: exit code %d, want %d with %q\n%s%s", tt.flags, code, tt.code, tt.want, out, errs)
		}
	}
}

// A run has one stream. It is opened while the repository is cloned, but not before programs of the operator,
// which may make the place reachable.
func TestARunReachesItsPlaceOnce(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, harness, script, want string
		code                        int
	}{
		{"a run", "", "touch reachable\n", "stream\nend\n", 0},
		{"the place is reachable after pre_script", "pre_script: pre.sh", "touch reachable\n", "stream\nend\n", 0},
		{"pre_script fails", "pre_script: pre.sh", "exit 1\n", "", controller.ExitConfiguration},
		{"a scan refuses the run", "", "touch reachable\n", "", controller.ExitScan},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newFixture(t, "true", tt.harness).elsewhere()
			p.write("carrier", "cd "+p.dir+" && test -e reachable || exit 1\necho $$ >pid; echo stream >>streams\n"+
				strings.TrimPrefix(p.place[3], "exec:")+"\necho end >>streams\n", 0o644)
			p.place[3] = "exec:sh " + p.path("carrier")
			p.write("pre.sh", "#!/bin/sh\ncd "+p.dir+"\n"+tt.script, 0o755)
			if tt.harness != "pre_script: pre.sh" {
				p.write("reachable", "", 0o644)
			}
			if tt.code == controller.ExitScan {
				p.write("agents/tester.md", p.read("agents/tester.md")+injected, 0o644)
			}
			if _, code := p.run(); code != tt.code {
				t.Errorf("exit code %d", code)
			}
			got, err := os.ReadFile(p.path("streams"))
			if tt.code == controller.ExitScan { // it may have been opened, and is closed before agentctl ends
				if data, err := os.ReadFile(p.path("pid")); err == nil {
					pid, _ := strconv.Atoi(strings.TrimSpace(string(data)))
					if err := syscall.Kill(pid, 0); pid == 0 || !errors.Is(err, syscall.ESRCH) {
						t.Errorf("the program of the stream %q: %v", data, err)
					}
				}
				checkPlace(t, p.dir)
			} else if string(got) != tt.want || err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("streams: %q, %v", got, err)
			}
		})
	}
}
