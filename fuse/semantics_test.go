package fuse

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

// semantics are sequences of calls that must come out on a mount as in a plain
// directory: each writes what came of its calls, and both texts are compared.
var semantics = []struct {
	name   string
	differ string // what the mount says instead, by decision
	do     func(c *calls)
}{
	{name: "rename over what is there", do: func(c *calls) {
		c.file("a", "a")
		c.file("b", "b")
		c.mkdir("d", "e", "full", "full/x")
		c.say("file over file", unix.Rename(c.p("a"), c.p("b")))
		c.read("b")
		c.say("file over directory", unix.Rename(c.p("b"), c.p("d")))
		c.say("directory over file", unix.Rename(c.p("d"), c.p("b")))
		c.say("directory over empty", unix.Rename(c.p("d"), c.p("e")))
		c.say("directory over full", unix.Rename(c.p("e"), c.p("full")))
		c.say("directory into itself", unix.Rename(c.p("full"), c.p("full/x/y")))
		c.say("missing", unix.Rename(c.p("none"), c.p("x")))
		c.say("onto itself", unix.Rename(c.p("b"), c.p("b")))
		c.list("")
	}},
	{name: "renameat2", do: func(c *calls) {
		c.file("a", "1")
		c.file("b", "2")
		c.mkdir("d", "d/in")
		c.say("noreplace over", c.rename2("a", "b", unix.RENAME_NOREPLACE))
		c.say("noreplace to new", c.rename2("a", "c", unix.RENAME_NOREPLACE))
		c.say("exchange", c.rename2("c", "b", unix.RENAME_EXCHANGE))
		c.say("exchange of file and directory", c.rename2("c", "d", unix.RENAME_EXCHANGE))
		c.say("exchange with missing", c.rename2("c", "none", unix.RENAME_EXCHANGE))
		c.say("both flags", c.rename2("c", "b", unix.RENAME_EXCHANGE|unix.RENAME_NOREPLACE))
		c.say("unknown flag", c.rename2("c", "b", 1<<10))
		c.read("b")
		c.read("d")
		c.list("")
		c.list("c")
	}},
	{name: "whiteouts are refused", differ: "whiteout: invalid argument\n", do: func(c *calls) {
		c.file("a", "")
		c.say("whiteout", c.rename2("a", "b", unix.RENAME_WHITEOUT))
	}},
	{name: "files without a name are refused", differ: "tmpfile: operation not supported\n", do: func(c *calls) {
		fd, err := unix.Open(c.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		c.say("tmpfile", err)
		if err == nil {
			closeFD(fd)
		}
	}},
	{name: "link counts", do: func(c *calls) {
		c.file("a", "x")
		c.mkdir("d", "d/e", "d/f")
		c.say("link", unix.Link(c.p("a"), c.p("b")))
		c.say("link over", unix.Link(c.p("a"), c.p("b")))
		c.say("link of directory", unix.Link(c.p("d"), c.p("g")))
		c.say("link of missing", unix.Link(c.p("none"), c.p("g")))
		c.nlink("a")
		c.nlink("d")
		c.say("unlink", unix.Unlink(c.p("a")))
		c.nlink("b")
		c.say("rmdir", unix.Rmdir(c.p("d/e")))
		c.nlink("d")
		c.say("rename between names of one file", unix.Rename(c.p("b"), c.p("b")))
		c.say("unlink of directory", unix.Unlink(c.p("d")))
		c.say("rmdir of file", unix.Rmdir(c.p("b")))
		c.say("rmdir of full", unix.Rmdir(c.p("d")))
	}},
	{name: "an open file without a name", do: func(c *calls) {
		c.file("a", "text")
		fd := c.open("a", unix.O_RDWR, 0)
		defer closeFD(fd)
		c.say("unlink", unix.Unlink(c.p("a")))
		c.fstat("open", fd)
		_, err := unix.Pwrite(fd, []byte("more"), 4)
		c.say("write", err)
		c.say("truncate", unix.Ftruncate(fd, 6))
		c.say("chmod", unix.Fchmod(fd, 0o600))
		c.fstat("after", fd)
		buf := make([]byte, 10)
		n, err := unix.Pread(fd, buf, 0)
		c.say(fmt.Sprintf("read %q", buf[:max(n, 0)]), err)
	}},
	{name: "flags of open", do: func(c *calls) {
		c.file("a", "text")
		c.mkdir("d")
		c.say("symlink", unix.Symlink("a", c.p("l")))
		c.say("loop", unix.Symlink("loop", c.p("loop")))
		for _, o := range []struct {
			name  string
			flags int
		}{
			{"a", unix.O_RDONLY}, {"a", unix.O_CREAT | unix.O_EXCL | unix.O_RDWR}, {"a", unix.O_DIRECTORY}, {"d", unix.O_DIRECTORY},
			{"d", unix.O_WRONLY}, {"d", unix.O_RDWR}, {"l", unix.O_NOFOLLOW}, {"l", unix.O_RDONLY}, {"loop", unix.O_RDONLY},
			{"l", unix.O_CREAT | unix.O_EXCL | unix.O_RDWR}, {"none", unix.O_RDONLY}, {"none/x", unix.O_CREAT | unix.O_RDWR},
			{"a/x", unix.O_RDONLY}, {"a", unix.O_WRONLY | unix.O_TRUNC}, {"l", unix.O_PATH | unix.O_NOFOLLOW}, {"d/new",
				unix.O_CREAT | unix.O_RDONLY},
		} {
			fd, err := unix.Open(c.p(o.name), o.flags|unix.O_CLOEXEC, 0o644)
			c.say(fmt.Sprintf("open %s %#x", o.name, o.flags), err)
			if err == nil {
				closeFD(fd)
			}
		}
		c.read("a")
	}},
	{name: "appending", do: func(c *calls) {
		a, b := c.open("a", unix.O_CREAT|unix.O_WRONLY|unix.O_APPEND, 0o644), c.open("a", unix.O_WRONLY|unix.O_APPEND, 0)
		defer closeFD(a)
		defer closeFD(b)
		for i := range 20 {
			_, err := unix.Write([]int{a, b}[i%2], []byte{byte('a' + i)})
			c.say("append", err)
		}
		c.read("a")
	}},
	{name: "names", do: func(c *calls) {
		for _, name := range []string{strings.Repeat("n", 255), strings.Repeat("n", 256), "\xff\xfe not UTF-8", "new\nline", "with\\back", " ",
			"...", strings.Repeat("ü", 127)} {
			c.say(fmt.Sprintf("make %q", name), os.WriteFile(c.p(name), []byte(name), 0o644))
			c.read(name)
		}
		c.list("")
	}},
	{name: "sticky and set-group-id directories", do: func(c *calls) {
		c.mkdir("t", "g")
		c.say("sticky", unix.Chmod(c.p("t"), 0o1777))
		c.say("setgid", unix.Chmod(c.p("g"), 0o2775))
		c.mkdir("g/sub")
		c.file("t/f", "x")
		c.say("unlink in sticky", unix.Unlink(c.p("t/f")))
		for _, name := range []string{"t", "g", "g/sub"} {
			c.stat(name)
		}
	}},
	{name: "times", do: func(c *calls) {
		c.file("a", "x")
		c.say("symlink", unix.Symlink("a", c.p("l")))
		at := func(name string, flags int, times ...unix.Timespec) {
			c.say("utimens "+name, unix.UtimesNanoAt(unix.AT_FDCWD, c.p(name), times, flags))
			var st unix.Stat_t
			c.say("stat", unix.Fstatat(unix.AT_FDCWD, c.p(name), &st, unix.AT_SYMLINK_NOFOLLOW))
			c.log("%d.%09d %d.%09d\n", st.Atim.Sec, st.Atim.Nsec, st.Mtim.Sec, st.Mtim.Nsec)
		}
		at("a", 0, unix.Timespec{Sec: 1, Nsec: 123456789}, unix.Timespec{Sec: 1 << 31, Nsec: 999999999})
		at("a", 0, unix.Timespec{Nsec: unix.UTIME_OMIT}, unix.Timespec{Sec: 5})
		at("a", 0, unix.Timespec{Sec: 6}, unix.Timespec{Nsec: unix.UTIME_OMIT})
		at("l", unix.AT_SYMLINK_NOFOLLOW, unix.Timespec{Sec: 7}, unix.Timespec{Sec: 8})
	}},
	{name: "truncation", do: func(c *calls) {
		c.file("a", "0123456789")
		c.say("longer", unix.Truncate(c.p("a"), 20))
		c.read("a")
		c.say("shorter", unix.Truncate(c.p("a"), 3))
		c.say("longer again", unix.Truncate(c.p("a"), 8))
		c.read("a")
		c.say("negative", unix.Truncate(c.p("a"), -1))
		c.mkdir("d")
		c.say("directory", unix.Truncate(c.p("d"), 1))
		fd := c.open("a", unix.O_RDONLY, 0)
		defer closeFD(fd)
		c.say("not open for writing", unix.Ftruncate(fd, 1))
	}},
	{name: "holes", do: func(c *calls) {
		fd := c.open("a", unix.O_CREAT|unix.O_RDWR, 0o644)
		defer closeFD(fd)
		const mib = 1 << 20
		for _, off := range []int64{0, 8 * mib} {
			_, err := unix.Pwrite(fd, bytes.Repeat([]byte{1}, mib), off)
			c.say("write", err)
		}
		c.say("punch", unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 8*mib, mib/2))
		for _, s := range []struct{ off, whence int }{{0, unix.SEEK_HOLE}, {mib, unix.SEEK_DATA}, {2 * mib, unix.SEEK_HOLE}, {9 * mib,
			unix.SEEK_DATA}, {10 * mib, unix.SEEK_HOLE}} {
			at, err := unix.Seek(fd, int64(s.off), s.whence)
			c.say(fmt.Sprintf("seek %d %d is %d", s.off, s.whence, at), err)
		}
		c.say("reserve", unix.Fallocate(fd, 0, 9*mib, mib))
		c.say("reserve beyond", unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 20*mib, mib))
		c.fstat("reserved", fd)
		c.say("huge", unix.Ftruncate(fd, 100<<30))
		_, err := unix.Pwrite(fd, []byte("end"), 100<<30-3)
		c.say("write at the end", err)
		c.fstat("huge", fd)
	}},
	{name: "copies within the kernel", do: func(c *calls) {
		c.file("a", strings.Repeat("0123456789", 10000))
		from, to := c.open("a", unix.O_RDONLY, 0), c.open("b", unix.O_CREAT|unix.O_RDWR, 0o644)
		defer closeFD(from)
		defer closeFD(to)
		off, at := int64(5), int64(100)
		n, err := unix.CopyFileRange(from, &off, to, &at, 50_000, 0)
		c.say(fmt.Sprintf("copied %d, at %d and %d", n, off, at), err)
		_, err = unix.CopyFileRange(to, nil, from, nil, 10, 0)
		c.say("to one open for reading", err)
		c.fstat("copy", to)
		c.read("b")
	}},
	{name: "shared mappings", do: func(c *calls) {
		c.file("a", strings.Repeat("x", 10000))
		fd, other := c.open("a", unix.O_RDWR, 0), c.open("a", unix.O_RDWR, 0)
		defer closeFD(fd)
		defer closeFD(other)
		mem, err := unix.Mmap(fd, 0, 10000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		c.say("map", err)
		copy(mem[5000:], "mapped")
		buf := make([]byte, 6)
		_, err = unix.Pread(other, buf, 5000)
		c.say(fmt.Sprintf("the other sees %q", buf), err)
		_, err = unix.Pwrite(other, []byte("written"), 9000)
		c.say(fmt.Sprintf("the mapping sees %q", mem[9000:9007]), err)
		c.say("sync", unix.Msync(mem, unix.MS_SYNC))
		c.say("unmap", unix.Munmap(mem))
		c.read("a")
	}},
	{name: "attributes", do: func(c *calls) {
		c.file("a", "x")
		c.mkdir("d")
		for _, name := range []string{"a", "d"} {
			c.say("set", unix.Setxattr(c.p(name), "user.one", []byte("1"), 0))
			c.say("set again", unix.Setxattr(c.p(name), "user.one", []byte("2"), unix.XATTR_CREATE))
			c.say("replace missing", unix.Setxattr(c.p(name), "user.two", []byte("2"), unix.XATTR_REPLACE))
			c.say("empty", unix.Setxattr(c.p(name), "user.empty", nil, 0))
			buf := make([]byte, 100)
			n, err := unix.Getxattr(c.p(name), "user.one", buf)
			c.say(fmt.Sprintf("get %q", buf[:max(n, 0)]), err)
			n, err = unix.Getxattr(c.p(name), "user.one", nil)
			c.say(fmt.Sprintf("size %d", n), err)
			_, err = unix.Getxattr(c.p(name), "user.none", buf)
			c.say("get missing", err)
			c.say("remove", unix.Removexattr(c.p(name), "user.one"))
			c.say("remove again", unix.Removexattr(c.p(name), "user.one"))
			c.say("unknown space", unix.Setxattr(c.p(name), "wrong.one", []byte("1"), 0))
		}
	}},
	{name: "special files", do: func(c *calls) {
		c.say("fifo", unix.Mkfifo(c.p("fifo"), 0o640))
		c.stat("fifo")
		r, err := unix.Open(c.p("fifo"), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		c.say("open to read", err)
		w := c.open("fifo", unix.O_WRONLY|unix.O_NONBLOCK, 0)
		_, err = unix.Write(w, []byte("through"))
		c.say("write", err)
		buf := make([]byte, 10)
		n, err := unix.Read(r, buf)
		c.say(fmt.Sprintf("read %q", buf[:max(n, 0)]), err)
		closeFD(r)
		closeFD(w)
		c.say("socket", bindSocket(c.p("s")))
		c.stat("s")
		c.say("open socket", openOnce(c.p("s")))
		c.say("long link", unix.Symlink(strings.Repeat("x", 4095), c.p("long")))
		text, err := os.Readlink(c.p("long"))
		c.say(fmt.Sprintf("its text has %d bytes", len(text)), err)
		c.say("empty link", unix.Symlink("", c.p("nothing")))
	}},
	{name: "removed directories", do: func(c *calls) {
		c.mkdir("d")
		fd := c.open("d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		defer closeFD(fd)
		c.say("rmdir", unix.Rmdir(c.p("d")))
		_, err := unix.Openat(fd, "f", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
		c.say("create in it", err)
		c.say("mkdir in it", unix.Mkdirat(fd, "g", 0o755))
		c.say("rmdir again", unix.Rmdir(c.p("d")))
		c.say("of dot", unix.Rmdir(c.p(".")+"/."))
	}},
	{name: "modes", do: func(c *calls) {
		old := unix.Umask(0o027)
		c.file("a", "")
		c.mkdir("d")
		unix.Umask(old)
		c.stat("a")
		c.stat("d")
		c.say("chmod", unix.Chmod(c.p("a"), 0o1705))
		c.stat("a")
		c.say("chown to itself", unix.Chown(c.p("a"), -1, -1))
	}},
	{name: "locks between processes", do: func(c *calls) {
		c.file("a", "0123456789")
		fd := c.open("a", unix.O_RDWR, 0)
		defer closeFD(fd)
		c.say("lock", unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 2, Len: 3}))
		c.other("a", "posix")
		c.say("unlock", unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_UNLCK}))
		c.other("a", "posix")
		c.say("flock", unix.Flock(fd, unix.LOCK_SH))
		c.other("a", "flock")
		c.say("unlock", unix.Flock(fd, unix.LOCK_UN))
		c.other("a", "flock")
		c.say("lock of the description", unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Start: 2, Len: 3}))
		c.other("a", "posix")
	}},
}

// calls is one run of such a sequence in a directory.
type calls struct {
	t   *testing.T
	dir string
	out strings.Builder
}

func (c *calls) p(name string) string { return filepath.Join(c.dir, name) }

func (c *calls) log(format string, args ...any) { fmt.Fprintf(&c.out, format, args...) }

// say writes what came of a call.
func (c *calls) say(what string, err error) {
	var errno syscall.Errno
	switch {
	case err == nil:
		c.log("%s\n", what)
	case errors.As(err, &errno):
		c.log("%s: %v\n", what, errno)
	default:
		c.log("%s: %v\n", what, err)
	}
}

func (c *calls) file(name, text string) {
	c.say("make "+name, os.WriteFile(c.p(name), []byte(text), 0o666))
}

func (c *calls) mkdir(names ...string) {
	for _, name := range names {
		c.say("mkdir "+name, unix.Mkdir(c.p(name), 0o777))
	}
}

func (c *calls) open(name string, flags int, perm uint32) int {
	c.t.Helper()
	fd, err := unix.Open(c.p(name), flags|unix.O_CLOEXEC, perm)
	must(c.t, err)
	return fd
}

func openOnce(name string) error {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		closeFD(fd)
	}
	return err
}

func (c *calls) rename2(from, to string, flags uint) error {
	return unix.Renameat2(unix.AT_FDCWD, c.p(from), unix.AT_FDCWD, c.p(to), flags)
}

func (c *calls) read(name string) {
	data, err := os.ReadFile(c.p(name))
	c.say(fmt.Sprintf("%q holds %q", name, data), err)
}

func (c *calls) list(name string) {
	entries, err := os.ReadDir(c.p(name))
	c.say(fmt.Sprintf("%s has %q", name, fmt.Sprint(entries)), err)
}

func (c *calls) stat(name string) {
	var st unix.Stat_t
	err := unix.Lstat(c.p(name), &st)
	c.say(fmt.Sprintf("%s is %o of %d bytes", name, st.Mode, st.Size*int64(b2i(st.Mode&unix.S_IFMT == unix.S_IFREG))), err)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (c *calls) fstat(what string, fd int) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	c.say(fmt.Sprintf("%s: %o, %d bytes, %d names", what, st.Mode, st.Size, st.Nlink), err)
}

func (c *calls) nlink(name string) {
	var st unix.Stat_t
	err := unix.Stat(c.p(name), &st)
	c.say(fmt.Sprintf("%s has %d names", name, st.Nlink), err)
}

// other has another process try a lock.
func (c *calls) other(name, kind string) {
	c.t.Helper()
	cmd := exec.Command("/proc/self/exe", c.p(name), kind)
	cmd.Args[0] = lockerName
	out, err := cmd.CombinedOutput()
	must(c.t, err)
	c.log("another process, %s: %s\n", kind, out)
}

// lockerName is the argv[0] of a process that tries to lock a file.
const lockerName = "agentsh-locker"

func lockForTest(file, kind string) int {
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil && kind == "flock" {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	} else if err == nil {
		err = unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	}
	fmt.Fprint(os.Stdout, err)
	return 0
}

func TestCallsComeOutAsInAPlainDirectory(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE)
	for _, s := range semantics {
		base := t.TempDir()
		native := &calls{t: t, dir: filepath.Join(base, "native")}
		must(t, os.Mkdir(native.dir, 0o755))
		s.do(native)
		want := native.out.String()
		if s.differ != "" {
			want = ""
			for line := range strings.Lines(native.out.String()) {
				if word, _, _ := strings.Cut(s.differ, ":"); !strings.HasPrefix(line, word) {
					want += line
				}
			}
			want += s.differ
		}
		for mode, plain := range map[string]bool{"": false, ", no passthrough": true} {
			t.Run(s.name+mode, func(t *testing.T) {
				m := start(t, options{plain: plain, backing: filepath.Join(base, "backing"+mode)})
				mounted := &calls{t: t, dir: m.dir}
				s.do(mounted)
				if got := mounted.out.String(); got != want {
					t.Errorf("the mount says\n%s\na plain directory\n%s", got, want)
				}
			})
		}
	}
}
