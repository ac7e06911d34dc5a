package target

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

// own opens the test's own process.
func own(t *testing.T) *Target {
	t.Helper()
	o, err := Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Close)
	return o
}

// hole maps readable pages of a file, and one behind its end.
func hole(t *testing.T, readable int) ([]byte, uint64) {
	t.Helper()
	size := os.Getpagesize()
	fd, err := unix.MemfdCreate("hole", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(readable*size)); err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(fd, 0, (readable+1)*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(m) })
	return m[:readable*size], uint64(uintptr(unsafe.Pointer(&m[0])))
}

func TestStringsAreReadPageByPage(t *testing.T) {
	o := own(t)
	m, at := hole(t, 3)
	end := at + uint64(len(m))
	for i := range m {
		m[i] = 'x'
	}
	long := len(m) - 1
	m[long] = 0
	m[100] = 0
	for _, c := range []struct {
		name  string
		addr  uint64
		limit int
		want  string
		err   error
	}{
		{"at the start of a page", at, 4096, strings.Repeat("x", 100), nil},
		{"over several pages, to the last byte before the hole", at + 101, 1 << 20, strings.Repeat("x", long-101), nil},
		{"the last byte", end - 1, 4096, "", nil},
		{"exactly as long as allowed", at + 90, 11, strings.Repeat("x", 10), nil},
		{"one byte longer than allowed", at + 90, 10, "", ErrTooLong},
		{"longer than allowed, over pages", at + 101, 5000, "", ErrTooLong},
		{"in the hole", end, 4096, "", ErrFault},
		{"null", 0, 4096, "", ErrFault},
		{"an address of the kernel", 1<<63 + 4096, 4096, "", ErrFault},
		{"an address beyond the last page", ^uint64(0) - 3, 4096, "", ErrFault},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := o.String(c.addr, c.limit)
			if got != c.want || !errors.Is(err, c.err) {
				t.Errorf("got %d bytes %v, want %d %v", len(got), err, len(c.want), c.err)
			}
		})
	}
	fresh := own(t) // the pages read before are not read again
	m[long] = 'x'
	if got, err := fresh.String(at+101, 1<<20); !errors.Is(err, ErrFault) {
		t.Errorf("a string that runs into the hole gave %d bytes %v", len(got), err)
	}
}

func TestVectorsAreBounded(t *testing.T) {
	o := own(t)
	m, at := hole(t, 1)
	copy(m[2048:], "one\x00two\x00")
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&m[0])), len(m)/8)
	words[0], words[1] = at+2048, at+2052
	caps := Caps{Count: 2, String: 4, Total: 24}
	read := func(addr uint64, caps Caps) ([]string, error) { return o.Strings(addr, caps) }
	if got, err := read(at, caps); err != nil || !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("got %q %v", got, err)
	}
	if got, err := read(0, caps); err != nil || got != nil {
		t.Errorf("no vector gave %q %v", got, err)
	}
	for name, c := range map[string]Caps{
		"count":  {Count: 1, String: 4, Total: 24},
		"string": {Count: 2, String: 3, Total: 24},
		"total":  {Count: 2, String: 4, Total: 15},
	} {
		if got, err := read(at, c); !errors.Is(err, ErrTooBig) || !errors.Is(err, unix.E2BIG) {
			t.Errorf("over the cap of %s: %q %v", name, got, err)
		}
	}
	last := len(words) - 1
	words[last] = at + 2048
	o = own(t) // the pages read before are not read again
	if got, err := read(at+uint64(8*last), caps); !errors.Is(err, ErrFault) {
		t.Errorf("a vector that runs into the hole gave %q %v", got, err)
	}
	if got, err := read(at+uint64(8*last)+4, caps); !errors.Is(err, ErrFault) {
		t.Errorf("a pointer across the hole gave %q %v", got, err)
	}
}

func TestOpenRefusesThreadsThatAreNotThere(t *testing.T) {
	for _, tid := range []int{0, -1, 1 << 22} {
		if o, err := Open(tid); err == nil {
			o.Close()
			t.Errorf("thread %d was opened", tid)
		}
	}
}

func TestIdentityNamesTheProcessOfAThread(t *testing.T) {
	o, err := Open(unix.Gettid())
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	got, err := o.Identity()
	if err != nil || got.PID != os.Getpid() || got.Parent != os.Getppid() || got.Start == 0 {
		t.Errorf("got %+v %v", got, err)
	}
	again, err := Identify(os.Getpid())
	if err != nil || again != got {
		t.Errorf("got %+v %v, want %+v", again, err, got)
	}
	wd, _ := os.Getwd()
	exe, _ := os.Executable()
	if o.Cwd() != wd || o.Exe() != exe {
		t.Errorf("cwd %q exe %q", o.Cwd(), o.Exe())
	}
}

func TestStatFilesWithAnyNameAreRead(t *testing.T) {
	rest := " S 7 3 3 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 5 0 424242 9 9"
	for _, name := range []string{"(sh)", "(a b)", "(a) S 1 (b)", "(\n)"} {
		if s, err := parseStat([]byte("12 " + name + rest)); err != nil || s != (stat{parent: 7, group: 3, threads: 5, start: 424242}) {
			t.Errorf("%q: %+v %v", name, s, err)
		}
	}
	for _, bad := range []string{"", "12 (sh) S", "12 (sh)" + strings.Replace(rest, "424242", "x", 1)} {
		if s, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q: %+v", bad, s)
		}
	}
}

// A process that is reaped while its file is read is no error in a list of processes: a signal
// to a group would be denied because of a process that has nothing to do with it.
func TestAProcessThatIsReapedWhileItIsReadIsMissing(t *testing.T) {
	if s, err := parseStat([]byte("12 (sh) X 0 -1 -1 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 0 0 424242 9 9")); !errors.Is(err, unix.ESRCH) {
		t.Errorf("%+v %v", s, err)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (sh) S 7 3 3 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 5 0 424242 9 9"))
	f.Fuzz(func(_ *testing.T, text []byte) { _, _ = parseStat(text) })
}

func TestPathsAreMadeRelativeToARoot(t *testing.T) {
	for _, c := range []struct {
		path, root, want string
		ok               bool
	}{
		{"/bin/ls", "/", "/bin/ls", true},
		{"/jail/bin/ls", "/jail", "/bin/ls", true},
		{"/jail", "/jail", "/", true},
		{"/jailer/bin/ls", "/jail", "", false},
		{"/bin/ls", "/jail", "", false},
		{"pipe:[12]", "/", "", false},
		{"(unreachable)/x", "/", "", false},
	} {
		if got, ok := insideRoot(c.path, c.root); ok != c.ok || ok && got != c.want {
			t.Errorf("%s in %s: %q %v", c.path, c.root, got, ok)
		}
	}
}

// jail is a shell in a mount and pid namespace of its own. root is a directory
// it has chrooted to, or empty.
func jail(t *testing.T, root string) *Target {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.Program("unshare"))
	// The shell's inner pid is 1; it holds descriptors 7 and 8.
	script := "mount -t proc proc " + root + "/proc; exec "
	if root != "" {
		script += "chroot " + root + " "
	}
	script += "/bin/sh -c 'cd /etc; exec 7</bin/sh 8</etc; echo ready; read x'"
	cmd := exec.Command("unshare", "-m", "-p", "-f", "sh", "-c", script)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the shell said %q %v", line, err)
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/task/" + strconv.Itoa(cmd.Process.Pid) + "/children")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	o, err := Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Close)
	return o
}

func TestPathsMeanWhatTheyMeanToTheThread(t *testing.T) {
	sh, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	for name, chroot := range map[string]bool{"in another pid namespace": false, "in another root": true} {
		t.Run(name, func(t *testing.T) {
			root := ""
			if chroot {
				root = tree(t)
			}
			o := jail(t, root)
			for _, c := range []struct {
				l    Lookup
				want string
				err  error
			}{
				{Lookup{Dir: unix.AT_FDCWD, Path: "/bin/sh"}, sh, nil},
				{Lookup{Dir: unix.AT_FDCWD, Path: "../bin/sh"}, sh, nil},
				{Lookup{Dir: unix.AT_FDCWD, Path: "../../../../bin/sh"}, sh, nil},
				{Lookup{Dir: 8, Path: "../bin/sh"}, sh, nil},
				{Lookup{Dir: 8, Path: "passwd"}, "/etc/passwd", nil},
				{Lookup{Dir: unix.AT_FDCWD, Path: "passwd"}, "/etc/passwd", nil},
				{Lookup{Dir: 7, Path: ""}, sh, nil},
				{Lookup{Dir: unix.AT_FDCWD, Path: "/proc/self/exe"}, sh, nil},
				{Lookup{Dir: unix.AT_FDCWD, Path: "/proc/thread-self/exe"}, sh, nil},
				{Lookup{Dir: unix.AT_FDCWD, Path: "/proc/self/fd/7"}, sh, nil},
				{Lookup{Dir: unix.AT_FDCWD, Path: "/proc/self/fd/8/passwd"}, "/etc/passwd", nil},
				{Lookup{Dir: unix.AT_FDCWD, Path: "/proc/self/cwd/passwd"}, "/etc/passwd", nil},
				{Lookup{Dir: unix.AT_FDCWD, Path: "/proc/self/root/bin/sh"}, sh, nil},
				{Lookup{Dir: unix.AT_FDCWD, Path: "/proc/1/root/../../bin/./sh"}, sh, nil},
				{Lookup{Dir: unix.AT_FDCWD, Path: "/proc/self/../../bin/sh"}, sh, nil},
				{Lookup{Dir: unix.AT_FDCWD, Path: "/bin/missing"}, "", unix.ENOENT},
				{Lookup{Dir: unix.AT_FDCWD, Path: "/etc/passwd/x"}, "", unix.ENOTDIR},
				{Lookup{Dir: unix.AT_FDCWD, Path: ""}, "", unix.ENOENT},
				{Lookup{Dir: 99, Path: "x"}, "", unix.EBADF},
				{Lookup{Dir: 7, Path: "x"}, "", unix.ENOTDIR},
				{Lookup{Dir: unix.AT_FDCWD, Path: "/proc/self/fd/99"}, "", unix.ENOENT},
				{Lookup{Dir: unix.AT_FDCWD, Path: "/proc/self/exe", NoFollow: true}, "", unix.ELOOP},
			} {
				h, err := o.Resolve(c.l)
				if err != nil {
					if c.err == nil || !errors.Is(err, c.err) {
						t.Errorf("%+v: %v, want %q %v", c.l, err, c.want, c.err)
					}
					continue
				}
				if c.err != nil || h.Path != c.want {
					t.Errorf("%+v: %q, want %q %v", c.l, h.Path, c.want, c.err)
				}
				h.Close()
			}
			if o.Cwd() != "/etc" || o.Exe() != sh {
				t.Errorf("cwd %q exe %q", o.Cwd(), o.Exe())
			}
		})
	}
}

// tree makes a root with a shell and its libraries.
func tree(t *testing.T) string {
	t.Helper()
	testenv.Need(t, testenv.Program("busybox"))
	root := t.TempDir()
	sh, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"bin", "etc", "proc", filepath.Dir(sh)} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// A multi-call program goes by its name, so the shell's name must be kept.
	for name, content := range map[string][]byte{sh: data, "/etc/passwd": []byte("x")} {
		if err := os.WriteFile(filepath.Join(root, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(sh, filepath.Join(root, "bin/sh")); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestFilesOutsideTheRootAreRefused(t *testing.T) {
	o := jail(t, tree(t))
	outside, err := os.Open("/etc")
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	fd, err := unix.Openat(int(outside.Fd()), "passwd", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	h := &Handle{fd: fd}
	defer h.Close()
	if err := unix.Fstat(fd, &h.Stat); err != nil {
		t.Fatal(err)
	}
	if err := o.name(h, false); !errors.Is(err, unix.EACCES) {
		t.Errorf("a file outside is %q %v", h.Path, err)
	}
}

func TestAThreadsIDsAreRead(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	o, err := OpenView(unix.Gettid())
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for number, want := range map[int]bool{os.Getpid(): true, unix.Gettid(): true, os.Getppid(): false, 1: false, 0: false,
		-os.Getpid(): false} {
		name, own, err := o.Identify(number)
		if err != nil || own != want || own && name != filepath.Base(program) {
			t.Errorf("%d: own is %v, program %q, %v", number, own, name, err)
		}
	}
}
