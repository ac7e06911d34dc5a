package fuse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
)

// edit is one way in which a person changes a workspace on the host.
type edit struct {
	name string
	do   func(t *testing.T, dir string)
}

func writeText(t *testing.T, name, text string) {
	t.Helper()
	must(t, os.WriteFile(name, []byte(text), 0o644))
}

// appendTo writes at the end of a file in place.
func appendTo(t *testing.T, name, text string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = f.WriteString(text)
	must(t, errors.Join(err, f.Close()))
}

// treeEdits change the tree of seedEdited.
var treeEdits = []edit{
	{"create", func(t *testing.T, d string) { writeText(t, d+"/d/new", "made\n") }},
	{"delete", func(t *testing.T, d string) { must(t, os.Remove(d+"/d/a")) }},
	{"replace by rename", func(t *testing.T, d string) {
		writeText(t, d+"/d/.a.tmp", "another text\n")
		must(t, os.Rename(d+"/d/.a.tmp", d+"/d/a"))
	}},
	{"rename away", func(t *testing.T, d string) { must(t, os.Rename(d+"/d/a", d+"/e/moved")) }},
	{"grow in place", func(t *testing.T, d string) { appendTo(t, d+"/d/a", "and more\n") }},
	{"fill an empty file", func(t *testing.T, d string) { appendTo(t, d+"/d/empty", "no longer\n") }},
	{"truncate", func(t *testing.T, d string) { must(t, os.Truncate(d+"/d/a", 2)) }},
	{"rewrite with the same size", func(t *testing.T, d string) {
		f, err := os.OpenFile(d+"/d/a", os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteAt([]byte("TEXT A"), 0)
		must(t, errors.Join(err, f.Close()))
	}},
	{"grow a large file", func(t *testing.T, d string) { appendTo(t, d+"/d/large", strings.Repeat("more\n", 1000)) }},
	{"chmod", func(t *testing.T, d string) { must(t, os.Chmod(d+"/d/a", 0o751)) }},
	{"utimes", func(t *testing.T, d string) { must(t, os.Chtimes(d+"/d/a", time.Unix(5, 0), time.Unix(7, 0))) }},
	{"change a symbolic link", func(t *testing.T, d string) {
		must(t, os.Symlink("b", d+"/d/.l"))
		must(t, os.Rename(d+"/d/.l", d+"/d/link"))
	}},
	{"rename a directory", func(t *testing.T, d string) { must(t, os.Rename(d+"/d/sub", d+"/e/sub")) }},
	{"replace a directory", func(t *testing.T, d string) {
		must(t, os.Rename(d+"/d/sub", d+"/e/old"))
		must(t, os.Mkdir(d+"/d/sub", 0o755))
		writeText(t, d+"/d/sub/x", "x of the new directory\n")
	}},
	{"hard link", func(t *testing.T, d string) { must(t, os.Link(d+"/d/a", d+"/e/hard")) }},
	{"make and remove directories", func(t *testing.T, d string) {
		must(t, os.Mkdir(d+"/d/made", 0o755))
		must(t, os.RemoveAll(d+"/d/sub"))
	}},
	{"a file becomes a directory", func(t *testing.T, d string) {
		must(t, os.Remove(d+"/d/a"))
		must(t, os.Mkdir(d+"/d/a", 0o755))
		writeText(t, d+"/d/a/in", "inside\n")
	}},
	{"write through a mapping", func(t *testing.T, d string) {
		f, err := os.OpenFile(d+"/d/a", os.O_RDWR, 0)
		must(t, err)
		defer f.Close()
		page, err := unix.Mmap(int(f.Fd()), 0, 6, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(t, err)
		copy(page, "MAPPED")
		must(t, unix.Msync(page, unix.MS_SYNC))
		must(t, unix.Munmap(page))
	}},
}

// editedFiles are those that treeEdits change.
var editedFiles = map[string]string{
	"d/a": "text a\n", "d/b": "text b\n", "d/empty": "", "d/sub/x": "x\n", "d/sub/deep/y": "y\n", "e/z": "z\n",
	"d/large": strings.Repeat("large\n", 50_000),
}

// seedEdited makes a tree for treeEdits below a directory of the host. Its times lie in
// the past, as in an ordinary workspace.
func seedEdited(t *testing.T, top string) {
	seedTree(t, top, editedFiles)
	must(t, os.Symlink("a", top+"/d/link"))
	must(t, filepath.WalkDir(top, func(name string, _ fs.DirEntry, err error) error {
		old := unix.NsecToTimespec(time.Now().Add(-time.Hour).UnixNano())
		return errors.Join(err, unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{old, old}, unix.AT_SYMLINK_NOFOLLOW))
	}))
}

// look describes a tree: names, types, modes, sizes, times, links and content. A file
// must be as long as its size says, and no call may fail but for what is absent.
func look(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	must(t, filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if errors.Is(err, unix.ENOENT) {
			return nil // it went between the listing and now
		}
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			if errors.Is(err, unix.ENOENT) {
				return nil
			}
			return fmt.Errorf("lstat %s: %w", rel, err)
		}
		fmt.Fprintf(&out, "%s %o %d", rel, st.Mode, st.Nlink)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			text, err := readWhole(name)
			if errors.Is(err, unix.ENOENT) {
				return nil
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(&out, " %d %d %.80q %d", st.Size, st.Mtim.Nano(), text, len(text))
		case unix.S_IFLNK:
			to, err := os.Readlink(name)
			fmt.Fprintf(&out, " -> %s %v", to, err)
		}
		out.WriteByte('\n')
		return nil
	}))
	return out.String()
}

// readWhole reads a file and checks that its size is that of its content, unless it
// changed meanwhile.
func readWhole(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("fstat %s: %w", name, err)
	}
	if before.IsDir() {
		return nil, nil
	}
	var text bytes.Buffer
	if _, err := text.ReadFrom(f); err != nil {
		return nil, err
	}
	after, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("fstat %s: %w", name, err)
	}
	if before.Size() == after.Size() && before.ModTime().Equal(after.ModTime()) && int64(text.Len()) != after.Size() {
		return nil, fmt.Errorf("%s: %d bytes of a file of %d", name, text.Len(), after.Size())
	}
	return text.Bytes(), nil
}

// TestEditsOfTheHostAreSeen: whatever a person changes, commands soon see all of it,
// and no command fails meanwhile.
func TestEditsOfTheHostAreSeen(t *testing.T) {
	for _, plain := range []bool{false, true} {
		for _, e := range treeEdits {
			t.Run(fmt.Sprintf("%s, plain %v", e.name, plain), func(t *testing.T) {
				t.Parallel()
				s := start(t, options{plain: plain})
				seedEdited(t, s.backing)
				if inside, outside := look(t, s.dir), look(t, s.backing); inside != outside {
					t.Fatalf("at first inside:\n%s\noutside:\n%s", inside, outside)
				}
				e.do(t, s.backing)
				want := look(t, s.backing)
				began := time.Now()
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for {
					got := look(t, s.dir)
					if got == want {
						break
					}
					if time.Since(began) > 30*time.Second {
						t.Fatalf("inside:\n%s\noutside:\n%s", got, want)
					}
					<-tick.C
				}
				t.Logf("seen after %v", time.Since(began))
			})
		}
	}
}

// TestAnOpenSeesWhatTheHostHas: the content of a file is that of the backing at the
// open, however long it was cached.
func TestAnOpenSeesWhatTheHostHas(t *testing.T) {
	for _, size := range []int{0, 10, 5000, 300_000} {
		for name, change := range map[string]func(t *testing.T, name string, text []byte){
			"by rename": func(t *testing.T, name string, text []byte) {
				must(t, os.WriteFile(name+"~", text, 0o644))
				must(t, os.Rename(name+"~", name))
			},
			"in place": func(t *testing.T, name string, text []byte) { must(t, os.WriteFile(name, text, 0o644)) },
			"removed and made": func(t *testing.T, name string, text []byte) {
				must(t, os.Remove(name))
				must(t, os.WriteFile(name, text, 0o644))
			},
			"without truncation": func(t *testing.T, name string, text []byte) {
				f, err := os.OpenFile(name, os.O_WRONLY, 0)
				must(t, err)
				_, err = f.Write(text)
				must(t, errors.Join(err, f.Truncate(int64(len(text))), f.Close()))
			},
		} {
			for _, plain := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d bytes, %s, plain %v", size, name, plain), func(t *testing.T) {
					s := start(t, options{plain: plain, cacheSeconds: 600})
					text := bytes.Repeat([]byte{'a'}, size)
					must(t, os.WriteFile(s.back("f"), text, 0o644))
					held, err := os.Open(s.path("f"))
					must(t, err)
					defer held.Close()
					for i := range 20 {
						got, err := readWhole(s.path("f"))
						if err != nil || !bytes.Equal(got, text) {
							t.Fatalf("round %d: %v, %d bytes %.20q, want %d bytes %.20q", i, err, len(got), got, len(text), text)
						}
						text = bytes.Repeat([]byte{'b' + byte(i)}, size+(i%3)*7)
						change(t, s.back("f"), text)
					}
				})
			}
		}
	}
}

// TestNoCallFailsAfterAReplacement: a file or directory that the host replaced is
// looked up again, whichever call comes first. What a command had open stays usable.
func TestNoCallFailsAfterAReplacement(t *testing.T) {
	calls := map[string]func(name string) error{
		"open":        func(n string) error { _, err := os.ReadFile(n); return err },
		"open write":  func(n string) error { return errors.Join(os.WriteFile(n, []byte("x"), 0)) },
		"stat":        func(n string) error { _, err := os.Stat(n); return err },
		"truncate":    func(n string) error { return os.Truncate(n, 1) },
		"chmod":       func(n string) error { return os.Chmod(n, 0o700) },
		"utimes":      func(n string) error { return os.Chtimes(n, time.Now(), time.Now()) },
		"setxattr":    func(n string) error { return unix.Setxattr(n, "user.a", []byte("b"), 0) },
		"getxattr":    func(n string) error { _, err := unix.Getxattr(n, "user.q", nil); return but(err, unix.ENODATA) },
		"listxattr":   func(n string) error { _, err := unix.Listxattr(n, nil); return err },
		"removexattr": func(n string) error { return but(unix.Removexattr(n, "user.q"), unix.ENODATA) },
		"rename":      func(n string) error { return os.Rename(n, n+"2") },
		"rename over": func(n string) error { return errors.Join(os.WriteFile(n+"3", nil, 0o644), os.Rename(n+"3", n)) },
		"link":        func(n string) error { return os.Link(n, n+"4") },
		"unlink":      os.Remove,
		"access":      func(n string) error { return unix.Access(n, unix.R_OK) },
		"exec":        func(n string) error { return exec.Command(n).Run() },
		"statfs":      func(n string) error { return unix.Statfs(n, &unix.Statfs_t{}) },
		"through it":  func(n string) error { _, err := os.Stat(filepath.Dir(n) + "/./f"); return err },
		"create":      func(n string) error { return os.WriteFile(filepath.Dir(n)+"/new", nil, 0o644) },
		"mkdir":       func(n string) error { return os.Mkdir(filepath.Dir(n)+"/newdir", 0o755) },
		"symlink":     func(n string) error { return os.Symlink("x", filepath.Dir(n)+"/newlink") },
		"mknod":       func(n string) error { return unix.Mknod(filepath.Dir(n)+"/newfifo", unix.S_IFIFO|0o600, 0) },
		"mkdir again": func(n string) error { return expect(os.Mkdir(n, 0o755), unix.EEXIST) },
		"mkdir below": func(n string) error { return os.Mkdir(filepath.Dir(n)+"/sub/newdir", 0o755) },
		"link over":   func(n string) error { return expect(os.Link(n, filepath.Dir(n)+"/sub"), unix.EEXIST) },
		"absent":      func(n string) error { return expect(unix.Access(n+"9", unix.F_OK), unix.ENOENT) },
		"open path": func(n string) error {
			fd, err := unix.Open(n, unix.O_PATH|unix.O_CLOEXEC, 0)
			if err == nil {
				defer closeFD(fd)
				err = unix.Fstat(fd, &unix.Stat_t{})
			}
			return err
		},
		"list": func(n string) error { _, err := os.ReadDir(filepath.Dir(n)); return err },
	}
	for name, call := range calls {
		for _, what := range []string{"file", "directory", "file that is open"} {
			t.Run(name+" of a "+what, func(t *testing.T) {
				s := start(t, options{cacheSeconds: 600})
				s.seed(map[string]string{"d/f": "#!/bin/sh\n", "other/f": "#!/bin/sh\necho\n", "d/sub/x": "", "other/sub/x": ""})
				must(t, os.Chmod(s.back("d/f"), 0o755))
				must(t, os.Chmod(s.back("other/f"), 0o755))
				look(t, s.dir)
				if what == "file that is open" {
					f, err := os.OpenFile(s.path("d/f"), os.O_RDWR, 0)
					must(t, err)
					defer f.Close()
					defer func() {
						if text := make([]byte, 100); name != "exec" {
							n, err := f.ReadAt(text, 0)
							if _, serr := f.Stat(); string(text[:n]) != "#!/bin/sh\n" || serr != nil {
								t.Errorf("the open file: %q %v %v", text[:n], err, serr)
							}
						}
					}()
					if name == "exec" {
						return // a file that is open for writing is not executed
					}
				}
				if what == "directory" {
					must(t, os.Rename(s.back("d"), s.back("gone")))
					must(t, os.Rename(s.back("other"), s.back("d")))
				} else {
					must(t, os.Rename(s.back("other/f"), s.back("d/f")))
				}
				if err := call(s.path("d/f")); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// but returns err unless it is the expected one.
func but(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// expect returns an error unless err is the expected one.
func expect(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return fmt.Errorf("%w, want %w", err, expected)
}

// TestFilesThatAreOpenFollowTheHost: through a handle that was open before, the new
// size and data are seen, not a part of them.
func TestFilesThatAreOpenFollowTheHost(t *testing.T) {
	for _, size := range []int{0, 100, 300_000} {
		for _, plain := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d bytes, plain %v", size, plain), func(t *testing.T) {
				s := start(t, options{plain: plain})
				text := strings.Repeat("o", size)
				s.seed(map[string]string{"f": text})
				f, err := os.Open(s.path("f"))
				must(t, err)
				defer f.Close()
				for _, change := range []func(){
					func() { appendTo(t, s.back("f"), strings.Repeat("n", 5000)) },
					func() { must(t, os.Truncate(s.back("f"), int64(size/2))) },
					func() { writeText(t, s.back("f"), strings.Repeat("r", size+3)) },
				} {
					change()
					want, err := os.ReadFile(s.back("f"))
					must(t, err)
					for began := time.Now(); ; {
						got := make([]byte, len(want)+10)
						n, _ := f.ReadAt(got, 0)
						st, err := f.Stat()
						must(t, err)
						if bytes.Equal(got[:n], want) && st.Size() == int64(len(want)) {
							break
						}
						if time.Since(began) > 30*time.Second {
							t.Fatalf("%d bytes %.10q, size %d, want %d", n, got, st.Size(), len(want))
						}
					}
				}
			})
		}
	}
}

// TestAChangeIsToldWhateverElseIsTold: the kernel is told newer attributes during each
// comparison with the backing. The comparison ends and still finds a change of the host.
func TestAChangeIsToldWhateverElseIsTold(t *testing.T) {
	fd, err := unix.Open(t.TempDir(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer closeFD(fd)
	var before unix.Stat_t
	must(t, unix.Fstat(fd, &before))
	before.Mtim.Sec--
	tr := tree.New(&before)
	root, tries, size := tr.Root(), 0, int64(0)
	tellMore := func() tree.Moment {
		tries, size = tries+1, size+1
		at := tr.Host.Now()
		other := unix.Stat_t{Dev: before.Dev, Ino: before.Ino + 1, Mode: unix.S_IFREG, Nlink: 1, Size: size}
		tr.Host.Tell(nil, tr.Adopt(root, "other", &other), &other, tree.Latest, 0)
		return at
	}
	tellMore()
	tr.Host.Tell(nil, root, &before, tree.Latest, 0)

	tries = 0
	var st unix.Stat_t
	o := &data{tree: tr, kernel: &kernel{tree: tr}}
	differs, err := o.compare(&handle{node: root, fd: fd}, &st, true, tellMore, o.kernel.NotifyAttributes)
	if !differs || err != nil || tries != compareTries {
		t.Errorf("an open: differs %v after %d tries, %v", differs, tries, err)
	}
	tries = 0
	m := &mount{tree: tr, nodes: &nodeFiles{tree: tr, files: &files{backing: tree.Backing{FD: fd, Dir: true}}}}
	if d := m.differs(root, tellMore, false); !d.Tell || !d.Directory || tries != compareTries {
		t.Errorf("a notice of the host: %+v after %d tries", d, tries)
	}
}

// A small file is read without a request after its first open: the server may stop meanwhile.
func TestASmallFileIsStoredAtItsOpen(t *testing.T) {
	most := strings.Repeat("0123456789abcdef", storedMost/16)
	files := map[string]string{"small": "content", "pages": most[:9000], "most": most, "empty": ""}
	for name, o := range map[string]options{"disk": {}, "memory": {backing: backingOn(t, "tmpfs")}, "no passthrough": {plain: true}} {
		t.Run(name, func(t *testing.T) {
			s := start(t, o)
			s.seed(files)
			<-time.After(2 * tree.Settling) // what was changed just now is read when it is asked for
			open := map[string]*os.File{}
			for rel := range files {
				f, err := os.Open(s.path(rel))
				must(t, err)
				defer f.Close()
				open[rel] = f
			}
			must(t, s.server.Process.Signal(unix.SIGSTOP))
			read := make(chan struct{})
			go func() {
				defer close(read)
				for rel, want := range files {
					if got, err := io.ReadAll(open[rel]); err != nil || string(got) != want {
						t.Errorf("%s: %d bytes, %v", rel, len(got), err)
					}
				}
			}()
			select {
			case <-read:
			case <-time.After(60 * time.Second):
				t.Error("the server is asked for what it stored")
			}
			must(t, s.server.Process.Signal(unix.SIGCONT))
			<-read
		})
	}
}

// The kernel had to forget all names once, because the host made one that it had as absent and
// whose directory was in use. It then caches no absence for a while, so that it need not forget
// all names again. No goroutine reads the events of the host's changes here.
func TestNoAbsenceIsKeptSoonAfterAllNamesWereForgotten(t *testing.T) {
	s := start(t, options{noEventReader: true})
	s.seed(map[string]string{"d/a": ""})
	absent := func(name string) bool {
		_, err := os.Lstat(s.path(name))
		if err != nil && !errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
		return err != nil
	}
	if !absent("d/early") {
		t.Fatal("there is what nobody made")
	}
	writeText(t, s.back("d/early"), "")
	if !absent("d/late") || absent("d/early") { // the first is a request in their directory
		t.Error("an absence outlives a look at its directory")
	}
	if !absent("d/late") {
		t.Fatal("there is what nobody made")
	}
	writeText(t, s.back("d/late"), "")
	if absent("d/late") {
		t.Error("an absence is kept")
	}
}
