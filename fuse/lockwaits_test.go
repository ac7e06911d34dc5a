package fuse

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// threadsOf returns the number of threads of a process, and its memory in KiB.
func threadsOf(t *testing.T, pid int) (threads, memory int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for line := range bytes.Lines(status) {
		name, value, _ := strings.Cut(string(line), ":")
		n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		switch name {
		case "Threads":
			threads = n
		case "VmRSS":
			memory = n
		}
	}
	return threads, memory
}

// TestThousandsOfWaitsForLocksEndNothing: 2,000 calls wait for one lock. As many as the
// limit wait; the others fail with ENOLCK, and an event says so. Each that waits gets
// the lock, and the server goes on.
func TestThousandsOfWaitsForLocksEndNothing(t *testing.T) {
	const waits, most = 2000, 512
	s := start(t, options{})
	s.seed(map[string]string{"f": "x"})
	holder, err := os.Open(s.path("f"))
	must(t, err)
	defer holder.Close()
	must(t, unix.Flock(int(holder.Fd()), unix.LOCK_EX))
	before, memory := threadsOf(t, s.server.Process.Pid)
	results := make(chan error, waits)
	for range waits {
		fd, err := unix.Open(s.path("f"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(t, err)
		go func() {
			err := unix.Flock(fd, unix.LOCK_EX)
			closeFD(fd)
			results <- err
		}()
	}
	for range waits - most {
		if err := <-results; !errors.Is(err, unix.ENOLCK) {
			t.Fatalf("a wait beyond the limit: %v", err)
		}
	}
	threads, grown := threadsOf(t, s.server.Process.Pid)
	t.Logf("%d threads and %d KiB before, %d threads and %d KiB with %d waits", before, memory, threads, grown, most)
	if threads > before+most+64 {
		t.Errorf("the server has %d threads", threads)
	}
	e := s.waitEvent(func(e wire.Event) bool { return strings.Contains(e.Message, "a lock is refused") })
	if !strings.Contains(e.Message, fmt.Sprintf("%d locks are waited for", most)) {
		t.Errorf("the event says %q", e.Message)
	}
	must(t, unix.Flock(int(holder.Fd()), unix.LOCK_UN))
	for range most {
		must(t, <-results)
	}
	must(t, unix.Flock(int(holder.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	holds(t, s.path("f"), "x")
}

// TestManyRangesOfManyFilesAreLocked: a process locks thousands of ranges, in one file
// and in a thousand, and all hold on the host.
func TestManyRangesOfManyFilesAreLocked(t *testing.T) {
	ranges := coherenceRounds(t, 10) * 500 // 100,000 with "make coherence"
	s := start(t, options{})
	files := min(ranges/100, 1000)
	names := make([]string, files)
	for i := range names {
		names[i] = fmt.Sprint("d/f", i)
		s.seed(map[string]string{names[i]: "x"})
	}
	lock := func(fd, cmd int, typ int16, at int64) error {
		return unix.FcntlFlock(uintptr(fd), cmd, &unix.Flock_t{Type: typ, Start: at, Len: 1})
	}
	free := func(name string, at int64) bool {
		fd, err := unix.Open(s.back(name), unix.O_RDWR|unix.O_CLOEXEC, 0)
		must(t, err)
		defer closeFD(fd)
		return lock(fd, unix.F_OFD_SETLK, unix.F_WRLCK, at) == nil
	}
	fds := make([]int, files)
	for i, name := range names {
		fd, err := unix.Open(s.path(name), unix.O_RDWR|unix.O_CLOEXEC, 0)
		must(t, err)
		fds[i] = fd
	}
	defer func() {
		for _, fd := range fds {
			closeFD(fd)
		}
	}()
	half := int64(ranges / 2)
	for at := half - 1; at >= 0; at-- { // downwards: the kernel searches its list from the start
		must(t, lock(fds[0], unix.F_OFD_SETLK, unix.F_WRLCK, 2*at))
		must(t, lock(fds[int(at)%files], unix.F_OFD_SETLK, unix.F_WRLCK, 1<<40+2*at))
	}
	for _, at := range []int64{0, 2, half, 2*half - 2} {
		if at%2 == 0 && free(names[0], at) || !free(names[0], at+1) {
			t.Errorf("byte %d is not locked on the host, or the next is", at)
		}
	}
	for i := range min(files, int(half)) {
		if at := int64(1<<40 + 2*i); free(names[i], at) || !free(names[i], at+1) {
			t.Errorf("%s: byte %d is not locked on the host, or the next is", names[i], at)
		}
	}
	must(t, unix.FcntlFlock(uintptr(fds[0]), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK}))
	if !free(names[0], 0) || !free(names[0], 1<<40) {
		t.Error("a lock is left after the unlock")
	}
}
