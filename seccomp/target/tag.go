package target

import (
	"bytes"
	"errors"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// tagNames are the limits that can hold a tag, as proc_pid_limits(5) names them.
var tagNames = [][]byte{[]byte("\nMax realtime timeout"), []byte("\nMax resident set")}

// leastTag is less than every tag, and more than any limit that means memory.
const leastTag = 1 << 62

// TagRSS reports that this kernel does not let seccomp.TagLimit be set, so that RLIMIT_RSS
// has the tags. It tries.
var TagRSS = sync.OnceValue(func() bool {
	var l unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_RTTIME, nil, &l); err != nil {
		return false // whoever sets it reports it
	}
	return errors.Is(unix.Prlimit(0, unix.RLIMIT_RTTIME, &l, nil), unix.EPERM)
})

// Tag finds the tag in the text of /proc/PID/limits. ok is false for a process without
// one.
func Tag(limits []byte) (tag uint64, ok bool) {
	for i, name := range tagNames {
		_, rest, _ := bytes.Cut(limits, name)
		line, _, _ := bytes.Cut(rest, []byte("\n"))
		fields := bytes.Fields(line)
		if len(fields) < 2 {
			continue
		}
		if tag, err := strconv.ParseUint(string(fields[1]), 10, 64); err == nil && (i == 0 || tag >= leastTag) {
			return tag, true
		}
	}
	return 0, false
}
