package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/probe"
	"agentsh/supervisor/view"
)

// shownEnv is a directory of the test that policies show, and in a run without namespaces.
const shownEnv = "AGENTSH_TEST_SHOWN"

// oldLandlocks are the modes of test/outer for kernels before Linux 6.2, by the version.
var oldLandlocks = map[string]int{"landlock1": 1, "landlock2": 2}

// On a kernel before Linux 6.2 Landlock has no right to truncate, and before 5.19 none to
// move a file to another directory. Each run is one of this test below test/outer, which lets
// Landlock be older.
func TestASessionWithAnOlderLandlock(t *testing.T) {
	if mode := testenv.Outer(); mode != "" {
		testOldLandlock(t, mode)
		return
	}
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Landlock, testenv.Program("python3"))
	for mode := range oldLandlocks {
		t.Run(mode, func(t *testing.T) { testenv.Below(t, "TestASessionWithAnOlderLandlock", mode, mode) })
	}
}

// commit makes a repository and renames in it.
const commit = "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -qm first --allow-empty && git log --format=%s"

func testOldLandlock(t *testing.T, mode string) {
	if abi := launch.LandlockABI(); abi != oldLandlocks[mode] {
		t.Fatalf("Landlock has ABI %d", abi)
	}
	if shown := os.Getenv(shownEnv); shown != "" {
		testTruncation(t, shown)
		t.Log("held: without namespaces")
		return
	}
	cfg, log := wholeConfig(t, besidePolicy)
	b := openConfig(t, cfg, log)
	b.prints(t, map[string]string{
		"mkdir d && echo kept >f && mv f d/g && cat d/g":                               "kept\n",
		"echo kept >t && python3 -c 'import os; os.truncate(\"t\", 2)' && cat t; echo": "ke\n",
		": 2>/dev/null >/etc/passwd || echo refused":                                   "refused\n",
		commit: "first\n",
	})
	runWithoutNamespaces(t)
	t.Log("held: " + mode)
}

// runWithoutNamespaces runs the test once more where there are no namespaces.
func runWithoutNamespaces(t *testing.T) {
	shown, err := os.MkdirTemp("/var/tmp", "shown") // commands may write to /tmp
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(shown) })
	if err := os.Chmod(shown, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(shown, "file")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(file, view.DedicatedID, view.DedicatedID); err != nil { // permissions allow everything
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := testenv.Without(t, []string{testenv.WithoutNamespaces}, self, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), shownEnv+"="+shown)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "held: without namespaces") {
		t.Errorf("%v\n%s", err, out)
	}
	if data, err := os.ReadFile(file); string(data) != "kept" {
		t.Errorf("the file has %q, %v", data, err)
	}
}

// truncations are what a command tries on a file that it may only read.
const truncations = `import ctypes, os, platform, sys
name = sys.argv[1]
print(open(name).read())
libc = ctypes.CDLL(None, use_errno=True)
def openat2():
    how = (ctypes.c_uint64 * 3)(os.O_TRUNC, 0, 0)
    if libc.syscall(437, -100, name.encode(), how, 24) < 0:
        raise OSError(ctypes.get_errno(), "openat2")
def open_():
    number = {"x86_64": 2}.get(platform.machine(), 1 << 20)
    if libc.syscall(number, name.encode(), os.O_TRUNC, 0) < 0:
        raise OSError(ctypes.get_errno(), "open")
for n, what in enumerate((
        lambda: os.truncate(name, 0), lambda: os.open(name, os.O_TRUNC), lambda: os.open(name, os.O_TRUNC | 3), openat2, open_,
        lambda: os.open(name, os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK), lambda: os.open(name, os.O_WRONLY),
        lambda: os.open(name, os.O_RDWR | os.O_TRUNC), lambda: libc.creat(name.encode(), 0o600) < 0 and os.open(name, os.O_WRONLY))):
    try:
        what()
        print("done", n)
    except OSError as e:
        pass
print(open(name).read())
`

// testTruncation checks a session in which Landlock and the filter confine files.
func testTruncation(t *testing.T, shown string) {
	policy := strings.Replace(besidePolicy, "file_rules:\n", "file_rules:\n  - {name: shown, paths: ['"+shown+"', '"+shown+
		"/**'], operations: [read, list, stat], decision: allow}\n", 1)
	cfg, log := wholeConfig(t, policy)
	giveWorkspace(t, cfg)
	cfg.Degraded = []probe.Setting{{Name: probe.Namespaces, At: "c.yaml:1:1"}, {Name: probe.LandlockScopes, At: "c.yaml:1:2"}}
	b := openConfig(t, cfg, log)
	if exit, out := b.run(t, "python3", "-c", truncations, filepath.Join(shown, "file")); exit.Kind != wire.ExitExited ||
		out != "kept\nkept\n" {
		t.Errorf("what a command may do to a file that it may read: %+v %s", exit, out)
	}
	b.prints(t, map[string]string{
		"echo long >f && echo x >f && cat f":                                      "x\n",
		"echo long >g && truncate -s 2 g && cat g; echo":                          "lo\n",
		"mkdir d && echo kept >h && mv h d/i && cat d/i":                          "kept\n",
		"python3 -c 'import os; open(\"j\", \"w+\").write(\"x\")' && cat j; echo": "x\n",
		"/usr/bin/id 2>/dev/null; echo $?":                                        "126\n",
		"cat /etc/shadow 2>/dev/null; echo $?":                                    "1\n",
		commit:                                                                    "first\n",
	})
}
