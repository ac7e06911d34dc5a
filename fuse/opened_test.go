package fuse

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// hostMoves are what the host does to a directory above files in use.
var hostMoves = map[string]func(t *testing.T, root string){
	"removes it": func(t *testing.T, root string) { must(t, os.RemoveAll(filepath.Join(root, "top"))) },
	"moves it": func(t *testing.T, root string) {
		must(t, os.Rename(filepath.Join(root, "top"), filepath.Join(root, "away")))
	},
	"moves it out of view": func(t *testing.T, root string) { must(t, os.Rename(filepath.Join(root, "top"), root+".away")) },
	"replaces it": func(t *testing.T, root string) {
		must(t, os.Rename(filepath.Join(root, "top"), root+".away"))
		must(t, os.MkdirAll(filepath.Join(root, "top/d"), 0o755))
		must(t, os.WriteFile(filepath.Join(root, "top/d/f"), []byte("another"), 0o644))
	},
	"exchanges it": func(t *testing.T, root string) {
		must(t, os.MkdirAll(filepath.Join(root, "other/d"), 0o755))
		must(t, os.WriteFile(filepath.Join(root, "other/d/f"), []byte("another"), 0o644))
		must(t, unix.Renameat2(-100, filepath.Join(root, "top"), -100, filepath.Join(root, "other"), unix.RENAME_EXCHANGE))
	},
}

// fileUses are what a command does with an open file. Each returns what it got.
var fileUses = []struct {
	name string
	do   func(fd int, size int64) (string, error)
}{
	{"fstat", func(fd int, _ int64) (string, error) {
		var st unix.Stat_t
		err := unix.Fstat(fd, &st)
		return fmt.Sprintf("%o %d bytes", st.Mode, st.Size), err
	}},
	{"statx", func(fd int, _ int64) (string, error) {
		var st unix.Statx_t
		err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st)
		return fmt.Sprintf("%o %d bytes %v", st.Mode, st.Size, st.Mask&unix.STATX_BTIME != 0), err
	}},
	{"read", func(fd int, _ int64) (string, error) {
		buf := make([]byte, 100)
		n, err := unix.Read(fd, buf)
		return string(buf[:max(n, 0)]), err
	}},
	{"pread", func(fd int, size int64) (string, error) {
		buf := make([]byte, 100)
		n, err := unix.Pread(fd, buf, size-10)
		return string(buf[:max(n, 0)]), err
	}},
	{"lseek", func(fd int, _ int64) (string, error) {
		end, err := unix.Seek(fd, 0, unix.SEEK_END)
		hole, err2 := unix.Seek(fd, 0, unix.SEEK_HOLE)
		return fmt.Sprint(end, hole), first(err, err2)
	}},
	{"mmap", func(fd int, size int64) (string, error) {
		data, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return "", err
		}
		defer func() { _ = unix.Munmap(data) }()
		return string(data[size-10:]), nil
	}},
	{"pwrite", func(fd int, size int64) (string, error) {
		n, err := unix.Pwrite(fd, []byte("written"), size)
		return fmt.Sprint(n), err
	}},
	{"write and read", func(fd int, size int64) (string, error) {
		_, err := unix.Seek(fd, size-3, unix.SEEK_SET)
		_, err2 := unix.Write(fd, []byte("more"))
		buf := make([]byte, 100)
		n, err3 := unix.Pread(fd, buf, size-10)
		return string(buf[:max(n, 0)]), first(err, err2, err3)
	}},
	{"ftruncate", func(fd int, size int64) (string, error) {
		err := unix.Ftruncate(fd, size-1)
		var st unix.Stat_t
		return fmt.Sprint(unix.Fstat(fd, &st), st.Size), err
	}},
	{"fallocate", func(fd int, size int64) (string, error) {
		err := unix.Fallocate(fd, 0, 0, size+100)
		var st unix.Stat_t
		return fmt.Sprint(unix.Fstat(fd, &st), st.Size), err
	}},
	{"fchmod", func(fd int, _ int64) (string, error) {
		err := unix.Fchmod(fd, 0o640)
		var st unix.Stat_t
		return fmt.Sprintf("%v %o", unix.Fstat(fd, &st), st.Mode), err
	}},
	{"fchown", func(fd int, _ int64) (string, error) { return "", unix.Fchown(fd, 0, 0) }},
	{"futimens", func(fd int, _ int64) (string, error) {
		err := unix.Futimes(fd, []unix.Timeval{{Sec: 1}, {Sec: 1000}})
		var st unix.Stat_t
		return fmt.Sprintln(unix.Fstat(fd, &st), st.Mtim.Sec), err
	}},
	{"fsetxattr", func(fd int, _ int64) (string, error) {
		err := unix.Fsetxattr(fd, "user.a", []byte("1"), 0)
		buf := make([]byte, 10)
		n, err2 := unix.Fgetxattr(fd, "user.a", buf)
		l, err3 := unix.Flistxattr(fd, nil)
		return fmt.Sprint(string(buf[:max(n, 0)]), l), first(err, err2, err3, unix.Fremovexattr(fd, "user.a"))
	}},
	{"fsync", func(fd int, _ int64) (string, error) { return "", first(unix.Fsync(fd), unix.Fdatasync(fd)) }},
	{"flock", func(fd int, _ int64) (string, error) { return "", unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }},
	{"fcntl", func(fd int, _ int64) (string, error) {
		return "", unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	}},
	{"reopen", func(fd int, size int64) (string, error) {
		again, err := unix.Open(procPath(fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", err
		}
		defer closeFD(again)
		buf := make([]byte, 100)
		n, err := unix.Pread(again, buf, size-10)
		return string(buf[:max(n, 0)]), err
	}},
}

// dirUses are the same for an open directory.
var dirUses = []struct {
	name string
	do   func(fd int) (string, error)
}{
	{"fstat", func(fd int) (string, error) {
		var st unix.Stat_t
		err := unix.Fstat(fd, &st)
		return fmt.Sprintf("%o", st.Mode), err
	}},
	{"getdents", func(fd int) (string, error) {
		f := os.NewFile(uintptr(must2(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3))), "d")
		defer f.Close()
		names, err := f.Readdirnames(-1)
		return fmt.Sprint(len(names)), errors.Unwrap(err)
	}},
	{"fstatat", func(fd int) (string, error) {
		var st unix.Stat_t
		err := unix.Fstatat(fd, "f", &st, 0)
		return fmt.Sprint(st.Size), err
	}},
	{"openat", func(fd int) (string, error) {
		f, err := unix.Openat(fd, "f", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		closeFD(f)
		return "", err
	}},
	{"openat of itself", func(fd int) (string, error) {
		f, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		closeFD(f)
		return "", err
	}},
	{"create", func(fd int) (string, error) {
		f, err := unix.Openat(fd, "new", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
		closeFD(f)
		return "", err
	}},
	{"mkdirat", func(fd int) (string, error) { return "", unix.Mkdirat(fd, "newdir", 0o755) }},
	{"symlinkat", func(fd int) (string, error) { return "", unix.Symlinkat("x", fd, "newlink") }},
	{"mknodat", func(fd int) (string, error) { return "", unix.Mknodat(fd, "newfifo", unix.S_IFIFO|0o600, 0) }},
	{"linkat", func(fd int) (string, error) { return "", unix.Linkat(fd, "f", fd, "hard", 0) }},
	{"renameat", func(fd int) (string, error) { return "", unix.Renameat(fd, "f", fd, "g") }},
	{"unlinkat", func(fd int) (string, error) { return "", unix.Unlinkat(fd, "f", 0) }},
	{"readlinkat", func(fd int) (string, error) {
		n, err := unix.Readlinkat(fd, "l", make([]byte, 10))
		return fmt.Sprint(n), err
	}},
	{"rmdir of an entry", func(fd int) (string, error) { return "", unix.Unlinkat(fd, "sub", unix.AT_REMOVEDIR) }},
	{"fchmod", func(fd int) (string, error) { return "", unix.Fchmod(fd, 0o750) }},
	{"futimes", func(fd int) (string, error) { return "", unix.Futimes(fd, []unix.Timeval{{Sec: 1}, {Sec: 1000}}) }},
	{"fsetxattr", func(fd int) (string, error) { return "", unix.Fsetxattr(fd, "user.a", []byte("1"), 0) }},
	{"fsync", func(fd int) (string, error) { return "", unix.Fsync(fd) }},
}

// first returns the first error.
func first(list ...error) error {
	for _, err := range list {
		if err != nil {
			return err
		}
	}
	return nil
}

func must2(n int, err error) int {
	if err != nil {
		panic(err)
	}
	return n
}

var openedOptions = map[string]options{
	"passthrough": {}, "plain": {plain: true}, "unwatched": {watched: -1, cacheSeconds: 600},
	"plain and uncached": {plain: true, watched: -1, cacheSeconds: -1},
}

// TestWhatIsOpenStaysUsable: the host removes, moves or replaces a directory above files
// and directories that a command has open. Each call gets what it gets in a plain
// directory. Where a directory is not open in the backing, ENOENT may be the answer, which
// a removed directory gives. What the kernel has cached of a directory, it may use for as
// long as usual. No call gets ESTALE.
func TestWhatIsOpenStaysUsable(t *testing.T) {
	for host, move := range hostMoves {
		plain := filepath.Join(t.TempDir(), "ws")
		must(t, os.Mkdir(plain, 0o755))
		want := useOpened(t, plain, plain, false, move)
		for name, o := range openedOptions {
			for _, asked := range []bool{false, true} {
				if asked != ((len(host)+len(name))%2 == 0) && os.Getenv("COHERENCE_ROUNDS") == "" {
					continue // the other half takes as long
				}
				t.Run(fmt.Sprintf("host %s, %s, asked again %v", host, name, asked), func(t *testing.T) {
					s := start(t, o)
					got := useOpened(t, s.dir, s.backing, asked, move)
					for use := range want {
						gone := use.dir && errors.Is(got[use].err, unix.ENOENT)
						cached := use.dir && use.warm && errors.Is(want[use].err, unix.ENOENT) && got[use].err == nil
						if got[use] != want[use] && !gone && !cached {
							t.Errorf("%+v: %.80q %v, natively %.80q %v", use, got[use].text, got[use].err, want[use].text, want[use].err)
						}
					}
				})
			}
		}
	}
}

// openUse is one use of one file or directory.
type openUse struct {
	name             string
	warm, large, dir bool
}

type used struct {
	text string
	err  error
}

// opened is a file for one use alone.
type opened struct {
	openUse
	path string
	fd   int
	do   func(fd int) (string, error)
}

// useOpened opens a file or directory for each use, lets the host move, and uses them.
func useOpened(t *testing.T, inside, outside string, asked bool, move func(*testing.T, string)) map[openUse]used {
	t.Helper()
	var all []opened
	for _, warm := range []bool{false, true} {
		for _, use := range fileUses {
			for _, large := range []bool{false, true} {
				text := "a file of few bytes"
				if large {
					text = strings.Repeat("a file of many bytes", 10_000)
				}
				path := fmt.Sprint("top/d/f", len(all))
				seedIn(t, outside, path, text)
				all = append(all, opened{openUse{use.name, warm, large, false}, path, -1, func(fd int) (string, error) {
					return use.do(fd, int64(len(text)))
				}})
			}
		}
		for _, use := range dirUses {
			path := fmt.Sprint("top/d", len(all))
			seedIn(t, outside, path+"/f", "text")
			must(t, os.Mkdir(filepath.Join(outside, path, "sub"), 0o755))
			must(t, os.Symlink("f", filepath.Join(outside, path, "l")))
			all = append(all, opened{openUse{use.name, warm, false, true}, path, -1, use.do})
		}
	}
	for i := range all {
		o := &all[i]
		path, flags := filepath.Join(inside, o.path), unix.O_RDWR
		if o.dir {
			flags = unix.O_RDONLY | unix.O_DIRECTORY
		}
		if o.warm {
			look(t, path)
		}
		var err error
		o.fd, err = unix.Open(path, flags|unix.O_CLOEXEC, 0)
		must(t, err)
		defer closeFD(o.fd)
	}
	move(t, outside)
	if asked {
		for _, name := range []string{"top/d/f0", "away/d/f0", "top"} {
			_, _ = os.Stat(filepath.Join(inside, name))
		}
	}
	got := map[openUse]used{}
	for _, o := range all {
		text, err := o.do(o.fd)
		got[o.openUse] = used{text, err}
	}
	return got
}

func seedIn(t *testing.T, root, rel, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, rel)), 0o755))
	must(t, os.WriteFile(filepath.Join(root, rel), []byte(text), 0o644))
}

// TestMovesOfTheHostMakeNoCircle: the host moves a directory below a new one that has the
// name of a directory in it. The server's tree of names stays a tree: a circle would be searched without end.
func TestMovesOfTheHostMakeNoCircle(t *testing.T) {
	s := start(t, options{watched: -1, cacheSeconds: 600})
	s.seed(map[string]string{"a/b/f": "text"})
	look(t, s.dir)
	must(t, os.Rename(s.back("a"), s.back("away")))
	must(t, os.MkdirAll(s.back("a/b"), 0o755))
	must(t, os.Rename(s.back("away"), s.back("a/b/a")))
	for _, name := range []string{"a/b/a", "a/b/a/b/f", "a/b", "a/b/a/b"} {
		if _, err := os.Stat(s.path(name)); err != nil && !errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
	}
	must(t, os.WriteFile(s.path("other"), nil, 0o644))
}
