package fuse

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

// lockCases are the cases of testdata/locks.py.
var lockCases = []string{
	"ranges", "modes", "anyclose", "forked", "executed", "ofd", "flocks", "waits", "deadlock", "upgrades", "names", "many",
}

// lockLines runs one case in a directory.
func lockLines(t *testing.T, dir, name string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "python3", "testdata/locks.py", dir, name).CombinedOutput()
	if err != nil {
		t.Fatalf("%s in %s: %v: %s", name, dir, err, out)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

func TestLocksComeOutAsInAPlainDirectory(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE)
	want := map[string][]string{}
	for _, c := range lockCases {
		want[c] = lockLines(t, t.TempDir(), c)
	}
	for mode, plain := range map[string]bool{"": false, ", no passthrough": true} {
		s := start(t, options{plain: plain})
		for _, c := range lockCases {
			t.Run(c+mode, func(t *testing.T) {
				must(t, os.Mkdir(s.path(c), 0o755))
				got := lockLines(t, s.path(c), c)
				for i := range max(len(got), len(want[c])) {
					if i >= len(got) || i >= len(want[c]) || got[i] != want[c][i] {
						t.Fatalf("line %d: the mount says\n%s\na plain directory\n%s", i, strings.Join(got, "\n"), strings.Join(want[c], "\n"))
					}
				}
			})
		}
	}
}

// lockHolder is a process that holds a lock on a file, or waits for it.
type lockHolder struct {
	t   *testing.T
	cmd *exec.Cmd
	out *bufio.Reader
	in  io.Closer
}

// holdLock starts a process that takes a lock and keeps it until release.
func holdLock(t *testing.T, file, kind string) *lockHolder {
	t.Helper()
	script := `import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR)
print("begins", flush=True)
kind = sys.argv[2]
if kind == "flock": fcntl.flock(fd, fcntl.LOCK_EX)
else: fcntl.fcntl(fd, {"posix": fcntl.F_SETLKW, "ofd": 38}[kind], struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
print("has it", flush=True)
sys.stdin.read()`
	h := &lockHolder{t: t, cmd: exec.Command("python3", "-c", script, file, kind)}
	in, err := h.cmd.StdinPipe()
	must(t, err)
	out, err := h.cmd.StdoutPipe()
	must(t, err)
	h.cmd.Stderr = os.Stderr
	h.in, h.out = in, bufio.NewReader(out)
	must(t, h.cmd.Start())
	t.Cleanup(func() { _ = h.cmd.Process.Kill(); _ = h.cmd.Wait() })
	h.says("begins")
	return h
}

func (h *lockHolder) says(want string) {
	h.t.Helper()
	if line, err := h.out.ReadString('\n'); err != nil || strings.TrimSpace(line) != want {
		h.t.Fatalf("%q, %v, want %q", line, err, want)
	}
}

// sleeps waits until the process is blocked in its lock call.
func (h *lockHolder) sleeps() {
	h.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; runtime.Gosched() {
		call, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", h.cmd.Process.Pid))
		switch number, _, _ := strings.Cut(string(call), " "); number {
		case fmt.Sprint(unix.SYS_FCNTL), fmt.Sprint(unix.SYS_FLOCK):
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("the process does not wait: %s", call)
		}
	}
}

func (h *lockHolder) end() {
	h.in.Close()
	_ = h.cmd.Wait()
}

// unlocked reports whether the backing file is locked by nobody.
func unlocked(t *testing.T, file, kind string) bool {
	t.Helper()
	out, err := exec.Command("python3", "-c", `import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try: (fcntl.flock if sys.argv[2] == "flock" else fcntl.lockf)(fd, fcntl.LOCK_EX | fcntl.LOCK_NB); print("free")
except BlockingIOError: print("locked")`, file, kind).CombinedOutput()
	must(t, err)
	return strings.TrimSpace(string(out)) == "free"
}

func TestLocksHoldBetweenSessionsAndTheHost(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE)
	for mode, plain := range map[string]bool{"": false, ", no passthrough": true} {
		for _, kind := range []string{"posix", "ofd", "flock"} {
			t.Run(kind+mode, func(t *testing.T) {
				a := start(t, options{plain: plain})
				b := start(t, options{plain: plain, backing: a.backing})
				must(t, os.WriteFile(a.back("f"), []byte("x"), 0o644))
				first := holdLock(t, a.path("f"), kind)
				first.says("has it")
				second := holdLock(t, b.path("f"), kind)
				second.sleeps()
				if unlocked(t, a.back("f"), kind) {
					t.Error("a lock of a command does not hold on the host")
				}
				first.end()
				second.says("has it")
				host := holdLock(t, a.back("f"), kind)
				host.sleeps()
				must(t, b.server.Process.Kill()) // and with it its locks
				host.says("has it")
				third := holdLock(t, a.path("f"), kind)
				third.sleeps()
				must(t, third.cmd.Process.Kill())
				_ = third.cmd.Wait() // a killed waiter ends at once
				host.end()
				if !unlocked(t, a.back("f"), kind) {
					t.Error("a lock is left")
				}
			})
		}
	}
}

// sqliteSeconds is how long the processes write to the database.
func sqliteSeconds() string {
	if s := os.Getenv("AGENTSH_SQLITE_SECONDS"); s != "" {
		return s
	}
	return "2"
}

func TestADatabaseIsSharedBySessionsAndTheHost(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE)
	for _, c := range []struct {
		name, journal string
		plain         bool
	}{{"rollback journal", "delete", false}, {"write-ahead log", "wal", false}, {"rollback journal, no passthrough", "delete", true}} {
		t.Run(c.name, func(t *testing.T) {
			a := start(t, options{plain: c.plain})
			b := start(t, options{plain: c.plain, backing: a.backing})
			sqlite := func(file, mode, seconds string) string {
				out, err := exec.Command("python3", "testdata/sqlite.py", file, mode, seconds).CombinedOutput()
				if err != nil {
					t.Errorf("%s: %v: %s", file, err, out)
				}
				return strings.TrimSpace(string(out))
			}
			sqlite(a.back("db"), c.journal, "0")
			var total atomic.Int64
			var all sync.WaitGroup
			for _, file := range []string{a.path("db"), a.path("db"), b.path("db"), a.back("db")} {
				all.Go(func() {
					n, err := strconv.Atoi(sqlite(file, c.journal, sqliteSeconds()))
					if err != nil {
						t.Error(err)
					}
					total.Add(int64(n))
				})
			}
			all.Wait()
			want := fmt.Sprintf("ok %[1]d %[1]d %[1]d", total.Load())
			for _, file := range []string{a.path("db"), b.path("db"), a.back("db")} {
				if got := sqlite(file, "check", "0"); got != want {
					t.Errorf("%s: %s, want %s", file, got, want)
				}
			}
			t.Logf("%d transactions", total.Load())
		})
	}
}

// TestTwoSessionsCommitInOneRepository: commands of two sessions and of the host take
// turns by flock(1), so every commit must succeed and none may be lost.
func TestTwoSessionsCommitInOneRepository(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE)
	a := start(t, options{})
	b := start(t, options{backing: a.backing})
	git := func(dir, script string) {
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", dir, err, out)
		}
	}
	git(a.backing, "git init -q; git commit -q --allow-empty -m first; touch .git/turn")
	const commits = 10
	var all sync.WaitGroup
	for i, dir := range []string{a.dir, b.dir, a.backing} {
		all.Go(func() {
			git(dir, fmt.Sprintf(`for i in $(seq %d); do flock .git/turn sh -ec "echo $i >f%d; git add f%d; git commit -qm $i"; done`, commits, i, i))
		})
	}
	all.Wait()
	for _, dir := range []string{a.dir, b.dir, a.backing} {
		git(dir, fmt.Sprintf("git fsck --strict; test $(git rev-list --count HEAD) = %d; test -z \"$(git status --porcelain)\"", 3*commits+1))
	}
}
