package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/host"
)

// shareASession lets the shells of an image share a session.
func shareASession(t *testing.T, root string) {
	install := exec.Command(filepath.Join(root, "usr/bin/agentsh"), "shim", "install", "--root", root, "--session", "shared")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() { // of a test that failed
		if _, err := os.Lstat(filepath.Join(root, "run/agentsh/shim")); err == nil {
			runInImage(t, root, "", "/usr/bin/agentsh", "session", "destroy", "shim")
		}
	})
	t.Run("the shells of a container share a session", func(t *testing.T) { sharedByAll(t, root) })
	t.Run("its starter is killed", func(t *testing.T) { starterKilled(t, root) })
	t.Run("agentsh session finds a user's", func(t *testing.T) { foundByItsUser(t, root) })
	t.Run("an entry point holds it", func(t *testing.T) { heldByAnEntryPoint(t, root) })
}

// endShared ends the shared session.
func endShared(t *testing.T, root string) {
	t.Helper()
	if out, code := runInImage(t, root, "", "/usr/bin/agentsh", "session", "destroy", "shim"); code != 0 {
		t.Errorf("exit %d\n%s", code, out)
	}
}

// shellInImage runs a command line in a shell of an image, which must succeed, and
// returns the last line that it prints.
func shellInImage(t *testing.T, root, line string) string {
	t.Helper()
	out, code := runInImage(t, root, "", "/bin/sh", "-c", line)
	if code != 0 {
		t.Errorf("%s: exit %d\n%s", line, code, out)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}

// recordOf waits for the record of the shared session.
func recordOf(t *testing.T, root string) host.Running {
	t.Helper()
	var one host.Running
	until(t, func() bool {
		data, err := os.ReadFile(filepath.Join(root, "run/agentsh/shim/session.json"))
		return err == nil && json.Unmarshal(data, &one) == nil
	})
	return one
}

// until waits for what another process does to files.
func until(t *testing.T, done func() bool) {
	t.Helper()
	for limit := time.Now().Add(2 * time.Minute); !done(); runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatal("it hangs")
		}
	}
}

func sharedByAll(t *testing.T, root string) {
	// The first ones come at once.
	var firsts sync.WaitGroup
	sessions := make([]string, 4)
	for i := range sessions {
		firsts.Go(func() { sessions[i] = shellInImage(t, root, "echo $AGENTSH_SESSION") })
	}
	firsts.Wait()
	first := recordOf(t, root)
	for _, s := range sessions {
		if s != first.Session {
			t.Errorf("sessions %q, the record has %s", sessions, first.Session)
		}
	}
	// What one starts, another reaches, under the same policy.
	shellInImage(t, root, "cd /work; mkfifo in out; while read x <in; do echo served $x >out; done >/dev/null 2>&1 &")
	if got := shellInImage(t, root, "cd /work; echo a >in; read x <out; echo $x"); got != "served a" {
		t.Errorf("got %q", got)
	}
	if out, code := runInImage(t, root, "", "/bin/bash", "-c", "id"); code != 126 || !strings.Contains(out, "denied: id (rule no-id") {
		t.Errorf("exit %d\n%s", code, out)
	}
	out, code := runInImage(t, root, "a line\n", "/bin/sh", "-c", "read x; echo $x $0; exit 7", "zero")
	if code != 7 || !strings.Contains(out, "a line zero") {
		t.Errorf("exit %d\n%s", code, out)
	}
	// A supervisor that is killed leaves its socket. The next shell starts another one.
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := shellInImage(t, root, "echo $AGENTSH_SESSION"); got == first.Session || got != recordOf(t, root).Session {
		t.Errorf("session %s again", got)
	}
	endShared(t, root)
}

func starterKilled(t *testing.T, root string) {
	for _, made := range []string{
		".", "run/agentsh/shim/lock", "run/agentsh/shim/log", "run/agentsh/shim/socket",
	} {
		starter := exec.Command("unshare", "-m", "bash", "-c", inImage, "bash", root, "/bin/sh", "-c", "true")
		starter.Env = []string{"PATH=" + os.Getenv("PATH")}
		if err := starter.Start(); err != nil {
			t.Fatal(err)
		}
		until(t, func() bool {
			_, err := os.Lstat(filepath.Join(root, made))
			return err == nil
		})
		_ = starter.Process.Kill() // it may have ended
		_ = starter.Wait()
		if got := shellInImage(t, root, "echo $AGENTSH_SESSION"); got != recordOf(t, root).Session {
			t.Errorf("killed when %s was there: session %s", made, got)
		}
		endShared(t, root)
		if err := os.RemoveAll(filepath.Join(root, "run/agentsh")); err != nil {
			t.Fatal(err)
		}
	}
}

func heldByAnEntryPoint(t *testing.T, root string) {
	entry := exec.Command("unshare", "-m", "bash", "-c", inImage, "bash", root, "/usr/bin/agentsh", "serve")
	entry.Env = []string{"PATH=" + os.Getenv("PATH")}
	if err := entry.Start(); err != nil {
		t.Fatal(err)
	}
	one := recordOf(t, root)
	if got := shellInImage(t, root, "echo $AGENTSH_SESSION"); got != one.Session {
		t.Errorf("session %s, not %s", got, one.Session)
	}
	if err := entry.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := entry.Wait(); err != nil {
		t.Errorf("the entry point: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(root, "run/agentsh/shim")); err == nil {
		t.Error("the session goes on")
	}
}

// asUserInImage starts programs of the image as user 1000. A user's session needs a root
// that is the one of its mount namespace, see user_namespaces(7).
const asUserInImage = `set -e
root=$1; shift
mount --make-rprivate /
mount --bind "$root" "$root"; mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"
mount --bind "$root/fuse" "$root/dev/fuse"
exec 2>&1
cd "$root"; pivot_root . outside
cd /work
exec setpriv --reuid 1000 --regid 1000 --clear-groups "$@"`

// foundByItsUser has 'agentsh session' of a user find the session that the shells share.
func foundByItsUser(t *testing.T, root string) {
	device := filepath.Join(root, "fuse")
	if err := errors.Join(os.Mkdir(filepath.Join(root, "outside"), 0o755), os.Chown(filepath.Join(root, "work"), 1000, 1000),
		unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 229))), os.Chmod(device, 0o666)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.Chown(filepath.Join(root, "work"), 0, 0); err != nil {
			t.Error(err)
		}
	}()
	user := func(argv ...string) string {
		t.Helper()
		cmd := exec.Command("unshare", append([]string{"-m", "bash", "-c", asUserInImage, "bash", root}, argv...)...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%q: %v\n%s", argv, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	find := []string{"env", "HOME=/work", "XDG_RUNTIME_DIR=/var/tmp/agentsh-1000/run", "agentsh"}
	id := user("/bin/sh", "-c", "echo $AGENTSH_SESSION")
	var list []host.Running
	out := user(append(find, "session", "list", "--json")...)
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 || list[0].Name != "shim" || list[0].Session != id {
		t.Errorf("session %s: %v %s", id, err, out)
	}
	if got := user(append(find, "exec", "--session", "shim", "--", "bash", "-c", "echo $AGENTSH_SESSION")...); got != id {
		t.Errorf("session %s: %s", id, got)
	}
	user(append(find, "session", "reload", "shim")...)
	user(append(find, "session", "destroy", "shim")...)
}
