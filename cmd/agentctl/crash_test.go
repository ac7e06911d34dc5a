package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/controller"
	"agentsh/controller/record"
	"agentsh/internal/wire"
)

// crashFixture is a fixture on a file system of its own. Its run has every
// step, and its results directory has the results of an earlier run.
type crashFixture struct {
	*fixture
	opens *opens
	refs  string // of the target before the run
	value secret // the credential of its provider, unique to this test
	quiet bool   // agent.log has no output of the agent
	wait  string // of --wait-for-space; empty: 0
}

func newCrashFixture(t *testing.T, size string) *crashFixture {
	t.Helper()
	p := &crashFixture{fixture: newFixtureAt(t, func(dir string) { mountTmpfs(t, dir, size) },
		`echo half > a.txt; git commit -q -a -m half; echo more > b.txt; echo report > "$AGENTSH_OUTPUT_DIR/report.txt"; echo agent at work`,
		"pre_script: ok.sh\npost_script: ok.sh\nvalidation_loop: {script: ok.sh}\nproviders: [github]")}
	p.write("ok.sh", "#!/bin/sh\nexit 0\n", 0o755)
	p.write(
		"providers/github.yaml",
		"name: github\ntype: rest\ncredentials: {TOKEN: \"${HOST_TOKEN}\"}\nendpoints: ['api.provider.test:443']\nheader: Authorization\n",
		0o644,
	)
	p.write("out/result.json", "{}\n", 0o644)
	p.write("out/old", "old\n", 0o644)
	p.refs, p.value = p.git("for-each-ref"), newSecret()
	p.opens = p.watchOpens()
	return p
}

// start starts a run.
func (p *crashFixture) start() (*exec.Cmd, *bytes.Buffer) {
	p.t.Helper()
	var said bytes.Buffer
	return p.startInto(&said), &said
}

// startInto starts a run, and writes what it says.
func (p *crashFixture) startInto(said io.Writer) *exec.Cmd {
	p.t.Helper()
	cmd := p.command(p.runArgs("--wait-for-space", cmp.Or(p.wait, "0"))...)
	cmd.Env = append(cmd.Env, "HOST_TOKEN="+string(p.value))
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	return cmd
}

// rehearse makes one complete run. It returns the steps, and the number of
// files opened in each.
func rehearse(t *testing.T, of func(t *testing.T, size string) *crashFixture) (steps []string, counts map[string]int) {
	t.Helper()
	p := of(t, "1g")
	p.opens.begin(func(open) {})
	cmd, said := p.start()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	counts = p.opens.end()
	steps = p.recorded()
	for _, name := range controller.StepNames() {
		if name != "agent_host" && !slices.Contains(steps, name) { // newOnHostCrash has it
			t.Errorf("the rehearsal has no step %s: %s", name, steps)
		}
	}
	return steps, counts
}

// recorded are the steps in the record of the only run.
func (p *crashFixture) recorded() []string {
	p.t.Helper()
	records, _ := filepath.Glob(p.path("state/agentsh/runs/*/record.json"))
	if len(records) != 1 {
		p.t.Fatalf("records of runs: %s", records)
	}
	r, err := record.Read(filepath.Dir(records[0]))
	if err != nil {
		p.t.Fatal(err)
	}
	steps := []string{beforeSteps}
	for _, s := range r.Steps {
		steps = append(steps, s.Name)
	}
	return steps
}

// at calls do once when a run opens file number k in a step, or a later one.
func (p *crashFixture) at(steps []string, step string, k int, do func()) {
	var once sync.Once
	want := slices.Index(steps, step)
	p.opens.begin(func(o open) {
		now := slices.Index(steps, o.step)
		if now == want && o.number >= k || now > want || o.step == afterSteps {
			once.Do(do)
		}
	})
}

// moments is the number of times that the controller is killed, or the disk is full, in each
// step, in making a sandbox and the like. Batches have as many in all.
var moments = flag.Int("moments", 1, "how often a run is killed in each step: make crash")

// spread are some numbers from 1 to n. Three and more have the first and the last.
func spread(n, count int) []int {
	var out []int
	for i := range count {
		k := (2*i + 1) * (n - 1) / (2 * count)
		if count > 2 {
			k = i * (n - 1) / (count - 1)
		}
		out = append(out, 1+max(k, 0))
	}
	return slices.Compact(out)
}

func TestAControllerKilledAtAnyMomentLeavesNothing(t *testing.T) {
	steps, counts := rehearse(t, newCrashFixture)
	killedAtAnyMoment(t, newCrashFixture, steps, counts, steps)
}

// killedAtAnyMoment kills runs at moments of some of their steps.
func killedAtAnyMoment(t *testing.T, of func(*testing.T, string) *crashFixture, steps []string, counts map[string]int, in []string) {
	t.Helper()
	t.Logf("opens in each step: %v", counts)
	for i, step := range in {
		for j, k := range spread(counts[step], *moments) {
			t.Run(fmt.Sprintf("%s, at open %d of %d", step, k, counts[step]), func(t *testing.T) {
				p := of(t, "1g")
				adopt(t)
				started := make(chan *exec.Cmd, 1)
				p.at(steps, step, k, func() { _ = (<-started).Process.Kill() })
				cmd, said := p.start()
				started <- cmd
				_ = cmd.Wait()
				if cmd.ProcessState.ExitCode() != -1 {
					t.Errorf("it was not killed: %s\n%s", cmd.ProcessState, said)
				}
				waitOrphans(t)
				p.opens.end()
				p.collect((i+j)%2 == 1)
				p.checkTarget()
				p.checkResults()
				p.checkUnfinished()
				p.checkNoValue()
			})
		}
	}
}

func TestAFullDiskAtAnyStepIsOneClearLine(t *testing.T) {
	steps, counts := rehearse(t, newCrashFixture)
	fullAtAnyMoment(t, newCrashFixture, steps, counts, steps)
}

// fullAtAnyMoment fills the disk at moments of some steps of runs.
func fullAtAnyMoment(t *testing.T, of func(*testing.T, string) *crashFixture, steps []string, counts map[string]int, in []string) {
	t.Helper()
	for _, step := range in {
		for _, k := range spread(counts[step], *moments) {
			t.Run(fmt.Sprintf("%s, at open %d of %d", step, k, counts[step]), func(t *testing.T) {
				p := of(t, "80m")
				p.at(steps, step, k, p.fill)
				cmd, said := p.start()
				_ = cmd.Wait()
				p.opens.end()
				t.Logf("%s\n%s", cmd.ProcessState, said)
				p.checkFull(cmd.ProcessState.ExitCode(), said.String())
				p.checkFreed()
			})
		}
	}
}

// checkFreed frees the disk that [crashFixture.fill] has filled, and checks what the run has left.
func (p *crashFixture) checkFreed() {
	p.t.Helper()
	if err := os.Remove(p.path("filler")); err != nil {
		p.t.Error(err)
	}
	if out, err := p.command("gc").CombinedOutput(); err != nil {
		p.t.Errorf("gc: %v\n%s", err, out)
	}
	p.checkTarget()
	if !p.isPartial() {
		p.checkResults()
	}
	p.checkUnfinished("tmp_pack_") // left by git on a full disk; git gc removes it
}

// isPartial reports results that are marked as partial. It fails the test if
// they contain changed files without their manifest.
func (p *crashFixture) isPartial() bool {
	p.t.Helper()
	var r controller.Result
	if _, err := os.Lstat(p.path("out/old")); err == nil {
		return false
	}
	p.readJSON("out/result.json", &r)
	_, files := os.Lstat(p.path("out/files"))
	_, manifest := os.Lstat(p.path("out/manifest.json"))
	if r.Partial && files == nil && manifest != nil {
		p.t.Error("files without a manifest")
	}
	return r.Partial
}

// fill fills the file system of the fixture.
func (p *crashFixture) fill() {
	f, err := os.Create(p.path("filler"))
	if err != nil {
		p.t.Error(err)
		return
	}
	defer f.Close()
	for size := int64(0); ; {
		var st unix.Statfs_t
		if err = unix.Statfs(p.dir, &st); err != nil || st.Bavail == 0 {
			break
		}
		more := int64(st.Bavail) * st.Bsize
		err = unix.Fallocate(int(f.Fd()), 0, size, more)
		if err == nil {
			size += more
		} else if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EINTR) { // other processes of the run write meanwhile
			break
		}
	}
	if err != nil {
		p.t.Error(err)
	}
}

// checkFull checks the output of a run on a full disk.
func (p *crashFixture) checkFull(code int, said string) {
	p.t.Helper()
	if code == controller.ExitDone { // the results were extracted, and the end of the sandbox freed space
		if _, err := os.Lstat(p.path("out/old")); err == nil {
			p.t.Error("it succeeded without results")
		}
	} else if code != controller.ExitSandbox || !strings.Contains(said, "no space left on device") || !strings.Contains(said,
		"hint: free some disk space") {
		p.t.Errorf("exit code %d", code)
	}
	if left, _ := filepath.Glob(p.path("state/agentsh/sandboxes/*")); len(left) > 0 {
		p.t.Errorf("left behind: %s", left)
	}
}

// collect runs the command that cleans up: another run, or gc.
func (p *crashFixture) collect(byRun bool) {
	p.t.Helper()
	if byRun {
		cmd := p.command("run", "harness.yaml", "--repo", "repo", "--out", "second")
		cmd.Env = append(cmd.Env, "HOST_TOKEN="+string(p.value))
		if out, err := cmd.CombinedOutput(); err != nil {
			p.t.Errorf("the next run: %v\n%s", err, out)
		}
	} else if out, err := p.command("gc").CombinedOutput(); err != nil {
		p.t.Errorf("gc: %v\n%s", err, out)
	}
	if out, err := p.command("gc").CombinedOutput(); err != nil || len(out) > 0 {
		p.t.Errorf("gc has something left to do: %v\n%s", err, out)
	}
}

// checkTarget fails the test if the target is damaged or has an incomplete
// branch.
func (p *crashFixture) checkTarget() {
	p.t.Helper()
	if out := p.git("fsck", "--full", "--strict", "--no-dangling"); out != "" {
		p.t.Errorf("git fsck: %s", out)
	}
	if out := p.git("status", "--porcelain"); out != "" {
		p.t.Errorf("git status: %s", out)
	}
	refs := p.git("for-each-ref")
	if !strings.Contains(refs, p.refs) {
		p.t.Errorf("refs were\n%s\nand are\n%s", p.refs, refs)
	}
	for line := range strings.Lines(refs) {
		_, branch, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(branch, "refs/heads/agentctl/") && p.git("show", branch+":a.txt") != "half" {
			p.t.Errorf("branch %s is not whole", branch)
		}
	}
}

// checkUnfinished fails the test for every file that was incomplete when the
// controller was killed.
func (p *crashFixture) checkUnfinished(but ...string) {
	p.t.Helper()
	err := filepath.WalkDir(p.dir, func(name string, d fs.DirEntry, err error) error {
		base := filepath.Base(name)
		if slices.ContainsFunc(but, func(prefix string) bool { return strings.HasPrefix(base, prefix) }) {
			return err
		}
		if strings.HasSuffix(base, ".lock") || strings.Contains(base, ".json.") || strings.HasPrefix(base, ".new-") || base == "socket" ||
			base == "keys.json" ||
			strings.HasPrefix(base, ".agent") ||
			strings.HasPrefix(base, "tmp_") ||
			strings.HasSuffix(base, ".partial") {
			p.t.Errorf("left behind: %s", name)
		}
		return err
	})
	if err != nil {
		p.t.Error(err)
	}
}

// checkResults fails the test unless the results are the earlier ones or
// complete new ones.
func (p *crashFixture) checkResults() {
	p.t.Helper()
	if _, err := os.Lstat(p.path("out/old")); err == nil {
		if entries, err := os.ReadDir(p.path("out")); err != nil || len(entries) != 2 {
			p.t.Errorf("the earlier results are not what they were: %v %v", entries, err)
		}
		return
	}
	var r controller.Result
	var m wire.Manifest
	for name, v := range map[string]any{"out/result.json": &r, "out/manifest.json": &m} {
		if err := json.Unmarshal([]byte(p.read(name)), v); err != nil {
			p.t.Errorf("%s: %v", name, err)
		}
	}
	if r.Branch == "" || p.git("show", r.Branch+":a.txt") != "half" || p.read("out/output/report.txt") != "report\n" ||
		!p.quiet && !strings.Contains(p.read("out/agent.log"), "agent at work") {
		p.t.Errorf("the results are not whole: %+v", r)
	}
	if log := p.read("out/audit.jsonl"); !strings.HasSuffix(log, "}\n") {
		p.t.Errorf("the audit log ends with %.100q", log[max(len(log)-100, 0):])
	}
	for _, e := range m.Entries {
		if sum := sha256.Sum256([]byte(p.read("out/files/" + string(e.Path)))); sum != e.SHA256 {
			p.t.Errorf("%s is not what the manifest says", e.Path)
		}
	}
	if len(m.Entries) != 2 {
		p.t.Errorf("manifest: %+v", m)
	}
}

// checkNoValue fails the test if the credential is in a file of the fixture, or
// in the environment or arguments of any process.
func (p *crashFixture) checkNoValue() {
	p.t.Helper()
	err := filepath.WalkDir(p.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(name)
		if p.value.in(data) {
			p.t.Errorf("the credential is in %s", name)
		}
		return err
	})
	if err != nil {
		p.t.Error(err)
	}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range procs {
		for _, file := range []string{"environ", "cmdline"} {
			if data, err := os.ReadFile(filepath.Join(proc, file)); err == nil && p.value.in(data) {
				p.t.Errorf("the credential is in %s/%s", proc, file)
			} else if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, fs.ErrPermission) {
				p.t.Error(err)
			}
		}
	}
}
