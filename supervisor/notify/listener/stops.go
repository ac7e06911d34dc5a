package listener

// #cgo CFLAGS: -O2 -Wall -Wextra -std=gnu11
// #include "stops.h"
import "C"

import (
	"errors"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/notify/engine"
)

// stops waits for the stops of the threads that a follower traces. It is for the thread
// that traces them.
type stops struct{ c C.struct_stops }

// next waits for a stop that the follower needs, or for the end of a thread. See stops.c.
func (s *stops) next(f engine.Follower) (int, unix.WaitStatus, error) {
	skips := f.Skips()
	if skips.Rare {
		var status unix.WaitStatus
		tid, err := waitLong(&status)
		for errors.Is(err, unix.EINTR) {
			tid, err = waitLong(&status)
		}
		return tid, status, err
	}
	var c C.struct_skips
	if skips.Calls != nil && len(skips.Names) > 0 {
		var pins runtime.Pinner
		defer pins.Unpin()
		pins.Pin(skips.Calls)
		pins.Pin(&skips.Names[0])
		c = C.struct_skips{
			calls: (*C.uchar)(unsafe.Pointer(skips.Calls)), numbers: engine.CallNumbers,
			names: (*C.char)(unsafe.Pointer(&skips.Names[0])), length: C.int(len(skips.Names)),
		}
	}
	s.c.most = C.int(skips.Most)
	tid := int(C.agentsh_next_stop(&s.c, c))
	f.Skipped(int(s.c.counted))
	if tid < 0 {
		return 0, 0, unix.Errno(-tid)
	}
	return tid, unix.WaitStatus(s.c.status), nil
}
