package notify

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// remembering makes a root with programs whose directories were last changed a while ago, and
// a file that remembers them.
func remembering(t *testing.T) (dir string, root Root) {
	t.Helper()
	dir, root = rooted(t)
	write(t, filepath.Join(dir, "opt/tool/bin/java"), "\x7fELF java")
	write(t, filepath.Join(dir, "etc/alternatives/.keep"), "")
	for name, to := range map[string]string{
		"bin/java": "/etc/alternatives/java", "etc/alternatives/java": "../../opt/current/bin/java", "opt/current": "tool",
		"bin/tool": "../opt/tool",
	} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	keep := t.TempDir()
	root.Cache, root.Mounts = filepath.Join(keep, "programs"), filepath.Join(keep, "mountinfo")
	write(t, root.Mounts, "22 1 0:20 / / rw - ext4 /dev/root rw\n")
	was := steadyAfter
	steadyAfter = 50 * time.Millisecond // longer than a tick of the clock that files have
	t.Cleanup(func() { steadyAfter = was })
	for began := time.Now(); time.Since(began) <= steadyAfter; { // nothing tells that the time has passed
		_, _ = unix.Poll(nil, 10)
	}
	return dir, root
}

func javas(t *testing.T, root Root) []string {
	t.Helper()
	ids, err := BuildIdentities([]string{"kill"}, root)
	if err != nil {
		t.Fatal(err)
	}
	h, err := target.ResolveIn(root.Dir, "/opt/tool/bin/java")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	like, err := ids.Of(h)
	if err != nil {
		t.Fatal(err)
	}
	return like.Names
}

func TestWhatIsRememberedIsNotLookedUp(t *testing.T) {
	_, root := remembering(t)
	first := javas(t, root)
	p := openPrograms(root)
	if len(p.dirs) == 0 || len(p.lists) == 0 {
		t.Fatalf("%d directories, %d listings", len(p.dirs), len(p.lists))
	}
	for _, l := range p.lists {
		for _, n := range l.names {
			if n.link && !n.known {
				t.Errorf("%s: not remembered", n.name)
			}
		}
	}
	before, err := os.Stat(root.Cache)
	if err != nil {
		t.Fatal(err)
	}
	if again := javas(t, root); !slices.Equal(again, first) || !slices.Equal(first, []string{"/bin/java"}) {
		t.Errorf("%q, then %q", first, again)
	}
	if after, err := os.Stat(root.Cache); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was written again: %v", err)
	}
}

// A name that leads to another file, on whichever step of the way that was changed, is looked
// up again.
func TestWhatIsRememberedCountsAsLongAsNothingChanged(t *testing.T) {
	for what, change := range map[string]func(dir string, root *Root) error{
		"the link itself": func(dir string, _ *Root) error {
			return errors.Join(os.Remove(filepath.Join(dir, "bin/java")), os.Symlink("kill", filepath.Join(dir, "bin/java")))
		},
		"a link that it leads to": func(dir string, _ *Root) error {
			link := filepath.Join(dir, "etc/alternatives/java")
			return errors.Join(os.Remove(link), os.Symlink("/bin/ls", link))
		},
		"a directory on the way": func(dir string, _ *Root) error {
			write(t, filepath.Join(dir, "opt/other/bin/java"), "\x7fELF another")
			return errors.Join(os.Remove(filepath.Join(dir, "opt/current")), os.Symlink("other", filepath.Join(dir, "opt/current")))
		},
		"the target": func(dir string, _ *Root) error {
			write(t, filepath.Join(dir, "opt/tool/bin/new"), "\x7fELF another")
			return os.Rename(filepath.Join(dir, "opt/tool/bin/new"), filepath.Join(dir, "opt/tool/bin/java"))
		},
		"a missing directory": func(dir string, _ *Root) error {
			return os.Rename(filepath.Join(dir, "etc/alternatives"), filepath.Join(dir, "etc/former"))
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir, root := remembering(t)
			javas(t, root)
			if err := change(dir, &root); err != nil {
				t.Fatal(err)
			}
			fresh := root
			fresh.Cache = ""
			if got, want := javas(t, root), javas(t, fresh); !slices.Equal(got, want) {
				t.Errorf("%q, without the file %q", got, want)
			}
		})
	}
}

// The filesystem of one session has other numbers in the next: what is remembered of it would
// never count, and would be written in each session.
func TestDirectoriesOfOneSessionAreNotRemembered(t *testing.T) {
	dir, root := remembering(t)
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	here := fmt.Sprintf("22 1 %d:%d / / rw - ext4 /dev/root rw\n", unix.Major(st.Dev), unix.Minor(st.Dev))
	write(t, root.Mounts, here)
	was := ownMounts
	t.Cleanup(func() { ownMounts = was })
	ownMounts = filepath.Join(t.TempDir(), "mountinfo")
	for ours, remembered := range map[string]bool{here: true, "22 1 0:1 / / rw - ext4 x rw\n": false} {
		_ = os.Remove(root.Cache)
		write(t, ownMounts, ours)
		if got := javas(t, root); !slices.Equal(got, []string{"/bin/java"}) {
			t.Errorf("seen %q: %q", ours, got)
		}
		if _, err := os.Stat(root.Cache); (err == nil) != remembered {
			t.Errorf("seen %q: %v", ours, err)
		}
	}
}

func TestANameUnderAMountIsLookedUp(t *testing.T) {
	_, root := remembering(t)
	javas(t, root)
	for mounted, remembered := range map[string]bool{"/opt/tool": true, "/opt/tool/bin/java": false, "/etc/alternatives/java": false} {
		write(t, root.Mounts, "22 1 0:20 / / rw - ext4 x rw\n23 22 0:20 /x "+mounted+" rw - ext4 x rw\n")
		p := openPrograms(root)
		for _, l := range p.lists {
			for i := range l.names {
				n := &l.names[i]
				if p.dirs[l.dir].path != "/bin" || n.name != "java" {
					continue
				}
				n.target = fileID{1, 1}
				if got, err := p.leadsTo(l, n); err != nil || (got == fileID{1, 1}) != remembered {
					t.Errorf("mount over %s: %v, %v", mounted, got, err)
				}
			}
		}
	}
}

func TestAFileThatOthersMayHaveWrittenIsNotRead(t *testing.T) {
	for what, change := range map[string]func(name string, data []byte) error{
		"a bit":     func(name string, data []byte) error { data[len(data)/2] ^= 1; return os.WriteFile(name, data, 0o600) },
		"its end":   func(name string, data []byte) error { return os.WriteFile(name, data[:len(data)-1], 0o600) },
		"its mode":  func(name string, _ []byte) error { return os.Chmod(name, 0o620) },
		"all of it": func(name string, _ []byte) error { return os.Remove(name) },
		"a link": func(name string, data []byte) error {
			return errors.Join(os.Rename(name, name+".file"), os.Symlink(name+".file", name))
		},
	} {
		t.Run(what, func(t *testing.T) {
			_, root := remembering(t)
			javas(t, root)
			data, err := os.ReadFile(root.Cache)
			if err != nil || len(openPrograms(root).lists) == 0 {
				t.Fatal(err)
			}
			if err := change(root.Cache, data); err != nil {
				t.Fatal(err)
			}
			if p := openPrograms(root); len(p.lists) > 0 || len(p.dirs) > 0 {
				t.Errorf("%d listings", len(p.lists))
			}
		})
	}
}

// A denied program that appears is found, however soon after the file was written.
func TestADirectoryThatHasJustChangedIsNotRemembered(t *testing.T) {
	dir, root := remembering(t)
	steadyAfter = time.Minute
	for i := range 20 {
		kill := filepath.Join(dir, "bin/kill")
		if err := errors.Join(os.Remove(kill), os.WriteFile(kill, []byte(fmt.Sprint("\x7fELF ", i)), 0o755)); err != nil {
			t.Fatal(err)
		}
		ids, err := BuildIdentities([]string{"kill"}, root)
		if err != nil {
			t.Fatal(err)
		}
		h, err := target.ResolveIn(root.Dir, "/bin/kill")
		if err != nil {
			t.Fatal(err)
		}
		like, err := ids.Of(h)
		h.Close()
		if err != nil || !slices.Equal(like.Same, []string{"/bin/kill"}) {
			t.Fatalf("round %d: %+v, %v", i, like, err)
		}
	}
	for _, d := range openPrograms(root).dirs {
		if d.path == "/bin" {
			t.Errorf("%+v is remembered", d)
		}
	}
}

func FuzzListings(f *testing.F) {
	e := &listings{file: "x", byPath: map[string]int{}, lists: map[fileID]*listing{}}
	e.dirs = []*programDir{{lookup: "/bin", path: "/bin", version: fileVersion{fileID: fileID{1, 2}}, steady: true, verified: true}}
	names := []programName{{name: "a"}, {name: "b", link: true, known: true, steps: []step{{0, "b"}}}}
	e.lists[fileID{1, 2}] = &listing{all: true, names: names}
	whole := e.encode()
	f.Add(whole[len(programsMagic) : len(whole)-sha256.Size])
	f.Fuzz(func(t *testing.T, body []byte) {
		data := append([]byte(programsMagic), body...)
		sum := sha256.Sum256(data)
		p := &listings{byPath: map[string]int{}, lists: map[fileID]*listing{}}
		if !p.decode(append(data, sum[:]...)) {
			return
		}
		for _, l := range p.lists {
			for _, n := range l.names {
				for _, s := range n.steps {
					_ = p.dirs[s.dir]
				}
			}
			_ = p.dirs[l.dir]
		}
	})
}
