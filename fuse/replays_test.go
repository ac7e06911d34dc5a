package fuse

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// watcher collects inotify events inside a session.
type watcher struct {
	t      *testing.T
	f      *os.File
	fd     int
	names  map[int32]string
	mu     sync.Mutex
	events []string
	change chan struct{}
}

func newWatcher(t *testing.T) *watcher {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	w := &watcher{t: t, f: os.NewFile(uintptr(fd), "inotify"), fd: fd, names: map[int32]string{}, change: make(chan struct{}, 1)}
	t.Cleanup(func() { w.f.Close() })
	go w.read() // ends with the file
	return w
}

func (w *watcher) add(path, name string) {
	w.t.Helper()
	wd, err := unix.InotifyAddWatch(w.fd, path, unix.IN_ALL_EVENTS)
	must(w.t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[int32(wd)] = name
}

func (w *watcher) read() {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.f.Read(buf)
		if err != nil {
			return
		}
		w.mu.Lock()
		for b := buf[:n]; len(b) > 0; {
			wd, mask, size := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:]), binary.NativeEndian.Uint32(b[12:])
			name, _, _ := strings.Cut(string(b[16:16+size]), "\x00")
			b = b[16+size:]
			for bit, word := range map[uint32]string{unix.IN_CREATE: "create", unix.IN_DELETE: "delete", unix.IN_MODIFY: "modify",
				unix.IN_ATTRIB: "attrib", unix.IN_DELETE_SELF: "gone"} {
				if mask&bit != 0 {
					w.events = append(w.events, fmt.Sprint(word, " ", filepath.Join(w.names[wd], name)))
				}
			}
		}
		w.mu.Unlock()
		select {
		case w.change <- struct{}{}:
		default:
		}
	}
}

func (w *watcher) wait(event string) {
	w.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		w.mu.Lock()
		found := slices.Contains(w.events, event)
		w.mu.Unlock()
		if found {
			return
		}
		select {
		case <-w.change:
		case <-deadline:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.t.Fatalf("no %q among %q", event, w.events)
		}
	}
}

// replayer performs what the server announces, as the supervisor does, in a thread of
// its own. The result performs a step that nobody announced.
func replayer(t *testing.T, s *session) func(Replay) error {
	type task struct {
		step   Replay
		result chan error
	}
	tasks, tid := make(chan task, 1000), make(chan uint32)
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	root, err := unix.Open(s.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(root) })
	go func() {
		runtime.LockOSThread()
		tid <- uint32(unix.Gettid())
		for {
			select {
			case task := <-tasks:
				task.result <- task.step.Perform(root)
			case <-ended:
				return
			}
		}
	}()
	do := func(step Replay) error {
		result := make(chan error, 1)
		tasks <- task{step, result}
		return <-result
	}
	must(t, s.control.Replays(t.Context(), <-tid, func(step Replay) { tasks <- task{step, make(chan error, 1)} }))
	return do
}

func TestHostEditsRaiseEventsInside(t *testing.T) {
	s := start(t, options{})
	s.seed(map[string]string{"d/known": "x", "d/unknown": "x", "d/edited": "x", "d/mode": "x", "d/saved": "x", "d/replaced": "x", "e/x": "x"})
	must(t, os.Symlink("nowhere", s.back("d/link")))
	replayer(t, s)
	w := newWatcher(t)
	w.add(s.path("d"), "d")
	w.add(s.path("d/known"), "known")
	w.add(s.path("d/replaced"), "replaced")
	listOf("d")(s.dir)
	for _, c := range []struct {
		script string
		events []string
	}{
		{"echo a >d/new", []string{"create d/new"}},
		{"echo b >>d/edited", []string{"modify d/edited"}},
		{"chmod 600 d/mode", []string{"attrib d/mode"}},
		{"rm d/unknown", []string{"delete d/unknown"}},
		{"rm d/known", []string{"delete d/known", "gone known"}},
		{"mkdir d/sub", []string{"create d/sub"}},
		{"rmdir d/sub", []string{"delete d/sub"}},
		{"echo saved >d/.s; mv d/.s d/saved", []string{"create d/saved"}},
		{"echo new >d/.r; mv d/.r d/replaced", []string{"create d/replaced", "gone replaced"}},
		{"mv d/mode d/renamed", []string{"delete d/mode", "create d/renamed"}},
		{"ln -s somewhere d/link2", []string{"create d/link2"}},
		{"mkfifo d/fifo", []string{"create d/fifo"}},
		{"chmod 700 d", []string{"attrib d"}},
		{"mv e d/moved", []string{"create d/moved"}},
	} {
		outside(t, s.backing, c.script)
		began := time.Now()
		for _, event := range c.events {
			w.wait(event)
		}
		t.Logf("%s: %v", c.script, time.Since(began))
	}
	// Nothing of this changed the backing, and everything is seen.
	for _, e := range []func(string) string{listOf("d"), content("d/new"), content("d/saved"), content("d/edited"), attributesOf("d/renamed"),
		linkOf("d/link2"), listOf("d/moved"), attributesOf("d/mode")} {
		await(s, "after the events", e)
	}
	list, err := s.control.Changes(t.Context(), "ws")
	must(t, err)
	for _, c := range list {
		if c.By == "" {
			t.Errorf("the session changed %+v", c)
		}
	}
}

// TestAReplayChangesNothing performs operations in the supervisor's thread that were not
// announced, and operations of a command on entries that were.
func TestAReplayChangesNothing(t *testing.T) {
	s := start(t, options{})
	s.seed(map[string]string{"d/file": "x"})
	must(t, os.Mkdir(s.back("d/dir"), 0o755))
	do := replayer(t, s)
	before := listOf("d")(s.backing) + attributesOf("d/file")(s.backing)
	for _, step := range []Replay{
		{Dir: "d", Name: "new", Kind: ReplayCreate, Type: unix.S_IFREG},
		{Dir: "d", Name: "new", Kind: ReplayCreate, Type: unix.S_IFDIR},
		{Dir: "d", Name: "new", Kind: ReplayCreate, Type: unix.S_IFLNK},
		{Dir: "d", Name: "file", Kind: ReplayDelete, Type: unix.S_IFREG},
		{Dir: "d", Name: "dir", Kind: ReplayDelete, Type: unix.S_IFDIR},
	} {
		if err := do(step); !errors.Is(err, unix.EPERM) {
			t.Errorf("%+v: %v", step, err)
		}
	}
	must(t, do(Replay{Dir: "d", Name: "file", Kind: ReplayModify}))
	must(t, do(Replay{Dir: "d", Name: "file", Kind: ReplayAttributes}))
	must(t, do(Replay{Dir: "d", Kind: ReplayAttributes}))
	must(t, os.Symlink("/", s.back("out")))
	if err := do(Replay{Dir: "out", Name: "file", Kind: ReplayCreate, Type: unix.S_IFREG}); err == nil {
		t.Error("a replay went through a symbolic link")
	}
	if after := listOf("d")(s.backing) + attributesOf("d/file")(s.backing); after != before {
		t.Errorf("%s became %s", before, after)
	}
	must(t, os.Remove(s.path("d/file"))) // another thread: a command
	if _, err := os.Lstat(s.back("d/file")); err == nil {
		t.Error("the removal of a command was not carried out")
	}
}
