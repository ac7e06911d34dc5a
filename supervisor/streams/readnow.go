package streams

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// readNow reads the available bytes from a non-blocking descriptor. It returns
// 0 or less at the end, on an error, or if it would block.
func readNow(raw syscall.RawConn, buf []byte) int {
	n := 0
	err := raw.Read(func(fd uintptr) bool {
		for {
			var err error
			n, err = unix.Read(int(fd), buf)
			if err != unix.EINTR {
				return true
			}
		}
	})
	if err != nil {
		return 0
	}
	return n
}
