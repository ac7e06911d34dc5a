package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/controller/record"
)

// opens stops every open of a file on one file system until it was looked at,
// so that something can happen at a known moment of a run: between one open and
// the next. See fanotify(7), FAN_OPEN_PERM.
type opens struct {
	t    testing.TB
	runs string // directory of the run records
	fd   int

	mu     sync.Mutex
	step   string // of the run that is going on, as its record says
	number int    // of opens in it
	counts map[string]int
	each   func(open)
}

// open is one open of a file in a run.
type open struct {
	step   string // that the record names last
	number int    // in this step, from 1
	name   string
}

// What stands for a step where there is none.
const (
	beforeSteps = "start"
	afterSteps  = "end"
)

// watchOpens watches the place's file system, which must be one of its own.
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
		_ = unix.Close(fd) // lets go of what still waits
	})
	return o
}

// begin forgets what was seen. each is called for every open from now on, while
// the process that opens waits.
func (o *opens) begin(each func(open)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.step, o.number, o.counts, o.each = "", 0, map[string]int{}, each
}

// end returns how many files were opened in each step.
func (o *opens) end() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.each = nil
	return o.counts
}

// follow answers until stop is closed. Opens of this process are let through:
// it would wait for itself.
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

// allow lets an open go on. It ends without an answer when the process that
// opens was killed.
func (o *opens) allow(file int) {
	var answer [8]byte // struct fanotify_response
	binary.NativeEndian.PutUint32(answer[:], uint32(file))
	binary.NativeEndian.PutUint32(answer[4:], unix.FAN_ALLOW)
	if _, err := unix.Write(o.fd, answer[:]); err != nil && !errors.Is(err, unix.ENOENT) {
		o.t.Errorf("answer fanotify: %v", err)
	}
	_ = unix.Close(file)
}

// look counts one open and tells of it.
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

// current is the step that the newest record names. The record is written when
// a step begins, so its write is the last open of the step before.
func (o *opens) current() string {
	records, _ := filepath.Glob(filepath.Join(o.runs, "*", "record.json"))
	if len(records) == 0 {
		return beforeSteps
	}
	var r record.Record
	data, err := os.ReadFile(records[len(records)-1])
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
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
func mountTmpfs(t *testing.T, dir, size string) {
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
