package watch

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

// TestTheKernelsLimitsAreKept runs again in user namespaces whose limits are small. The
// directories beyond a limit are refused as too many, and releasing one makes room.
func TestTheKernelsLimitsAreKept(t *testing.T) {
	const limitedEnv = "AGENTSH_TEST_WATCHES"
	const room = 5
	if mechanism := os.Getenv(limitedEnv); mechanism != "" {
		fillTo(t, room, mechanism)
		return
	}
	testenv.Need(t, testenv.UserNS)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for mechanism, limits := range map[string]string{
		Fanotify.String(): "echo 5 >/proc/sys/user/max_fanotify_marks",
		Inotify.String():  "echo 0 >/proc/sys/user/max_fanotify_groups; echo 5 >/proc/sys/user/max_inotify_watches",
	} {
		cmd := exec.Command("unshare", "-U", "-r", "sh", "-ec", limits+`; exec unshare -U -r "$@"`, "sh", self, "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), limitedEnv+"="+mechanism)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "the limit was reached by "+mechanism) {
			t.Errorf("%s: %v\n%s", mechanism, err, out)
		}
	}
}

func fillTo(t *testing.T, room int, mechanism string) {
	w := New(Config{Most: 100, Report: func([]Event) {}, Lost: func() {}})
	defer w.Close()
	top := t.TempDir()
	add := func(key int) error {
		dir := filepath.Join(top, strconv.Itoa(key))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		how, err := w.Add(uint64(key), fd)
		if err == nil && how.String() != mechanism {
			t.Errorf("watched by %v", how)
		}
		return err
	}
	for i := range room {
		if err := add(i); err != nil {
			t.Fatalf("directory %d: %v", i, err)
		}
	}
	if err := add(room); !errors.Is(err, ErrFull) {
		t.Fatalf("beyond the limit: %v", err)
	}
	if identity := w.Forget(0, false); identity != "" {
		fd, err := unix.Open(filepath.Join(top, "0"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		w.Release(identity, fd)
	}
	if err := add(room); err != nil {
		t.Errorf("after a release: %v", err)
	}
	if got := w.Count(); got != room {
		t.Errorf("%d directories are watched", got)
	}
	t.Log("the limit was reached by " + mechanism)
}
