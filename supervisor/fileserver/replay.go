package fileserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"agentsh/fuse"
)

// replayer repeats changes of the host through the session's mounts, so that inotify
// watchers inside see them. The server executes nothing that this process requests: it
// answers with what is there, see package fuse.
type replayer struct {
	roots map[string]*os.File // of the mounts, by path
	init  int                 // process number of the session init
	once  sync.Once
	ended atomic.Bool
	steps chan fuse.Replay
}

// openReplayer opens the mounts before a command runs. It works without those that it
// cannot open.
func openReplayer(init int, mounts []Mount) *replayer {
	r := &replayer{roots: map[string]*os.File{}, init: init, steps: make(chan fuse.Replay, 1024)}
	root, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", init), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return r
	}
	defer root.Close()
	for _, m := range mounts {
		if !m.Dir {
			continue
		}
		fd, err := unix.Openat2(int(root.Fd()), strings.TrimPrefix(m.Path, "/"), &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
		})
		if err != nil {
			continue
		}
		f := os.NewFile(uintptr(fd), m.Path)
		var fs unix.Statfs_t
		if unix.Fstatfs(fd, &fs) != nil || fs.Type != unix.FUSE_SUPER_MAGIC {
			f.Close()
			continue
		}
		r.roots[m.Path] = f
	}
	return r
}

// WatchedInside is called when a command begins to watch files. From then on changes of
// the host are repeated.
func (s *Server) WatchedInside() {
	if s == nil || s.replays == nil {
		return
	}
	s.replays.once.Do(func() {
		tid := make(chan uint32)
		go s.replays.run(tid) // ends with the server
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		_ = s.control.Replays(ctx, <-tid, s.replays.add) // fails if the server has ended, which ends the session
	})
}

// add queues a step. A burst of more steps than fit raises no further events.
func (r *replayer) add(step fuse.Replay) {
	select {
	case r.steps <- step:
	default:
	}
}

// run performs the steps in a thread of its own, whose number the server knows.
func (r *replayer) run(tid chan<- uint32) {
	runtime.LockOSThread()
	tid <- r.tid()
	for step := range r.steps {
		root := r.roots[step.Mount]
		if r.ended.Load() {
			return
		}
		if root == nil {
			continue
		}
		if conn, err := root.SyscallConn(); err == nil {
			// Control keeps the number from being closed and used again meanwhile. Where a step fails, the
			// watchers inside see nothing: the change itself is seen.
			_ = conn.Control(func(fd uintptr) { _ = step.Perform(int(fd)) })
		}
	}
}

// tid returns the number of this thread in requests of the session's mounts. It is 0 in
// a pid namespace to which the thread does not belong, and no command has that number.
func (r *replayer) tid() uint32 {
	var own, theirs unix.Stat_t
	err := errors.Join(unix.Stat("/proc/self/ns/pid", &own), unix.Stat(fmt.Sprintf("/proc/%d/ns/pid", r.init), &theirs))
	if err == nil && own.Ino == theirs.Ino {
		return uint32(unix.Gettid())
	}
	return 0
}

// close ends the replayer.
func (r *replayer) close() {
	if r == nil {
		return
	}
	r.ended.Store(true)
	r.add(fuse.Replay{}) // wakes it
	for _, f := range r.roots {
		f.Close()
	}
}
