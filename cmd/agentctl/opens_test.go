package main

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/controller/record"
)

// opens stops every open of a file on one file system until a callback has
// returned. So a test can act at a defined moment of a run, between two opens.
// See fanotify(7), FAN_OPEN_PERM.
type opens struct {
	t    testing.TB
	runs string // directory of the run records
	fd   int

	mu     sync.Mutex
	step   string // step in the record of the current run
	number int    // opens in this step
	counts map[string]int
	each   func(open)
}

// open is one open of a file in a run.
type open struct {
	step   string // last step in the record
	number int    // in this step, from 1
	name   string
}

// Pseudo-steps before and after the steps of a run.
const (
	beforeSteps = "start"
	afterSteps  = "end"
)

// watchOpens watches the fixture's file system, which must not be shared.
func (p *fixture) watchOpens() *opens {
	p.t.Helper()
	fd, err := unix.FanotifyInit(
		unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_UNLIMITED_QUEUE,
		unix.O_RDONLY|unix.O_LARGEFILE|unix.O_CLOEXEC,
	)
	if err != nil {
		p.t.Fatalf("fanotify_init: %v", err)
	}
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, unix.FAN_OPEN_PERM, unix.AT_FDCWD, p.dir); err != nil {
		p.t.Fatalf("fanotify_mark: %v", err)
	}
	o := &opens{t: p.t, runs: filepath.Join(p.state, "agentsh", "runs"), fd: fd}
	stop, wake, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.follow(int32(stop.Fd()))
	}()
	p.t.Cleanup(func() {
		wake.Close()
		<-done
		stop.Close()
		_ = unix.Close(fd) // releases waiting processes
	})
	return o
}

// begin resets the counts. each is called for every open from now on, while the
// opening process waits.
func (o *opens) begin(each func(open)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.step, o.number, o.counts, o.each = "", 0, map[string]int{}, each
}

// end returns the number of opened files in each step.
func (o *opens) end() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.each = nil
	return o.counts
}

// follow answers until stop is closed. It allows opens of this process at once,
// because the process would wait for itself.
func (o *opens) follow(stop int32) {
	var answers sync.WaitGroup
	defer answers.Wait()
	buf := make([]byte, 64<<10)
	for {
		fds := []unix.PollFd{{Fd: int32(o.fd), Events: unix.POLLIN}, {Fd: stop, Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			o.t.Errorf("poll: %v", err)
			return
		}
		if fds[1].Revents != 0 {
			return
		}
		if fds[0].Revents == 0 {
			continue
		}
		n, err := unix.Read(o.fd, buf)
		if err != nil {
			o.t.Errorf("read fanotify: %v", err)
			return
		}
		const head = 24 // struct fanotify_event_metadata
		for rest := buf[:n]; len(rest) >= head; rest = rest[binary.NativeEndian.Uint32(rest):] {
			file, pid := int(int32(binary.NativeEndian.Uint32(rest[16:]))), int(binary.NativeEndian.Uint32(rest[20:]))
			if pid == os.Getpid() {
				o.allow(file)
				continue
			}
			answers.Go(func() {
				o.look(file)
				o.allow(file)
			})
		}
	}
}

// allow allows an open. The write of the answer fails if the opening process
// was killed.
func (o *opens) allow(file int) {
	var answer [8]byte // struct fanotify_response
	binary.NativeEndian.PutUint32(answer[:], uint32(file))
	binary.NativeEndian.PutUint32(answer[4:], unix.FAN_ALLOW)
	if _, err := unix.Write(o.fd, answer[:]); err != nil && !errors.Is(err, unix.ENOENT) {
		o.t.Errorf("answer fanotify: %v", err)
	}
	_ = unix.Close(file)
}

// look counts one open and calls the callback.
func (o *opens) look(file int) {
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(file))
	if err != nil {
		o.t.Errorf("name of an open file: %v", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.each == nil {
		return
	}
	if step := o.current(); step != o.step {
		o.step, o.number = step, 0
	}
	o.number++
	o.counts[o.step] = o.number
	o.each(open{o.step, o.number, name})
}

// current is the step in the newest record.
func (o *opens) current() string {
	records, _ := filepath.Glob(filepath.Join(o.runs, "*", "record.json"))
	if len(records) == 0 {
		return beforeSteps
	}
	r, err := record.Read(filepath.Dir(records[len(records)-1]))
	switch {
	case err != nil:
		o.t.Errorf("run record: %v", err)
		return beforeSteps
	case r.Ended != nil:
		return afterSteps
	case len(r.Steps) == 0:
		return beforeSteps
	}
	return r.Steps[len(r.Steps)-1].Name
}

// mount gives the place a file system of its own, before anything is in it.
func mountTmpfs(t testing.TB, dir, size string) {
	t.Helper()
	if err := unix.Mount("agentctl-test", dir, "tmpfs", 0, "mode=755,size="+size); err != nil {
		t.Fatalf("mount tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
}
