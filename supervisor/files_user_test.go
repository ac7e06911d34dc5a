package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// TestADeadFileServerBlocksNobody: as root and as user 1000, with a server that is
// stopped and one that is killed while commands read, write and list. The commands
// end, the session says why, no process of it is left in an uninterruptible wait,
// what was synced is there, and the next session works.
func TestADeadFileServerBlocksNobody(t *testing.T) {
	unprivileged := asBoth(t)
	for what, end := range map[string]func(*box) error{
		"killed": func(b *box) error { return unix.Kill(b.files.PID(), unix.SIGKILL) },
		"stopped": func(b *box) error {
			err := unix.Kill(b.files.PID(), unix.SIGSTOP)
			b.files.Watch(time.Millisecond, 100*time.Millisecond) // instead of a minute
			return err
		},
	} {
		cfg, log := testConfig(t, opensPolicy)
		if unprivileged {
			cfg.User = ""
		}
		s, err := Open(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		b := &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
		ended := make(chan string, 1)
		go func() {
			exit, _, err := b.Exec(context.Background(), wire.ExecRequest{ID: "busy", Argv: []string{"sh", "-c",
				"echo kept >f; sync f; mkdir d; (while :; do echo x >>d/$$; done) & (while ls -l d; do :; done) & mkdir e; while :; do cat f; stat none; done"}}, wire.Streams{Stdout: io.Discard, Stderr: io.Discard})
			ended <- fmt.Sprintf("%+v %v", exit, err)
		}()
		waitForFile(t, filepath.Join(cfg.Cwd, "e")) // after all of it was started
		tree := session(t, s.init.PID())
		if err := end(b); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ended:
		case <-time.After(2 * time.Minute):
			t.Fatalf("%s: a command waits for a dead server: %s", what, states(tree))
		}
		if _, _, err := b.Exec(context.Background(), wire.ExecRequest{ID: "after", Argv: []string{"true"}}, wire.Streams{}); !errors.Is(
			err,
			ErrEnded,
		) {
			t.Errorf("%s: a command afterwards: %v", what, err)
		}
		_ = s.Close() // it says what the test asked for
		if left := states(tree); left != "" {
			t.Errorf("%s: left are %s", what, left)
		}
		if data, err := os.ReadFile(filepath.Join(cfg.Cwd, "f")); err != nil || string(data) != "kept\n" {
			t.Errorf("%s: the workspace holds %q, %v", what, data, err)
		}
		again, err := Open(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, out := (&box{Session: again}).run(t, "cat", "f"); out != "kept\n" {
			t.Errorf("%s: the next session reads %q", what, out)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestADirectoryThatCannotBeSearchedIsListed: reading a directory needs its r alone,
// as root and as user 1000, whose server has no right that its user lacks.
func TestADirectoryThatCannotBeSearchedIsListed(t *testing.T) {
	unprivileged := asBoth(t)
	cfg, log := testConfig(t, opensPolicy)
	if unprivileged {
		cfg.User = ""
	}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	b := &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
	for name, c := range map[string]struct{ script, want string }{
		"listed":       {`mkdir a; touch a/f; chmod 600 a; python3 -c 'import os; print(os.listdir("a"))'`, "['f']\n"},
		"read alone":   {`mkdir b; touch b/f; chmod 400 b; python3 -c 'import os; print(os.listdir("b"))'`, "['f']\n"},
		"synced":       {`mkdir c; chmod 600 c; python3 -c 'import os; fd = os.open("c", 0); os.fsync(fd); os.fchmod(fd, 0o711); print(oct(os.fstat(fd).st_mode))'`, "0o40711\n"},
		"moved":        {`mkdir d; touch d/f; chmod 600 d; mv d e; ls e`, "f\n"},
		"not searched": {`mkdir g; touch g/f; chmod 600 g; cat g/f 2>/dev/null || echo no`, "no\n"},
		"not readable": {`mkdir h; touch h/f; chmod 300 h; ls h 2>/dev/null || echo no`, "no\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, out := b.run(t, "sh", "-c", c.script+"; chmod 700 [a-h]"); out != c.want {
				t.Errorf("%q, want %q", out, c.want)
			}
		})
	}
}

// waitForFile waits until a name exists.
func waitForFile(t *testing.T, name string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; <-time.After(time.Millisecond) {
		if _, err := os.Lstat(name); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not appear", name)
		}
	}
}

// session are the processes of the pid namespace of a process, as directories of
// /proc, which stay theirs when a number is used again.
func session(t *testing.T, init int) []*os.File {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	parents := map[string]bool{fmt.Sprint(init): true}
	var out []*os.File
	for grown := true; grown; {
		grown = false
		for _, dir := range all {
			pid := filepath.Base(dir)
			if parents[pid] {
				continue
			}
			stat, err := os.ReadFile(dir + "/stat")
			if err != nil {
				continue
			}
			fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
			if f, err := os.Open(dir); parents[fields[1]] && err == nil {
				parents[pid], grown = true, true
				out = append(out, f)
				t.Cleanup(func() { f.Close() })
			}
		}
	}
	if len(out) < 3 {
		t.Fatalf("only %d processes of the session are seen", len(out))
	}
	return out
}

// states tells which of the processes are there and how they wait.
func states(tree []*os.File) string {
	var out []string
	for _, dir := range tree {
		fd, err := unix.Openat(int(dir.Fd()), "stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		buf := make([]byte, 256)
		n, err := unix.Read(fd, buf)
		_ = unix.Close(fd)
		if err == nil && n > 0 {
			out = append(out, strings.Join(strings.Fields(string(buf[:n]))[:3], " "))
		}
	}
	return strings.Join(out, ", ")
}

// TestFilesOfAUserAreAsInAPlainDirectory: what commands of root's and of a user's session
// see of modes, owners and times is what the user sees without agentsh.
func TestFilesOfAUserAreAsInAPlainDirectory(t *testing.T) {
	unprivileged := asBoth(t)
	const script = `
import errno, os, sys
os.chdir(sys.argv[1])
def told(what, do):
    try: print(what, do())
    except OSError as e: print(what, errno.errorcode[e.errno])
os.makedirs('d/sub'); open('d/a', 'w').close(); open('f', 'w').close()
for mode in 0o444, 0o400, 0o111, 0o555, 0o333, 0:
    os.chmod('d', mode)
    print('mode %o' % mode)
    told('list', lambda: sorted(os.listdir('d')))
    told('list kinds', lambda: sorted((e.name, e.is_dir()) for e in os.scandir('d')))
    told('stat', lambda: os.stat('d/a').st_size)
    told('chdir', lambda: os.chdir('d') or os.chdir('..'))
    told('create', lambda: os.close(os.open('d/new', os.O_CREAT | os.O_EXCL | os.O_WRONLY)) or os.unlink('d/new'))
os.chmod('d', 0o755)
me, us = os.getuid(), os.getgid()
for uid, gid in (12345, -1), (-1, 12345), (0, 0), (me, us), (-1, -1), (me, -1), (-1, us), (me, 4711):
    name = '%s %s' % (('me' if uid == me else uid), ('us' if gid == us else gid))
    told('chown ' + name, lambda: os.chown('f', uid, gid))
    told('lchown ' + name, lambda: os.lchown('f', uid, gid))
    fd = os.open('f', os.O_RDONLY)
    told('fchown ' + name, lambda: os.fchown(fd, uid, gid))
    os.close(fd)
`
	cfg, log := testConfig(t, opensPolicy)
	if unprivileged {
		cfg.User = ""
	}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
	defer s.Close()
	exit, got := b.run(t, "python3", "-c", script, ".")
	if exit.Code != 0 {
		t.Fatalf("%+v: %s", exit, got)
	}
	plain := exec.Command("env", "PATH=/usr/bin:/bin", "python3", "-c", script, t.TempDir())
	if !unprivileged { // as commands of the session: not as root
		dir := t.TempDir()
		for _, d := range []string{dir, filepath.Dir(dir)} {
			if err := os.Chmod(d, 0o777); err != nil {
				t.Fatal(err)
			}
		}
		plain = exec.Command("setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups",
			"env", "PATH=/usr/bin:/bin", "python3", "-c", script, dir)
	}
	out, err := plain.CombinedOutput()
	if want := string(out); err != nil || got != want {
		t.Errorf("the session says\n%s\na plain directory, %v\n%s", got, err, want)
	}
}
