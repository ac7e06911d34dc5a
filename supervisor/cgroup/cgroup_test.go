package cgroup

import (
	"bufio"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

// controlGroups are groups below this process's own that can be limited.
var controlGroups = testenv.That("control groups that can be limited", func() error {
	limits := Limits{MemoryBytes: 64 << 20, CPUPercent: 50, Pids: 64}
	g, unmet := New("agentsh-test-"+strconv.Itoa(os.Getpid()), limits.Kinds())
	maps.Copy(unmet, g.Limit(limits))
	return errors.Join(append(slices.Collect(maps.Values(unmet)), g.Close())...)
})

const (
	legacyMounts = `30 23 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
	unifiedMounts = "34 23 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
)

func TestTheHierarchyOfAControllerIsFound(t *testing.T) {
	for _, c := range []struct {
		name, controller, mounts, groups, unified string // unified: groups that have the controller
		want                                      position
	}{
		{"cgroup v1", "memory", legacyMounts, "4:memory:/a/b\n0::/\n", "", position{"/sys/fs/cgroup/memory/a/b", false}},
		{"two controllers in one", "cpu", legacyMounts, "1:cpu,cpuacct:/x\n", "", position{"/sys/fs/cgroup/cpu/x", false}},
		{"cgroup v2", "pids", unifiedMounts, "0::/user.slice/s.scope\n", "/sys/fs/cgroup/user.slice/s.scope",
			position{"/sys/fs/cgroup/user.slice/s.scope", true}},
		{"v2 before v1", "memory", legacyMounts, "4:memory:/a\n0::/u\n", "/sys/fs/cgroup/unified/u", position{"/sys/fs/cgroup/unified/u", true}},
		{"v2 without the controller", "memory", unifiedMounts, "0::/u\n", "", position{}},
		{"a group made for the supervisor", "cpu", unifiedMounts, "0::/u/agentsh-supervisor\n", "/sys/fs/cgroup/u",
			position{"/sys/fs/cgroup/u/agentsh-supervisor", true}},
		{"no hierarchy", "pids", legacyMounts, "8:pids:/\n", "", position{}},
		{"a part that is mounted", "memory", "1 2 0:3 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n", "4:memory:/docker/x/y\n", "", position{"/sys/fs/cgroup/memory/y", false}},
		{"another part", "memory", "1 2 0:3 /docker/z /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n", "4:memory:/docker/x\n", "", position{}},
		{"a group outside the namespace", "memory", legacyMounts, "4:memory:/../other\n", "", position{}},
		{"a blank in the path", "memory", "1 2 0:3 / /my\\040groups rw - cgroup cgroup rw,memory\n", "4:memory:/a\n", "", position{"/my groups/a", false}},
		{"nonsense", "memory", "x\n - cgroup\n", "::\n4\n", "", position{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			has := func(dir, _ string) bool { return dir == c.unified }
			got, err := findIn(c.controller, c.mounts, c.groups, has)
			if got != c.want || (err != nil) != (c.want == position{}) {
				t.Errorf("%+v %v, want %+v", got, err, c.want)
			}
		})
	}
}

func FuzzFindIn(f *testing.F) {
	f.Add(legacyMounts, "4:memory:/a/b\n")
	f.Add(unifiedMounts, "0::/\n")
	f.Fuzz(func(t *testing.T, mounts, groups string) {
		p, err := findIn("memory", mounts, groups, func(string, string) bool { return true })
		if (err == nil) != (p.dir != "") {
			t.Errorf("%+v %v", p, err)
		}
	})
}

func TestTheCountOfKillsIsRead(t *testing.T) {
	for text, want := range map[string]int{
		"low 0\nhigh 0\nmax 12\noom 1\noom_kill 3\noom_group_kill 0\n": 3,
		"oom_kill_disable 0\nunder_oom 0\noom_kill 7\n":                7,
		"oom_kill_disable 0\nunder_oom 0\n":                            -1,
		"oom_kill x\n":                                                 -1,
	} {
		got, err := oomKills([]byte(text))
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: %d %v", text, got, err)
		}
	}
}

func TestLimitsAreTriedAndRemoved(t *testing.T) {
	testenv.Need(t, testenv.Root, controlGroups)
	g, unmet := New("agentsh-test-"+strconv.Itoa(os.Getpid()), []Kind{Memory, CPU, Pids})
	if len(unmet) > 0 {
		t.Fatal(unmet)
	}
	l := Limits{MemoryBytes: 64 << 20, CPUPercent: 50, Pids: 20}
	if unmet := g.Limit(l); len(unmet) > 0 {
		t.Error(unmet)
	}
	if unmet := g.Try(Limits{MemoryBytes: 32 << 20, CPUPercent: 10, Pids: 3}); len(unmet) > 0 {
		t.Error(unmet)
	}
	c, err := g.Command("1", Limits{Pids: 5})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Command("1", Limits{}); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second group of that name: %v", err)
	}
	for _, name := range []string{"", ".", "..", "a/b", strings.Repeat("x", 300)} {
		if _, err := g.Command(name, Limits{}); err == nil {
			t.Errorf("a group can have the name %q", name)
		}
	}
	if n, err := c.OOMKills(); n != 0 || err != nil {
		t.Errorf("%d kills, %v", n, err)
	}
	g.Release(c)
	for _, dir := range g.Paths() {
		if _, err := os.Stat(filepath.Join(dir, "1")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s/1 is left: %v", dir, err)
		}
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	for _, dir := range g.Paths() {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}

// confined runs a shell command in a group below the given limits and returns
// what it printed.
func confined(t *testing.T, limits Limits, text string) (kills int, out string) {
	t.Helper()
	testenv.Need(t, testenv.Root, controlGroups)
	g, unmet := New("agentsh-test-"+strconv.Itoa(os.Getpid()), limits.Kinds())
	defer func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, problems := range []map[Kind]error{unmet, g.Limit(limits)} {
		if len(problems) > 0 {
			t.Fatal(problems)
		}
	}
	c, err := g.Command("1", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "read x; "+text)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cmd.Stdout = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	err = c.Add(cmd.Process.Pid)
	if _, write := stdin.Write([]byte("go\n")); err != nil || write != nil {
		t.Error(err, write)
	}
	_ = cmd.Wait() // how it ends is told by what it printed
	if len(c.dirs) > 0 && slices.Contains(limits.Kinds(), Memory) {
		if kills, err = c.OOMKills(); err != nil {
			t.Error(err)
		}
	}
	g.Release(c)
	return kills, said.String()
}

func TestProcessesAreBounded(t *testing.T) {
	const hog = "dd if=/dev/zero of=/dev/null bs=200M count=1 2>/dev/null; echo $?"
	small := Limits{MemoryBytes: 64 << 20, CPUPercent: 50, Pids: 3}
	if kills, out := confined(t, small, hog); kills != 1 || out != "137\n" {
		t.Errorf("over the limit on memory: %d kills, %q", kills, out)
	}
	if kills, out := confined(t, Limits{MemoryBytes: 400 << 20, Pids: 3}, hog); kills != 0 || out != "0\n" {
		t.Errorf("below the limit on memory: %d kills, %q", kills, out)
	}
	// A shell that cannot fork ends.
	for pids, want := range map[int]string{1: "before\n", 2: "before\nafter\n"} {
		if _, out := confined(t, Limits{Pids: pids, CPUPercent: 50}, "echo before; /bin/true; echo after"); out != want {
			t.Errorf("with %d processes: %q", pids, out)
		}
	}
}

func TestSwapNeedsALimitOnMemoryInTheFirstVersion(t *testing.T) {
	if err := (directory{path: t.TempDir()}).set(Swap, Limits{SwapLimited: true}); err == nil ||
		!strings.Contains(err.Error(), "max_memory_mb") {
		t.Error(err)
	}
}

// unifiedRoot mounts cgroup v2 in a directory and returns a controller it has.
func unifiedRoot(t *testing.T) (dir, controller string) {
	t.Helper()
	testenv.Need(t, testenv.Root, controlGroups)
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		t.Fatal(err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(mount) })
	dir = "/proc/self/fd/" + strconv.Itoa(mount)
	text, err := os.ReadFile(dir + "/cgroup.controllers")
	if err != nil || len(strings.Fields(string(text))) == 0 {
		t.Fatalf("controllers %q %v", text, err)
	}
	return dir, strings.Fields(string(text))[0]
}

func TestADelegatedGroupIsDivided(t *testing.T) {
	root, controller := unifiedRoot(t)
	before, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control"))
	if err == nil {
		err = enable(root, []string{controller})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if strings.Contains(string(before), controller) {
			return
		}
		if err := write(root, "cgroup.subtree_control", "-"+controller); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(root, "agentsh-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Remove([]string{dir}); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.Command("sh", "-c", "echo up; read x")
	stdin, _ := cmd.StdinPipe()
	stdout, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stdin.Close()
		_ = cmd.Wait() // the shell fails to read
	}()
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if err := write(dir, "cgroup.procs", strconv.Itoa(cmd.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	if _, err := (position{dir, true}).open([]string{controller}); err == nil || !strings.Contains(err.Error(), "Delegate=yes") {
		t.Errorf("a group with processes that is nobody's to divide: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control")); err != nil || len(strings.TrimSpace(string(text))) > 0 {
		t.Errorf("what was refused has changed the group: %q %v", text, err)
	}
	if err := unix.Setxattr(dir, "trusted.delegate", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	for _, own := range []string{dir, filepath.Join(dir, supervisorGroup)} { // the second time from the group that was made
		base, err := position{own, true}.open([]string{controller})
		if err != nil || base != dir {
			t.Errorf("%s: %s %v", own, base, err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, supervisorGroup, "cgroup.procs")); string(text) != strconv.Itoa(cmd.Process.Pid)+"\n" {
		t.Errorf("in the group of the supervisor: %q %v", text, err)
	}
}
