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
	deadline := time.Now().Add(30 * time.Second)
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
