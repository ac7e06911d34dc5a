package watch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// seen collects what a watcher reports.
type seen struct {
	t      *testing.T
	w      *Watcher
	mu     sync.Mutex
	events []Event
	lost   int
	change chan struct{}
}

func newSeen(t *testing.T, most int) *seen {
	s := &seen{t: t, change: make(chan struct{}, 1)}
	signal := func() {
		select {
		case s.change <- struct{}{}:
		default:
		}
	}
	s.w = New(Config{
		Most: most,
		Report: func(events []Event) {
			s.mu.Lock()
			s.events = append(s.events, events...)
			s.mu.Unlock()
			signal()
		},
		Lost: func() {
			s.mu.Lock()
			s.lost++
			s.mu.Unlock()
			signal()
		},
	})
	t.Cleanup(s.w.Close)
	return s
}

// wait returns when ok is true of what was reported.
func (s *seen) wait(what string, ok func() bool) {
	s.t.Helper()
	deadline := time.After(30 * time.Second)
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
			s.mu.Lock()
			defer s.mu.Unlock()
			s.t.Fatalf("%s: not among %+v (lost %d)", what, s.events, s.lost)
		}
	}
}

func (s *seen) has(dir uint64, name string, op Op) func() bool {
	return func() bool {
		return slices.ContainsFunc(s.events, func(e Event) bool { return e.Dir == dir && e.Name == name && e.Op&op == op })
	}
}

func (s *seen) reported(dir uint64, name string, op Op) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.has(dir, name, op)()
}

func (s *seen) all() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

func (s *seen) add(key uint64, dir string) Mechanism {
	s.t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer unix.Close(fd)
	how, err := s.w.Add(key, fd)
	if err != nil {
		s.t.Fatalf("watch %s: %v", dir, err)
	}
	return how
}

// other runs a script in another process.
func other(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// directories are on a disk and in memory.
func directories(t *testing.T) map[string]string {
	out := map[string]string{"disk": t.TempDir()}
	if dir, err := os.MkdirTemp("/dev/shm", "watch"); err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		out["memory"] = dir
	}
	return out
}

func TestChangesOfOthersAreReported(t *testing.T) {
	for name, dir := range directories(t) {
		for _, how := range []Mechanism{Fanotify, Inotify} {
			t.Run(fmt.Sprint(name, " ", how), func(t *testing.T) {
				s := newSeen(t, 10)
				if how == Inotify {
					withoutFanotify(s.w)
				}
				top := filepath.Join(dir, how.String())
				must(t, os.MkdirAll(filepath.Join(top, "sub"), 0o755))
				if got := s.add(7, top); got != how {
					t.Fatalf("watched by %v", got)
				}
				s.add(8, filepath.Join(top, "sub"))
				for _, c := range []struct {
					script string
					dir    uint64
					name   string
					op     Op
				}{
					{"echo x >a", 7, "a", Created},
					{"echo x >>a", 7, "a", Modified},
					{"chmod 600 a", 7, "a", Attributes},
					{"mv a b", 7, "a", MovedFrom},
					{"true", 7, "b", MovedTo},
					{"rm b", 7, "b", Deleted},
					{"mkdir d", 7, "d", Created | OnDir},
					{"rmdir d", 7, "d", Deleted | OnDir},
					{"chmod 700 sub", 8, "", Attributes},
					{"ln -s nowhere l", 7, "l", Created},
					{"touch sub/x", 8, "x", Created},
				} {
					other(t, top, c.script)
					s.wait(c.script, s.has(c.dir, c.name, c.op))
				}
			})
		}
	}
}

// withoutFanotify makes a watcher as on a kernel that has no fanotify for users.
func withoutFanotify(w *Watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fan.close()
	w.fan = queue{}
}

func TestOwnChangesAreNotReported(t *testing.T) {
	s := newSeen(t, 10)
	dir := t.TempDir()
	s.add(1, dir)
	for i := range 200 {
		name := filepath.Join(dir, fmt.Sprint(i))
		must(t, os.WriteFile(name, []byte("x"), 0o644))
		must(t, os.Rename(name, name+"b"))
		must(t, os.Remove(name+"b"))
	}
	other(t, dir, "touch end")
	s.wait("the end", s.has(1, "end", Created))
	for _, e := range s.all() {
		if e.Name != "end" {
			t.Errorf("reported: %+v", e)
		}
	}
}

func TestADirectoryIsFollowedWhereverItMoves(t *testing.T) {
	s := newSeen(t, 10)
	top := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(top, "a/d"), 0o755))
	s.add(1, filepath.Join(top, "a/d"))
	other(t, top, "mv a b; mv b/d e; touch e/x; rm e/x; rmdir e; mkdir e; touch e/unseen; mkdir -p a/d; touch a/d/end")
	s.wait("x", s.has(1, "x", Deleted))
	s.add(2, filepath.Join(top, "a/d"))
	other(t, top, "touch a/d/last")
	s.wait("last", s.has(2, "last", Created))
	if s.reported(1, "unseen", Created) || s.reported(1, "end", Created) {
		t.Errorf("a directory with the old name is reported as the old one: %+v", s.all())
	}
}

func TestTwoNumbersOfOneDirectory(t *testing.T) {
	s := newSeen(t, 10)
	dir := t.TempDir()
	s.add(1, dir)
	s.add(2, dir)
	other(t, dir, "touch a")
	s.wait("both", func() bool { return s.has(1, "a", Created)() && s.has(2, "a", Created)() })
	if id := s.w.Forget(1, false); id != "" {
		t.Error("the mark of the other number would be removed")
	}
	other(t, dir, "touch b")
	s.wait("the second", s.has(2, "b", Created))
	if s.reported(1, "b", Created) {
		t.Error("a forgotten number is reported")
	}
}

func TestWhatIsReleasedIsNotWatched(t *testing.T) {
	s := newSeen(t, 2)
	top := t.TempDir()
	var fds []int
	for i := range 3 {
		dir := filepath.Join(top, fmt.Sprint(i))
		must(t, os.Mkdir(dir, 0o755))
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	for i := range 2 {
		if _, err := s.w.Add(uint64(i), fds[i]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.w.Add(2, fds[2]); !errors.Is(err, ErrFull) {
		t.Fatalf("a third directory: %v", err)
	}
	if oldest := s.w.Oldest(1); len(oldest) != 1 || oldest[0] != 0 {
		t.Fatalf("the oldest: %v", oldest)
	}
	id := s.w.Forget(0, false)
	if _, err := s.w.Add(2, fds[2]); !errors.Is(err, ErrFull) {
		t.Fatalf("the mark that is still there does not count: %v", err)
	}
	s.w.Release(id, fds[0])
	if _, err := s.w.Add(2, fds[2]); err != nil {
		t.Fatal(err)
	}
	if marks := marksOf(t, s.w.fan.fd); marks != 2 {
		t.Errorf("%d marks in the kernel", marks)
	}
	s.w.Forget(1, false) // and never found again
	s.w.Release(s.w.Forget(2, false), -1)
	s.wait("the end of all", func() bool { return s.lost == 1 })
	if marks := marksOf(t, s.w.fan.fd); marks != 0 {
		t.Errorf("%d marks in the kernel", marks)
	}
}

// marksOf returns the number of marks of a group, see proc_pid_fdinfo(5).
func marksOf(t *testing.T, fd int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	must(t, err)
	return strings.Count(string(data), "fanotify ino:")
}

func TestAnOverflowIsReported(t *testing.T) {
	s := newSeen(t, 10)
	dir := t.TempDir()
	s.add(1, dir)
	s.w.mu.Lock() // the reader stops at its next events
	var script strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&script, "%d\n", i)
	}
	list := filepath.Join(t.TempDir(), "list")
	must(t, os.WriteFile(list, []byte(script.String()), 0o644))
	func() {
		defer s.w.mu.Unlock()
		other(t, dir, "touch first; xargs touch <"+list+"; xargs rm <"+list)
	}()
	s.wait("the overflow", func() bool { return s.lost > 0 })
}

// TestADrainEndsWhileTheHostGoesOn: the host makes as many changes as fit into the buffer
// whenever some are reported.
func TestADrainEndsWhileTheHostGoesOn(t *testing.T) {
	for _, without := range []bool{false, true} {
		reports, dir := 0, t.TempDir()
		change := func() {
			other(t, dir, fmt.Sprintf("seq -f %%0200.0f %d %d | xargs touch", 300*reports, 300*reports+299))
		}
		s := &seen{t: t, w: New(Config{OnDemand: true, Most: 10, Lost: func() { t.Error("changes were lost") }, Report: func([]Event) {
			if reports++; reports < 20 {
				change()
			}
		}})}
		t.Cleanup(s.w.Close)
		if without {
			withoutFanotify(s.w)
		}
		s.add(1, dir)
		change()
		s.w.Drain(nil)
		if reports == 0 || reports > 3 {
			t.Errorf("without fanotify %v: %d times as many changes were reported as fit into the buffer", without, reports)
		}
	}
}

func TestNetworkFilesystemsAreNotWatched(t *testing.T) {
	for _, magic := range []int64{unix.NFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC, unix.V9FS_MAGIC, 0x12345} {
		if local(magic) {
			t.Errorf("%#x is watched", magic)
		}
	}
	w := newSeen(t, 10).w
	fd, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	if how, err := w.Add(1, fd); err == nil || how != None {
		t.Errorf("/proc is watched by %v", how)
	}
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte{28, 0, 0, 0, 3, 0, 24, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		w := &Watcher{byHandle: map[string]*directory{}, byWatch: map[int32]*directory{}}
		w.parseFanotify(data)
		w.parseInotify(data)
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A queue that fills while its events are gathered must not wake its reader again and again.
func TestAQueueWakesItsReaderOnce(t *testing.T) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	q, err := newQueue(fd, nil, nil)
	must(t, err)
	defer q.close()
	dir := t.TempDir()
	_, err = unix.InotifyAddWatch(fd, dir, unix.IN_CREATE)
	must(t, err)
	open := func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(q.gate.Fd()), Events: unix.POLLIN}}, 0)
		must(t, err)
		return n > 0
	}
	change := func(name string) { must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644)) }

	if open() {
		t.Error("the gate of an empty queue is open")
	}
	change("a")
	if !open() || !opened(q.gate.Fd()) {
		t.Error("the first event does not open the gate")
	}
	change("b")
	if open() || opened(q.gate.Fd()) {
		t.Error("an event opens the gate before it is armed")
	}
	if !q.arm() || !open() {
		t.Error("an armed gate is closed though there are events")
	}
}
