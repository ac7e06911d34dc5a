package supervisor

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor/probe"
)

// watchScript watches a directory by inotify and writes the events to a file.
const watchScript = `
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(0)
if fd < 0 or libc.inotify_add_watch(fd, b"d", 0x100|0x200|0x2|0x4|0x40|0x80) < 0: raise OSError(ctypes.get_errno())
open("ready", "w").close()
words = {0x100: "create", 0x200: "delete", 0x2: "modify", 0x4: "attrib"}
with open("events", "a", buffering=1) as out:
    while True:
        data = os.read(fd, 65536)
        while data:
            mask, size = struct.unpack_from("iIII", data)[1::2]
            name = data[16:16+size].rstrip(b"\0").decode()
            data = data[16+size:]
            out.write("".join("%s %s\n" % (w, name) for bit, w in words.items() if mask & bit))
`

// nodeScript does the same by fs.watch of node, without the kinds of the events.
const nodeScript = `
const fs = require("fs");
fs.watch("d", (kind, name) => fs.appendFileSync("node-events", kind + " " + name + "\n"));
fs.writeFileSync("node-ready", "");
`

// TestWatchersInsideSeeHostEdits: as root and as user 1000, another process edits what
// commands watch.
func TestWatchersInsideSeeHostEdits(t *testing.T) {
	unprivileged := asBoth(t)
	cfg, log := testConfig(t, opensPolicy)
	if unprivileged {
		cfg.User = ""
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(context.Background(), cfg)
	must(err)
	defer func() { _ = s.Close() }() // it ends the watchers
	b := &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
	at := func(name string) string { return filepath.Join(cfg.Cwd, name) }
	if exit, out := b.run(t, "sh", "-c", "mkdir d; echo x >d/edited; echo x >d/removed; echo x >d/mode; ls d"); exit.Code != 0 {
		t.Fatalf("%+v %s", exit, out)
	}
	watch := func(id string, argv ...string) {
		go func() { // ends with the session
			_, _, _ = b.Exec(context.Background(), wire.ExecRequest{ID: id, Argv: argv}, wire.Streams{Stdout: io.Discard, Stderr: os.Stderr})
		}()
	}
	want := map[string][]string{
		"events": {"create new", "modify edited", "delete removed", "attrib mode", "create saved", "create sub"},
	}
	watch("python", "python3", "-c", watchScript)
	waitForFile(t, at("ready"))
	if _, err := exec.LookPath("node"); err == nil {
		watch("node", "node", "-e", nodeScript)
		waitForFile(t, at("node-ready"))
		want["node-events"] = []string{"rename new", "change edited", "rename removed", "rename saved"}
	}
	host := exec.Command("sh", "-ec", "echo a >new; echo b >>edited; rm removed; chmod 600 mode; echo s >.s; mv .s saved; mkdir sub")
	host.Dir = at("d")
	if out, err := host.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	deadline := time.Now().Add(2 * time.Minute)
	for file, lines := range want {
		for _, line := range lines {
			for {
				data, _ := os.ReadFile(at(file))
				if strings.Contains("\n"+string(data), "\n"+line+"\n") {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%s has no %q: %q", file, line, data)
				}
				<-time.After(time.Millisecond)
			}
		}
	}
	if exit, out := b.run(t, "sh", "-c", "cat d/new d/edited d/saved; ls d"); out != "a\nx\nb\ns\nedited\nmode\nnew\nsaved\nsub\n" {
		t.Errorf("%+v %q", exit, out)
	}
}

// TestAWorkspaceThatIsNotWatchedIsRefused requires that host edits are seen, in a
// directory of a filesystem that raises no events.
func TestAWorkspaceThatIsNotWatchedIsRefused(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Landlock)
	cfg, _ := testConfig(t, opensPolicy)
	cfg.Require = []probe.Setting{{Name: "host_edits", At: "c.yaml:1:1"}}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	cfg.Files.Governed[0].Backing = "/proc/sys"
	if s, err = Open(context.Background(), cfg); err == nil {
		_ = s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "c.yaml:1:1: require host_edits: /proc/sys: filesystem of type 0x9fa0") {
		t.Errorf("%v", err)
	}
}

// TestProgramsThatFollowFilesSeeHostEdits: inotifywait and tail -F, as root and as user
// 1000. The followed log is rotated meanwhile.
func TestProgramsThatFollowFilesSeeHostEdits(t *testing.T) {
	unprivileged := asBoth(t)
	testenv.Need(t, testenv.Program("inotifywait"))
	cfg, log := testConfig(t, opensPolicy)
	if unprivileged {
		cfg.User = ""
	}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }() // it ends the watchers
	b := &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
	if exit, out := b.run(t, "sh", "-c", "mkdir d; echo first >d/log; ls d"); exit.Code != 0 {
		t.Fatalf("%+v %s", exit, out)
	}
	for id, script := range map[string]string{
		"waiting": "exec inotifywait -m -e create,modify,delete --format '%e %f' d >waited 2>waiting",
		"tailing": "exec tail -F -s 0.1 --max-unchanged-stats=1 d/log >tailed 2>/dev/null",
	} {
		go func() { // ends with the session
			_, _, _ = b.Exec(context.Background(), wire.ExecRequest{ID: id, Argv: []string{"sh", "-c", script}},
				wire.Streams{Stdout: io.Discard, Stderr: os.Stderr})
		}()
	}
	waitForLine(t, filepath.Join(cfg.Cwd, "waiting"), "Watches established.")
	waitForLine(t, filepath.Join(cfg.Cwd, "tailed"), "first")
	host := func(script string) {
		t.Helper()
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir = filepath.Join(cfg.Cwd, "d")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	host("echo second >>log; echo x >new")
	for _, line := range []string{"MODIFY log", "CREATE new"} {
		waitForLine(t, filepath.Join(cfg.Cwd, "waited"), line)
	}
	waitForLine(t, filepath.Join(cfg.Cwd, "tailed"), "second")
	host("mv log log.1; echo third >log; rm new")
	for _, line := range []string{"CREATE log.1", "CREATE log", "DELETE new"} {
		waitForLine(t, filepath.Join(cfg.Cwd, "waited"), line)
	}
	waitForLine(t, filepath.Join(cfg.Cwd, "tailed"), "third")
}

// waitForLine waits until a file has a line.
func waitForLine(t *testing.T, file, line string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; <-time.After(time.Millisecond) {
		data, _ := os.ReadFile(file)
		if strings.Contains("\n"+string(data), "\n"+line+"\n") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has no %q: %q", file, line, data)
		}
	}
}

// TestHostEditsAreSeenByInotifyAlone runs again without fanotify. Names that nobody
// watched would be 600 s old. Nothing says who made a change, so nothing is told.
func TestHostEditsAreSeenByInotifyAlone(t *testing.T) {
	const limitedEnv = "AGENTSH_TEST_INOTIFY"
	if os.Getenv(limitedEnv) == "" {
		testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Landlock)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := testenv.Without(t, []string{testenv.WithoutFanotify}, self, "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), limitedEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "seen by inotify") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	cfg, log := testConfig(t, opensPolicy)
	cfg.Files.CacheSeconds = 600
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
	if exit, out := b.run(t, "sh", "-c", "mkdir d; echo x >d/edited; echo x >d/removed; ls -l d; ! test -e d/new"); exit.Code != 0 {
		t.Fatalf("%+v %s", exit, out)
	}
	host := exec.Command("sh", "-ec", "echo a >new; echo more >>edited; rm removed")
	host.Dir = filepath.Join(cfg.Cwd, "d")
	if out, err := host.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const look = "i=0; until test -e d/new && ! test -e d/removed && test $(stat -c %s d/edited) = 7; do " +
		"i=$((i+1)); test $i -lt 12000 || exit 1; sleep 0.01; done"
	if exit, out := b.run(t, "sh", "-c", look); exit.Code != 0 {
		t.Errorf("%+v %s", exit, out)
	}
	changes, err := s.Changes(context.Background())
	if err != nil {
		t.Error(err)
	}
	for _, c := range changes {
		if c.By != "" {
			t.Errorf("told: %+v", c)
		}
	}
	if told := b.events(t, func(e wire.Event) bool { return e.Type == wire.EventHost }); len(told) > 0 {
		t.Errorf("told: %+v", told)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	t.Log("seen by inotify")
}
