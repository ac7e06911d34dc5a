package follow

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
	"agentsh/fuse/watch"
	"agentsh/internal/testenv"
)

// site is a tree over a directory with a follower.
type site struct {
	t      *testing.T
	top    string
	tree   *tree.Tree
	f      *Follower
	m      *Mount
	change chan struct{}

	mu      sync.Mutex
	changed map[string]int // number of the directory and name
	drops   int
	forgets int
	lost    func() // while the kernel is made to ask for everything
}

func newSite(t *testing.T, most int) *site {
	s := &site{t: t, top: t.TempDir(), change: make(chan struct{}, 1), changed: map[string]int{}, lost: func() {}}
	fd, err := unix.Open(s.top, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	var st unix.Stat_t
	must(t, unix.Fstat(fd, &st))
	s.tree = tree.New(&st)
	s.f = New(most, false)
	s.f.pause = 0
	t.Cleanup(s.f.Close)
	s.m = s.f.Add(MountConfig{
		Tree: s.tree, Backing: tree.Backing{FD: fd, Dir: true},
		Changed: func(dir uint64, e watch.Event) { s.note(func() { s.changed[fmt.Sprint(dir, " ", e.Name)]++ }) },
		ForgetNames: func() bool {
			s.note(func() { s.forgets++ })
			return true
		},
		Lost:       func() { s.lost() },
		Everything: func() { s.note(func() { s.drops++ }) },
	})
	return s
}

func (s *site) note(change func()) {
	s.mu.Lock()
	change()
	s.mu.Unlock()
	select {
	case s.change <- struct{}{}:
	default:
	}
}

// hangs is when a test gives up.
const hangs = 2 * time.Minute

// wait is for one goroutine at a time.
func (s *site) wait(what string, ok func() bool) {
	s.t.Helper()
	deadline := time.After(hangs)
	for {
		s.mu.Lock()
		done := ok()
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-s.change:
		case <-deadline:
			s.t.Fatalf("%s: %v, %d drops, %d directories", what, s.changed, s.drops, s.f.Count())
		}
	}
}

// dir makes a directory and the kernel look it up and look into it.
func (s *site) dir(parent *tree.Node, path string) *tree.Node {
	s.t.Helper()
	full := filepath.Join(s.top, path)
	must(s.t, os.MkdirAll(full, 0o755))
	fd, err := unix.Open(full, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(s.t, err)
	defer unix.Close(fd)
	var st unix.Stat_t
	must(s.t, unix.Fstat(fd, &st))
	n := s.tree.Adopt(parent, filepath.Base(path), &st)
	s.m.Look(n, fd)
	return n
}

func (s *site) touch(path string) {
	s.t.Helper()
	// The changes of this process are not reported: another one makes them.
	proc, err := os.StartProcess("/bin/sh", []string{"sh", "-c", `: >"$1"`, "sh", filepath.Join(s.top, path)}, &os.ProcAttr{})
	must(s.t, err)
	state, err := proc.Wait()
	must(s.t, err)
	if !state.Success() {
		s.t.Fatalf("touch %s: %v", path, state)
	}
}

func (s *site) seen(n *tree.Node, name string) func() bool {
	return func() bool { return s.changed[fmt.Sprint(n.ID(), " ", name)] > 0 }
}

// now reports what a condition of wait is at present.
func (s *site) now(ok func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ok()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestADirectoryIsWatchedUntilTheKernelForgetsIt(t *testing.T) {
	s := newSite(t, 100)
	a := s.dir(s.tree.Root(), "a")
	b := s.dir(a, "a/b")
	if !s.tree.Host.Watched(a) || !s.tree.Host.Watched(b) || s.f.Count() != 2 {
		t.Fatalf("%d directories are watched", s.f.Count())
	}
	s.touch("a/b/file")
	s.wait("a file", s.seen(b, "file"))
	s.tree.Forget(b.ID(), 1)
	if s.f.Count() != 1 {
		t.Errorf("%d directories are watched", s.f.Count())
	}
	s.touch("a/b/unseen")
	s.touch("a/end")
	s.wait("the end", s.seen(a, "end"))
	if s.now(s.seen(b, "unseen")) {
		t.Error("a forgotten directory is reported")
	}
	again := s.dir(a, "a/b")
	s.touch("a/b/again")
	s.wait("a directory that came back", s.seen(again, "again"))
}

func TestTheOldestAreReleasedFirst(t *testing.T) {
	s := newSite(t, 16)
	var nodes []*tree.Node
	for i := range 16 {
		nodes = append(nodes, s.dir(s.tree.Root(), fmt.Sprint("d", i)))
	}
	late := s.dir(s.tree.Root(), "late")
	if s.tree.Host.Watched(late) {
		t.Fatal("more directories are watched than allowed")
	}
	s.wait("the drop of what was cached", func() bool { return s.drops > 0 })
	for i, n := range nodes {
		if got := s.tree.Host.Watched(n); got != (i >= 2) {
			t.Errorf("directory %d: watched %v", i, got)
		}
	}
	late = s.dir(s.tree.Root(), "late")
	s.touch("late/file")
	s.wait("the late directory", s.seen(late, "file"))
	if s.f.Count() > 16 {
		t.Errorf("%d directories are watched", s.f.Count())
	}
}

// TestAReleasedDirectoryIsReportedUntilTheKernelAsks: the kernel uses what it was told of a
// directory until it is made to ask. Until then changes are reported, but nothing new is
// cached for long. A directory that the kernel asks for meanwhile is watched again.
func TestAReleasedDirectoryIsReportedUntilTheKernelAsks(t *testing.T) {
	s := newSite(t, 16)
	asked, goOn := make(chan struct{}, 1), make(chan struct{})
	resume := sync.OnceFunc(func() { close(goOn) })
	defer resume()
	s.lost = sync.OnceFunc(func() {
		asked <- struct{}{}
		<-goOn
	})
	var nodes []*tree.Node
	for i := range 16 {
		nodes = append(nodes, s.dir(s.tree.Root(), fmt.Sprint("d", i)))
	}
	s.dir(s.tree.Root(), "late")
	select {
	case <-asked:
	case <-time.After(hangs):
		t.Fatal("the kernel is not made to ask")
	}
	for i, n := range nodes {
		if got := s.tree.Host.Watched(n); got != (i >= 2) {
			t.Errorf("directory %d: watched %v", i, got)
		}
	}
	s.touch("d0/file")
	s.wait("a change in a directory that is being released", s.seen(nodes[0], "file"))
	s.dir(s.tree.Root(), "d1") // the kernel asks for it
	resume()
	s.wait("the drop of what was cached", func() bool { return s.drops > 0 })
	if n := s.f.Count(); n != 15 || s.tree.Host.Watched(nodes[0]) || !s.tree.Host.Watched(nodes[1]) {
		t.Errorf("%d directories are watched, d0 %v, d1 %v", n, s.tree.Host.Watched(nodes[0]), s.tree.Host.Watched(nodes[1]))
	}
	s.touch("d0/unseen")
	s.touch("d1/file")
	s.wait("a change in a directory that is watched again", s.seen(nodes[1], "file"))
	if s.now(s.seen(nodes[0], "unseen")) {
		t.Error("a released directory is reported")
	}
}

// TestNamesThatTheKernelDoesNotTakeAreBounded: nobody asks for anything while a directory
// is in use.
func TestNamesThatTheKernelDoesNotTakeAreBounded(t *testing.T) {
	s := newSite(t, 100)
	d := s.dir(s.tree.Root(), "d")
	var taken []func()
	for range 2 * mostExpiries {
		taken = append(taken, s.m.Expiring(d.ID()))
	}
	s.touch("d/x")
	s.wait("an expiry of all names", func() bool { return s.forgets > 0 })
	s.touch("d/y")
	s.wait("a further change", s.seen(d, "y"))
	if s.forgets != 1 {
		t.Errorf("all names expired %d times", s.forgets)
	}
	for _, done := range taken {
		done() // the kernel takes them at last
	}
	if n := s.f.expiries.some.Load(); n != 0 {
		t.Errorf("%d names are on the way", n)
	}
}

// TestLooksAndReleasesAtOnce uses the follower from several goroutines while it loses
// everything again and again.
func TestLooksAndReleasesAtOnce(t *testing.T) {
	s := newSite(t, 40)
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for i := range 50 {
				n := s.dir(s.tree.Root(), fmt.Sprintf("w%d-%d", w, i%20))
				if i%3 == 0 {
					s.tree.Forget(n.ID(), 1)
				}
				if i%17 == 0 {
					s.f.lost()
				}
			}
		})
	}
	workers.Wait()
	for i := range 20 {
		n := s.dir(s.tree.Root(), fmt.Sprintf("w0-%d", i))
		if !s.tree.Host.Watched(n) {
			continue // too many are watched
		}
		s.touch(fmt.Sprintf("w0-%d/end", i))
		s.wait("an entry of a watched directory", s.seen(n, "end"))
	}
}

// TestAnEighthIsReleasedAtTheKernelsLimit runs again in a user namespace where the kernel
// marks fewer directories than a session may watch.
func TestAnEighthIsReleasedAtTheKernelsLimit(t *testing.T) {
	const limitedEnv = "AGENTSH_TEST_MARKS"
	if os.Getenv(limitedEnv) == "" {
		testenv.Need(t, testenv.UserNS)
		self, err := os.Executable()
		must(t, err)
		cmd := exec.Command("unshare", "-U", "-r", "sh", "-ec", `echo 16 >/proc/sys/user/max_fanotify_marks; exec unshare -U -r "$@"`,
			"sh", self, "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), limitedEnv+"=16")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "room was made") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	s := newSite(t, 1000)
	var nodes []*tree.Node
	for i := range 16 {
		nodes = append(nodes, s.dir(s.tree.Root(), fmt.Sprint("d", i)))
	}
	if late := s.dir(s.tree.Root(), "late"); s.tree.Host.Watched(late) {
		t.Fatal("more directories are watched than the kernel allows")
	}
	s.wait("the drop of what was cached", func() bool { return s.drops > 0 })
	for i, n := range nodes {
		if got := s.tree.Host.Watched(n); got != (i >= 2) {
			t.Errorf("directory %d: watched %v", i, got)
		}
	}
	late := s.dir(s.tree.Root(), "late")
	s.touch("late/file")
	s.wait("the late directory", s.seen(late, "file"))
	t.Log("room was made")
}

// Whoever asks for the edits in between, a second has a bounded number of events, and one
// that counts the rest.
func TestEventsOfEditsAreBoundedWhoeverFlushes(t *testing.T) {
	var told, events, counted, counts int
	s := NewEdits(func(list []Edit, first, more int) {
		told += len(list)
		events += first
		counted += more
		if more > 0 {
			counts++
		}
	})
	s.timer = true // the test ends the window
	note := func(n int) {
		for range n {
			s.Note(Edit{Path: fmt.Sprint(told, " ", len(s.pending))})
		}
	}
	for range 5 {
		note(30)
		s.Flush()
	}
	if told != 150 || events != maxEvents || counts != 0 {
		t.Errorf("%d told, %d events, %d counts before the end of the window", told, events, counts)
	}
	note(10)
	s.flush(true)
	s.flush(true)
	if told != 160 || events != maxEvents || counted != 160-maxEvents || counts != 1 {
		t.Errorf("%d told, %d events, %d counted by %d", told, events, counted, counts)
	}
	note(10)
	s.Flush()
	if events != maxEvents+10 {
		t.Errorf("%d events in the next window", events-maxEvents)
	}
}
