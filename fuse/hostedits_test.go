package fuse

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// hostEdit is one kind of change behind the mount.
type hostEdit struct {
	name string
	edit func(back string) error
	seen func(dir string) string // what a command sees of it
}

func content(name string) func(string) string {
	return func(dir string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		return fmt.Sprintf("%q %v", data, errno(unwrapped(err)))
	}
}

func unwrapped(err error) error {
	if pe, ok := err.(*os.PathError); ok { //nolint:errorlint // os returns it bare
		return pe.Err
	}
	return err
}

func attributesOf(name string) func(string) string {
	return func(dir string) string {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			return fmt.Sprint(errno(unwrapped(err)))
		}
		st := info.Sys().(*syscall.Stat_t)
		return fmt.Sprint(st.Mode, st.Size, st.Mtim.Nano(), st.Nlink, st.Uid)
	}
}

func linkOf(name string) func(string) string {
	return func(dir string) string {
		text, err := os.Readlink(filepath.Join(dir, name))
		return fmt.Sprint(text, errno(unwrapped(err)))
	}
}

func listOf(name string) func(string) string {
	return func(dir string) string {
		entries, err := os.ReadDir(filepath.Join(dir, name))
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return fmt.Sprint(names, errno(unwrapped(err)))
	}
}

func write(name, text string, flags int) func(string) error {
	return func(back string) error {
		f, err := os.OpenFile(filepath.Join(back, name), os.O_WRONLY|flags, 0o644)
		if err != nil {
			return err
		}
		_, err = f.WriteString(text)
		return firstOf(err, f.Close())
	}
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func edited(name string, do func(path string) error) func(string) error {
	return func(back string) error { return do(filepath.Join(back, name)) }
}

var hostEdits = []hostEdit{
	{"create", write("new", "text", os.O_CREATE), content("new")},
	{"list a new file", write("listed", "", os.O_CREATE), listOf("")},
	{"append", write("sub/file", "more", os.O_APPEND), content("sub/file")},
	{"fill an empty file", write("empty", "filled", 0), content("empty")},
	{"overwrite with the same size", write("sub/same", "TEXT", 0), content("sub/same")},
	{"truncate", edited("sub/shrinks", func(p string) error { return os.Truncate(p, 2) }), content("sub/shrinks")},
	{"save by rename", func(back string) error {
		return firstOf(os.WriteFile(back+"/.saved", []byte("saved by rename"), 0o644), os.Rename(back+"/.saved", back+"/saved"))
	}, content("saved")},
	{"rename", func(back string) error { return os.Rename(back+"/old", back+"/renamed") }, content("renamed")},
	{"remove", edited("removed", os.Remove), content("removed")},
	{"remove and make again", func(back string) error {
		return firstOf(os.Remove(back+"/again"), os.WriteFile(back+"/again", []byte("second"), 0o600))
	}, content("again")},
	{"make a directory", edited("made", func(p string) error { return os.Mkdir(p, 0o755) }), attributesOf("made")},
	{"remove a directory", edited("gone", os.Remove), attributesOf("gone")},
	{"rename a directory", func(back string) error { return os.Rename(back+"/dir", back+"/moved") }, content("moved/inside")},
	{"change the mode", edited("sub/mode", func(p string) error { return os.Chmod(p, 0o600) }), attributesOf("sub/mode")},
	{"change a time", edited("time", func(p string) error { return os.Chtimes(p, time.Unix(1, 0), time.Unix(2, 0)) }), attributesOf("time")},
	{"retarget a link", func(back string) error {
		return firstOf(os.Symlink("two", back+"/.link"), os.Rename(back+"/.link", back+"/link"))
	}, linkOf("link")},
	{"make a hard link", func(back string) error { return os.Link(back+"/linked", back+"/link2") }, content("link2")},
	{"change the mode of a directory", edited("modes", func(p string) error { return os.Chmod(p, 0o700) }), attributesOf("modes")},
	{"put a tree in place", func(back string) error {
		return firstOf(os.MkdirAll(back+"/.t/a/b", 0o755), os.WriteFile(back+"/.t/a/b/c", []byte("deep"), 0o644),
			os.Rename(back+"/.t", back+"/tree"))
	}, content("tree/a/b/c")},
}

func seedHostEdits(s *session) {
	s.seed(map[string]string{
		"sub/file": "text", "empty": "", "sub/same": "text", "sub/shrinks": "longer", "saved": "old", "old": "x", "removed": "x",
		"again": "first", "dir/inside": "inside", "sub/mode": "x", "time": "x", "linked": "l",
	})
	for _, dir := range []string{"gone", "modes"} {
		must(s.t, os.Mkdir(s.back(dir), 0o755))
	}
	must(s.t, os.Symlink("one", s.back("link")))
}

// warm makes the kernel cache everything that the edits concern.
func warm(s *session) {
	for range 2 {
		must(s.t, filepath.WalkDir(s.dir, func(_ string, d os.DirEntry, err error) error {
			if err == nil {
				_, err = d.Info()
			}
			return err
		}))
		for _, e := range hostEdits {
			e.seen(s.dir)
		}
	}
}

// TestHostEditsAreSeen edits files behind an idle mount. The kernel caches what it was
// told for 10 minutes, so an edit that is seen was noticed.
func TestHostEditsAreSeen(t *testing.T) {
	for _, where := range []string{"ext4", "tmpfs", "overlay", "plain server"} {
		t.Run(where, func(t *testing.T) {
			s := start(t, options{backing: backingOn(t, where), plain: where == "plain server"})
			seedHostEdits(s)
			warm(s)
			var waits []time.Duration
			for _, e := range hostEdits {
				before := e.seen(s.dir)
				must(t, e.edit(s.backing))
				began := time.Now()
				want := e.seen(s.backing)
				if want == before {
					t.Fatalf("%s: the edit changes nothing: %s", e.name, want)
				}
				for got := before; got != want; got = e.seen(s.dir) {
					if time.Since(began) > 10*time.Second {
						t.Fatalf("%s: %s is seen, %s is there", e.name, got, want)
					}
					<-time.After(time.Millisecond)
				}
				waits = append(waits, time.Since(began))
			}
			slices.Sort(waits)
			t.Logf("seen after %v (median), %v (longest)", waits[len(waits)/2], waits[len(waits)-1])
			if median := waits[len(waits)/2]; median > 100*time.Millisecond {
				t.Errorf("seen after %v (median of %d)", median, len(waits))
			}
		})
	}
}

// backingOn returns a directory on a filesystem.
func backingOn(t *testing.T, where string) string {
	t.Helper()
	dir := t.TempDir()
	switch where {
	case "tmpfs":
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"))
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	case "overlay":
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"))
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
		for _, d := range []string{"lower", "upper", "work", "merged"} {
			must(t, os.Mkdir(filepath.Join(dir, d), 0o755))
		}
		merged := filepath.Join(dir, "merged")
		must(t, unix.Mount("overlay", merged, "overlay", 0, strings.ReplaceAll("lowerdir=D/lower,upperdir=D/upper,workdir=D/work", "D", dir)))
		t.Cleanup(func() { unix.Unmount(merged, unix.MNT_DETACH) })
		return merged
	}
	return dir
}

// TestHostEditsAreUnseenUnlessWatched proves that the test above sees nothing by luck.
func TestHostEditsAreUnseenUnlessWatched(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE)
	s := start(t, options{watched: -1, cacheSeconds: 600})
	seedHostEdits(s)
	warm(s)
	must(t, os.Chmod(s.back("sub/mode"), 0o600))
	must(t, os.WriteFile(s.back("new"), nil, 0o644))
	if st, err := os.Stat(s.path("sub/mode")); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("the mode of an unwatched file: %v %v", st, err)
	}
	if _, err := os.Stat(s.path("new")); err == nil {
		t.Error("a new name in an unwatched directory is seen")
	}
}

// await returns when what a command sees is what is there.
func await(s *session, what string, seen func(dir string) string) {
	s.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		got, want := seen(s.dir), seen(s.backing)
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: %.200s is seen, %.200s is there", what, got, want)
		}
		<-time.After(time.Millisecond)
	}
}

// TestAnOverflowDropsEverything makes more edits than the queue of events holds, while
// the server is stopped.
func TestAnOverflowDropsEverything(t *testing.T) {
	s := start(t, options{})
	seedHostEdits(s)
	must(t, os.Mkdir(s.back("many"), 0o755))
	warm(s)
	must(t, s.server.Process.Signal(unix.SIGSTOP))
	for i := range 20000 {
		must(t, os.WriteFile(s.back(fmt.Sprint("many/", i)), nil, 0o644))
	}
	for _, e := range hostEdits {
		must(t, e.edit(s.backing))
	}
	must(t, s.server.Process.Signal(unix.SIGCONT))
	for _, e := range hostEdits {
		await(s, e.name, e.seen)
	}
	await(s, "the many files", listOf("many"))
	must(t, os.WriteFile(s.back("sub/after"), []byte("x"), 0o644))
	await(s, "after the overflow", content("sub/after"))
}

// TestManyDirectoriesAreSeenInAShortTime has more directories than are watched.
func TestManyDirectoriesAreSeenInAShortTime(t *testing.T) {
	s := start(t, options{watched: 8})
	for i := range 30 {
		s.seed(map[string]string{fmt.Sprintf("d%d/file", i): "text"})
	}
	look := func() {
		for i := range 30 {
			content(fmt.Sprintf("d%d/file", i))(s.dir)
			content(fmt.Sprintf("d%d/none", i))(s.dir)
		}
	}
	look()
	for i := range 30 {
		must(t, os.Rename(s.back(fmt.Sprintf("d%d/file", i)), s.back(fmt.Sprintf("d%d/none", i))))
	}
	for i := range 30 {
		await(s, "the old name", content(fmt.Sprintf("d%d/file", i)))
		await(s, "the new name", content(fmt.Sprintf("d%d/none", i)))
	}
}

// startWithOneQuestion is start for a session in which a person is asked about one new file. asked is
// closed at the question, and the test closes answer to allow it.
func startWithOneQuestion(t *testing.T, rel string) (s *session, asked, answer chan struct{}) {
	asked, answer = make(chan struct{}), make(chan struct{})
	return start(t, options{
		policy: `
file_rules:
  - {name: asked, paths: ["WS/` + rel + `"], operations: [create], decision: approve, timeout: 60s}
  - {name: all, paths: ["WS/**"], operations: ["*"], decision: allow}
`,
		ask: func(context.Context, wire.Question) wire.Answer {
			close(asked)
			<-answer
			return wire.Answer{Allow: true, By: "test"}
		},
	}), asked, answer
}

// TestAHostEditWaitsForNobody makes an edit in a directory in which a command waits for
// a person: the kernel keeps that directory locked.
func TestAHostEditWaitsForNobody(t *testing.T) {
	s, asked, answer := startWithOneQuestion(t, "asked/new")
	s.seed(map[string]string{"asked/file": "one", "beside/file": "one"})
	warmed := listOf("asked")(s.dir) + content("asked/file")(s.dir) + content("beside/file")(s.dir)
	done := make(chan error, 1)
	go func() { done <- os.WriteFile(s.path("asked/new"), nil, 0o644) }()
	<-asked
	must(t, os.WriteFile(s.back("asked/other"), nil, 0o644))
	must(t, os.WriteFile(s.back("asked/file"), []byte("two!"), 0o644))
	must(t, os.Rename(s.back("beside/file"), s.back("beside/renamed")))
	await(s, "a name beside", content("beside/renamed"))
	await(s, "a file beside", content("beside/file"))
	await(s, "the content in the locked directory", content("asked/file"))
	close(answer)
	must(t, <-done)
	await(s, "the locked directory", listOf("asked"))
	_ = warmed
}

// outside runs a script as a process that is neither the session nor its supervisor,
// which in tests is this process.
func outside(t testing.TB, dir, script string) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// inside runs a script as a command of a session, with the mark of its command.
func inside(s *session, script string) {
	s.t.Helper()
	outside(s.t, s.dir, "exec prlimit --rttime=4711:4711 sh -ec '"+script+"'")
}

func TestHostEditsAreTold(t *testing.T) {
	s := start(t, options{})
	s.seed(map[string]string{"d/edited": "one", "d/removed": "x", "d/both": "x", "d/saved": "old", "d/large": strings.Repeat("x", 1<<20)})
	listOf("d")(s.dir)
	content("d/saved")(s.dir)
	outside(t, s.back("d"), "echo two >edited; rm removed; echo y >>both; echo new >.tmp; mv .tmp saved; mkdir made; touch brief; rm brief; "+
		"touch \"$(printf 'b\\377')\"")
	want := map[string]wire.ChangedBy{
		"d/edited": wire.ByHost, "d/removed": wire.ByHost, "d/saved": wire.ByHost, "d/made": wire.ByHost, "d/both": wire.ByBoth,
		"d/b\xff": wire.ByHost,
		"d/large": "", "d/moved": "", "d/own": "", "d/held": "",
	}
	for _, path := range []string{"edited", "removed", "both", "saved", "made", "b\xff"} {
		e := s.waitEvent(func(e wire.Event) bool { return e.Type == wire.EventHost && e.Path == s.path("d/"+path) })
		if e.Op == "" || e.Count == 0 || e.Mechanism != "fanotify" || e.Decision != "" {
			t.Errorf("%+v", e)
		}
	}
	inside(s, `echo z >>d/both; dd if=/dev/zero of=d/large bs=4k count=200 conv=notrunc 2>/dev/null; cp d/large d/copy; mv d/copy d/moved;
		echo a >d/own; chmod 600 d/own; exec 3>>d/held; for i in 1 2 3 4 5 6 7 8 9; do echo $i >&3; done; rm -f d/none`)
	list, err := s.control.Changes(t.Context(), "ws")
	must(t, err)
	for _, c := range list {
		by, known := want[string(c.Path)]
		if !known || by != c.By {
			t.Errorf("recorded: %+v", c)
		}
		delete(want, string(c.Path))
	}
	if len(want) > 0 {
		t.Errorf("not recorded: %v (%+v)", want, list)
	}
	must(t, s.control.Drain(t.Context()))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		for _, own := range []string{"large", "moved", "own", "held", "copy"} {
			if e.Type == wire.EventHost && e.Path == s.path("d/"+own) {
				t.Errorf("a write of the session: %+v", e)
			}
		}
	}
}

// TestManyHostEditsAreToldInOneCount makes edits of many paths within a second.
func TestManyHostEditsAreToldInOneCount(t *testing.T) {
	s := start(t, options{})
	must(t, os.Mkdir(s.back("d"), 0o755))
	listOf("d")(s.dir)
	outside(t, s.back("d"), "seq 3000 | xargs touch")
	s.waitEvent(func(e wire.Event) bool { return e.Type == wire.EventHost && e.Count > 500 && e.Path == s.dir })
	deadline := time.Now().Add(20 * time.Second)
	for {
		list, err := s.control.Changes(t.Context(), "ws")
		must(t, err)
		if len(list) == 3000 && list[0].By == wire.ByHost && list[0].Kind == wire.Created {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d changes, the first %+v", len(list), list[0])
		}
		<-time.After(10 * time.Millisecond)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.events) > 400 {
		t.Errorf("%d events", len(s.events))
	}
}

// TestWhatTheSupervisorWritesIsNotTold writes behind the mount and announces it.
func TestWhatTheSupervisorWritesIsNotTold(t *testing.T) {
	s := start(t, options{})
	s.seed(map[string]string{"d/file": "one"})
	listOf("d")(s.dir)
	must(t, os.WriteFile(s.back("d/by-pid"), []byte("two"), 0o644))
	outside(t, s.back("d"), "echo two >file")
	must(t, s.control.Invalidate(t.Context(), s.path("d/file")))
	outside(t, s.back("d"), "echo end >end")
	s.waitEvent(func(e wire.Event) bool { return e.Type == wire.EventHost && e.Path == s.path("d/end") })
	list, err := s.control.Changes(t.Context(), "ws")
	must(t, err)
	if len(list) != 1 || list[0].Path != "d/end" {
		t.Errorf("recorded: %+v", list)
	}
}
