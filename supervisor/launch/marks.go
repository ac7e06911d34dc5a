package launch

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// endGrace is the time that the init of a session without namespaces has to end its
// processes. After it the supervisor ends them.
const endGrace = 10 * time.Second

// A session without namespaces has no pid namespace. Its processes are distinguished from those of
// other sessions by the range of their marks. Keep in step with init.h.
const (
	tagBase  = 1 << 62
	tagSpan  = 1 << 24 // commands of one session
	tagSpans = 1 << 36 // ranges to choose from
)

// newTagBase returns the start of a random range of marks.
func newTagBase() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: see its documentation
	return tagBase + (1+binary.NativeEndian.Uint64(b[:])%tagSpans)*tagSpan
}

// killMarked kills every process whose mark is in the range of base. It ends when two
// searches in a row find none. It does not wait for a process in an uninterruptible wait.
func killMarked(base uint64) {
	deadline := time.Now().Add(endGrace)
	for quiet := 0; quiet < 2 && time.Now().Before(deadline); quiet++ {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return
		}
		for _, e := range entries {
			if pid, err := strconv.Atoi(e.Name()); err == nil && killIfMarked(pid, base) {
				quiet = -1
			}
		}
	}
}

// killIfMarked kills one process. It opens the pidfd before it reads the mark, so that it
// never kills another process with the same number.
func killIfMarked(pid int, base uint64) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil && !errors.Is(err, unix.EPERM) { // EPERM: a filter above refuses it, and the number must do
		return false
	}
	defer func() { _ = unix.Close(fd) }() // nothing to flush
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return false
	}
	if mark, ok := target.Tag(text); !ok || mark <= base || mark >= base+tagSpan {
		return false
	}
	if fd < 0 {
		return unix.Kill(pid, unix.SIGKILL) == nil
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}
