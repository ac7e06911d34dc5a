package launch_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/seccomp"
	"agentsh/supervisor/launch"
)

// confinedName is the argv[0] of a confined server of the tests.
const confinedName = "agentsh-test-confined"

// attempts are what the confined server tries, with what must come of it.
var attempts = []struct {
	name string
	want syscall.Errno
	do   func(tree string) error
}{
	{"execute a program", unix.EPERM, func(string) error { return unix.Exec("", nil, nil) }},
	{"fork", unix.EPERM, func(string) error { return clone(uintptr(unix.SIGCHLD)) }},
	{"make a user namespace", unix.EPERM, func(string) error { return unix.Unshare(unix.CLONE_NEWUSER) }},
	{"open a socket", unix.EPERM, func(string) error { return socket(unix.AF_INET) }},
	{"open a Unix socket", unix.EPERM, func(string) error { return socket(unix.AF_UNIX) }},
	{"trace a process", unix.EPERM, func(string) error {
		_, _, errno := unix.RawSyscall(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0)
		return asError(errno)
	}},
	{"signal its parent", unix.EPERM, func(string) error { return unix.Kill(os.Getppid(), 0) }},
	{"mount", unix.EPERM, func(string) error { return unix.Mount("none", "/", "tmpfs", unix.MS_REMOUNT|unix.MS_BIND, "") }},
	{"change the root", unix.EPERM, func(string) error { return unix.Chroot("/") }},
	{"make a device", unix.EPERM, func(tree string) error { return unix.Mknod(tree+"/dev", unix.S_IFCHR|0o600, 1) }},
	{"read the password file", unix.EACCES, func(string) error { return openFile("/etc/passwd", unix.O_RDONLY) }},
	{"list the root", unix.EACCES, func(string) error { return openFile("/", unix.O_RDONLY|unix.O_DIRECTORY) }},
	{"write outside", unix.EACCES, func(string) error { return openFile("/dev/null", unix.O_WRONLY) }},
	{
		"read the directory beside its tree",
		unix.EACCES,
		func(tree string) error { return openFile(filepath.Dir(tree)+"/beside", unix.O_RDONLY) },
	},
	{"hold opens of others", unix.EPERM, func(string) error { return fanotify(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, 0, "/") }},
	{"watch its mount", unix.EPERM, func(tree string) error { return fanotify(watchGroup, unix.FAN_MARK_MOUNT, tree) }},
	{"watch its filesystem", unix.EPERM, func(tree string) error { return fanotify(watchGroup, unix.FAN_MARK_FILESYSTEM, tree) }},
	{"watch its tree", 0, func(tree string) error { return fanotify(watchGroup, unix.FAN_MARK_ONLYDIR, tree) }},
	{"write in its tree", 0, func(tree string) error { return os.WriteFile(tree+"/f", []byte("x"), 0o600) }},
	{"rename in its tree", 0, func(tree string) error { return os.Rename(tree+"/f", tree+"/d/g") }},
	{"make a FIFO in its tree", 0, func(tree string) error { return unix.Mkfifo(tree+"/fifo", 0o600) }},
	{"read /proc", 0, func(string) error { return openFile("/proc/self/status", unix.O_RDONLY) }},
	{"start a thread", 0, func(string) error {
		done := make(chan struct{})
		go func() { runtime.LockOSThread(); close(done) }() // the thread ends with the goroutine
		<-done
		return nil
	}},
}

func clone(flags uintptr) error {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, flags, 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return asError(errno)
}

// watchGroup are the flags of the group of package fuse/watch.
const watchGroup = unix.FAN_CLASS_NOTIF | unix.FAN_REPORT_DFID_NAME | unix.FAN_CLOEXEC | unix.FAN_NONBLOCK

func fanotify(group uint, mark uint, dir string) error {
	fd, err := unix.FanotifyInit(group, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.FanotifyMark(fd, unix.FAN_MARK_ADD|mark, unix.FAN_CREATE, unix.AT_FDCWD, dir)
}

func asError(errno syscall.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

func socket(family int) error {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func openFile(name string, flags int) error {
	fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// confined is the victim: it tries everything and tells the outcome.
func confined() int {
	files, err := launch.Donations()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	tree, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", files["tree"].Fd()))
	if err != nil || !launch.Confined() {
		fmt.Fprintln(os.Stderr, err, launch.Confined())
		return 1
	}
	for _, a := range attempts {
		err := a.do(tree)
		var errno syscall.Errno
		errors.As(err, &errno) // an error of another kind counts as success and is noticed
		fmt.Fprintf(files["out"], "%d %s\n", int(errno), a.name)
	}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "CapEff:") || strings.HasPrefix(line, "CapPrm:") || strings.HasPrefix(line, "NoNewPrivs:") {
			fmt.Fprintf(files["out"], "%s", line)
		}
	}
	return 0
}

func TestAConfinedServerIsLeftWithItsTrees(t *testing.T) {
	both(t, func(t *testing.T) {
		testenv.Need(t, testenv.Landlock)
		dir := t.TempDir()
		tree := filepath.Join(dir, "tree")
		for _, d := range []string{tree, tree + "/d"} {
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(dir+"/beside", nil, 0o644); err != nil {
			t.Fatal(err)
		}
		filter, err := seccomp.ServerPlan().Compile(runtime.GOARCH)
		if err != nil {
			t.Fatal(err)
		}
		at, err := os.Open(tree)
		if err != nil {
			t.Fatal(err)
		}
		defer at.Close()
		proc, err := os.Open("/proc")
		if err != nil {
			t.Fatal(err)
		}
		defer proc.Close()
		out, theirs := pipe(t)
		server, err := launch.StartConfined(
			confinedName,
			[]launch.Donation{{Name: "tree", File: at}, {Name: "out", File: theirs}},
			launch.Confinement{
				Filter: filter,
				Trees:  []launch.Tree{{File: at, Access: launch.LandlockRead | launch.LandlockWrite}, {File: proc, Access: launch.LandlockRead}},
			},
		)
		if err != nil {
			t.Fatal(err)
		}
		defer server.Kill()
		theirs.Close()
		got := map[string]string{}
		for lines := bufio.NewScanner(out); lines.Scan(); {
			number, name, _ := strings.Cut(lines.Text(), " ")
			number, name = strings.TrimSuffix(number, ":"), strings.TrimSpace(name)
			if field, value, ok := strings.Cut(lines.Text(), ":\t"); ok {
				number, name = value, field
			}
			got[name] = number
		}
		for _, a := range attempts {
			if want := fmt.Sprint(int(a.want)); got[a.name] != want {
				t.Errorf("%s: errno %q, want %s", a.name, got[a.name], want)
			}
		}
		for field, want := range map[string]string{"CapEff": "0000000000000000", "CapPrm": "0000000000000000", "NoNewPrivs": "1"} {
			if got[field] != want {
				t.Errorf("%s is %q, want %s", field, got[field], want)
			}
		}
	})
}
