package fuse

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// readOnly keeps WS/ro as it is, hides what WS/secret holds and allows the rest.
const readOnly = `
file_rules:
  - {name: keep, paths: ["WS/ro", "WS/ro/**"], operations: [read, list, stat, execute], decision: allow}
  - {name: kept, paths: ["WS/ro", "WS/ro/**"], operations: ["*"], decision: deny}
  - {name: hidden, paths: ["WS/secret", "WS/secret/**"], operations: ["*"], decision: deny}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`

// operation is one way to change or read what is in dir. Each dir holds f, x,
// link (to f), sub and sub/f.
type operation struct {
	name string
	op   string // the operation an event names when it is denied
	do   func(dir string) error
}

func openWith(flags int, perm uint32) func(string) error {
	return func(dir string) error {
		fd, err := unix.Open(filepath.Join(dir, "f"), flags|unix.O_CLOEXEC, perm)
		if err == nil {
			closeFD(fd)
		}
		return err
	}
}

func in(name string, do func(string) error) func(string) error {
	return func(dir string) error { return do(filepath.Join(dir, name)) }
}

var now = []unix.Timespec{{Sec: 1}, {Sec: 2}}

var changingOperations = []operation{
	{"open for writing", "write", openWith(unix.O_WRONLY, 0)},
	{"open for reading and writing", "write", openWith(unix.O_RDWR, 0)},
	{"open to append", "write", openWith(unix.O_WRONLY|unix.O_APPEND, 0)},
	{"open with truncation", "write", openWith(unix.O_WRONLY|unix.O_TRUNC, 0)},
	{"open for reading with truncation", "write", openWith(unix.O_RDONLY|unix.O_TRUNC, 0)},
	{"truncate by name", "write", in("f", func(p string) error { return unix.Truncate(p, 1) })},
	{"create a file", "create", in("new", func(p string) error { return os.WriteFile(p, nil, 0o644) })},
	{"create a file exclusively", "create", in("new2", func(p string) error {
		fd, err := unix.Open(p, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, 0o600)
		if err == nil {
			closeFD(fd)
		}
		return err
	})},
	{"mknod of a regular file", "create", in("node", func(p string) error { return unix.Mknod(p, unix.S_IFREG|0o644, 0) })},
	{"mknod of a FIFO", "mknod", in("fifo", func(p string) error { return unix.Mkfifo(p, 0o644) })},
	{"bind of a Unix socket", "mknod", in("s", bindSocket)},
	{"mkdir", "mkdir", in("newdir", func(p string) error { return unix.Mkdir(p, 0o755) })},
	{"symlink", "symlink", in("newlink", func(p string) error { return unix.Symlink("f", p) })},
	{"link within the directory", "link", func(d string) error { return unix.Link(d+"/f", d+"/f2") }},
	{"link from elsewhere", "link", func(d string) error { return unix.Link(free(d, "f"), d+"/f3") }},
	{"link to elsewhere", "link", func(d string) error { return unix.Link(d+"/f", free(d, ""+filepath.Base(d))+"-f") }},
	{"chmod", "chmod", in("f", func(p string) error { return unix.Chmod(p, 0o600) })},
	{"fchmodat of a directory", "chmod", in("sub", func(p string) error { return unix.Chmod(p, 0o700) })},
	{"fchmod", "chmod", in("f", func(p string) error {
		fd, err := unix.Open(p, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		return unix.Fchmod(fd, 0o600)
	})},
	{"chown", "chown", in("f", func(p string) error { return unix.Chown(p, 0, 0) })},
	{"lchown of a link", "chown", in("link", func(p string) error { return unix.Lchown(p, 0, 0) })},
	{"utimensat", "utime", in("f", func(p string) error { return unix.UtimesNanoAt(unix.AT_FDCWD, p, now, 0) })},
	{"utimensat of a link", "utime", in("link", func(p string) error {
		return unix.UtimesNanoAt(unix.AT_FDCWD, p, now, unix.AT_SYMLINK_NOFOLLOW)
	})},
	{"utimensat to the present", "utime", in("f", func(p string) error { return unix.UtimesNanoAt(unix.AT_FDCWD, p, nil, 0) })},
	{"setxattr", "xattr", in("f", func(p string) error { return unix.Setxattr(p, "user.a", []byte("1"), 0) })},
	{"removexattr", "xattr", in("x", func(p string) error { return unix.Removexattr(p, "user.seed") })},
	{"rename within the directory", "rename", func(d string) error { return unix.Rename(d+"/x", d+"/x2") }},
	{"rename to elsewhere", "rename", func(d string) error { return unix.Rename(d+"/sub/f", free(d, "moved-"+filepath.Base(d))) }},
	{"rename from elsewhere", "rename", func(d string) error {
		must0(os.WriteFile(free(d, "incoming"), nil, 0o644))
		return unix.Rename(free(d, "incoming"), d+"/came")
	}},
	{"rename over a file", "rename", func(d string) error {
		must0(os.WriteFile(free(d, "incoming"), nil, 0o644))
		return unix.Rename(free(d, "incoming"), d+"/f")
	}},
	{"exchange", "rename", func(d string) error {
		must0(os.WriteFile(free(d, "other"), nil, 0o644))
		return unix.Renameat2(unix.AT_FDCWD, free(d, "other"), unix.AT_FDCWD, d+"/f", unix.RENAME_EXCHANGE)
	}},
	{"rename of a directory", "rename", func(d string) error { return unix.Rename(d+"/sub", d+"/sub2") }},
	{"unlink", "delete", in("f", unix.Unlink)},
	{"unlink of a link", "delete", in("link", unix.Unlink)},
	{"rmdir", "rmdir", in("empty", unix.Rmdir)},
}

var readingOperations = []operation{
	{"open for reading", "read", openWith(unix.O_RDONLY, 0)},
	{"listing", "list", in("sub", func(p string) error { _, err := os.ReadDir(p); return err })},
	{"stat", "stat", in("f", func(p string) error { return unix.Stat(p, &unix.Stat_t{}) })},
	{"statx with birth time", "stat", in("f", func(p string) error {
		return unix.Statx(unix.AT_FDCWD, p, 0, unix.STATX_ALL, &unix.Statx_t{})
	})},
	{"readlink", "stat", in("link", func(p string) error { _, err := os.Readlink(p); return err })},
	{"getxattr", "stat", in("x", func(p string) error { _, err := unix.Getxattr(p, "user.seed", make([]byte, 8)); return err })},
	{"listxattr", "stat", in("x", func(p string) error { _, err := unix.Listxattr(p, make([]byte, 100)); return err })},
	{"execve", "execute", in("true", func(p string) error { return exec.Command(p).Run() })},
	{"mmap", "read", in("f", func(p string) error {
		fd, err := unix.Open(p, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		data, err := unix.Mmap(fd, 0, 4, unix.PROT_READ, unix.MAP_PRIVATE)
		if err == nil {
			err = unix.Munmap(data)
		}
		return err
	})},
}

func bindSocket(p string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	// The name must be short: bind below the directory's descriptor.
	dir, err := unix.Open(filepath.Dir(p), unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer closeFD(dir)
	return unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(p))})
}

// free is a name in the directory beside dir where everything is allowed.
func free(dir, name string) string { return filepath.Join(filepath.Dir(dir), "free", name) }

func must0(err error) {
	if err != nil {
		panic(err)
	}
}

func seedOperations(s *session) {
	for _, d := range []string{"free", "ro", "secret"} {
		s.seed(map[string]string{d + "/f": "text of f", d + "/x": "x", d + "/sub/f": "below"})
		must(s.t, os.Mkdir(s.back(d+"/empty"), 0o755))
		must(s.t, os.Symlink("f", s.back(d+"/link")))
		must(s.t, unix.Setxattr(s.back(d+"/x"), "user.seed", []byte("1"), 0))
		program, err := os.ReadFile("/bin/true")
		must(s.t, err)
		must(s.t, os.WriteFile(s.back(d+"/true"), program, 0o755))
	}
}

// describeTree describes a tree: names, types, modes, owners, sizes and contents.
func describeTree(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.Walk(dir, func(p string, fi os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		st := fi.Sys().(*syscall.Stat_t)
		fmt.Fprintf(&b, "%s %v %d:%d", strings.TrimPrefix(p, dir), fi.Mode(), st.Uid, st.Gid)
		switch {
		case fi.Mode().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %d %q %d", fi.Size(), data[:min(len(data), 64)], st.Mtim.Nano())
		case fi.Mode()&os.ModeSymlink != 0:
			text, err := os.Readlink(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " -> %s", text)
		}
		b.WriteByte('\n')
		return nil
	}))
	return b.String()
}

func TestEveryChangeIsAllowedWhereThePolicyAllowsIt(t *testing.T) {
	for _, o := range append(append([]operation(nil), changingOperations...), readingOperations...) {
		t.Run(o.name, func(t *testing.T) {
			s := start(t, options{policy: readOnly})
			seedOperations(s)
			if err := o.do(s.path("free")); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestEveryChangeOfAReadOnlyTreeIsDenied(t *testing.T) {
	for _, o := range changingOperations {
		t.Run(o.name, func(t *testing.T) {
			s := start(t, options{policy: readOnly})
			seedOperations(s)
			before := describeTree(t, s.back("ro"))
			if err := o.do(s.path("ro")); !errors.Is(err, unix.EACCES) {
				t.Fatalf("got %v, want EACCES", err)
			}
			if after := describeTree(t, s.back("ro")); after != before {
				t.Errorf("the tree changed:\n%s\nwas:\n%s", after, before)
			}
			e := s.waitEvent(func(e wire.Event) bool { return e.Decision == "deny" })
			if e.Op != o.op || e.Rule == nil || e.Rule.Name != "kept" || e.Process == nil || e.Process.PID != os.Getpid() {
				t.Errorf("event %+v process %+v", e, e.Process)
			}
		})
	}
}

func TestReadingAReadOnlyTreeIsAllowed(t *testing.T) {
	s := start(t, options{policy: readOnly})
	seedOperations(s)
	for _, o := range readingOperations {
		if err := o.do(s.path("ro")); err != nil {
			t.Errorf("%s: %v", o.name, err)
		}
	}
}

func TestEveryUseOfAHiddenTreeIsDenied(t *testing.T) {
	s := start(t, options{policy: readOnly})
	seedOperations(s)
	before := describeTree(t, s.back("secret"))
	for _, o := range append(append([]operation(nil), changingOperations...), readingOperations...) {
		if err := o.do(s.path("secret")); !errors.Is(err, unix.EACCES) {
			t.Errorf("%s: got %v, want EACCES", o.name, err)
		}
	}
	if after := describeTree(t, s.back("secret")); after != before {
		t.Errorf("the tree changed:\n%s\nwas:\n%s", after, before)
	}
}

// TestPathsBelowAMountAreLong: a path of 200 KiB is made, listed, moved, reported and
// removed step by step, as programs do it in a plain directory.
func TestPathsBelowAMountAreLong(t *testing.T) {
	s := start(t, options{})
	name := strings.Repeat("n", 250)
	const depth = 820
	dirs := []int{-1}
	at, err := unix.Open(s.dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	dirs[0] = at
	for range depth {
		must(t, unix.Mkdirat(at, name, 0o755))
		at, err = unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		dirs = append(dirs, at)
	}
	fd, err := unix.Openat(at, "deep", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
	must(t, err)
	_, err = unix.Write(fd, []byte("text"))
	must(t, err)
	closeFD(fd)
	must(t, unix.Renameat(at, "deep", at, "moved"))
	must(t, unix.Renameat(at, "moved", dirs[0], "top"))
	must(t, unix.Renameat(dirs[0], "top", at, "deep"))
	if out, err := exec.Command("find", s.dir, "-name", "deep", "-printf", "%d %s\n").CombinedOutput(); err != nil ||
		string(out) != fmt.Sprintf("%d 4\n", depth+1) {
		t.Errorf("find: %v: %.300s", err, out)
	}
	list, err := s.control.Changes(t.Context(), "ws")
	if err != nil || len(list) != depth+1 || len(list[len(list)-1].Path) < 200<<10 {
		t.Errorf("%d changes, %v", len(list), err)
	}
	for _, dir := range dirs {
		closeFD(dir)
	}
	if out, err := exec.Command("rm", "-r", s.path(name)).CombinedOutput(); err != nil {
		t.Errorf("rm: %v: %.300s", err, out)
	}
}
