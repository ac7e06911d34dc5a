package output

import (
	"errors"
	"syscall"
)

// Unwritable is the hint about a state directory that cannot be written; empty: it can.
func Unwritable(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "free some disk space, or set XDG_STATE_HOME to a larger file system"
	case errors.Is(err, syscall.EROFS):
		return "make the file system writable, or set XDG_STATE_HOME to another one"
	}
	return ""
}
