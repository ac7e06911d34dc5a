package notify

import "golang.org/x/sys/unix"

const nativeArch = 0xc000003e // AUDIT_ARCH_X86_64

// addArch adds the calls that newer architectures do not have.
func addArch(handlers map[int]handler, h *procFiles) {
	handlers[unix.SYS_OPEN] = h.openPath
	handlers[unix.SYS_INOTIFY_INIT] = handlers[unix.SYS_INOTIFY_INIT1]
}

func init() {
	pathCalls[unix.SYS_OPEN] = pathCall{kind: callOpen, dir: -1, path: 0, flags: 1}
	pathCalls[unix.SYS_STAT] = pathCall{kind: callStat, dir: -1, path: 0, buffer: 1}
	pathCalls[unix.SYS_LSTAT] = pathCall{kind: callStat, dir: -1, path: 0, buffer: 1, keepsLink: true}
	pathCalls[unix.SYS_READLINK] = pathCall{kind: callReadlink, dir: -1, path: 0, buffer: 1, size: 2}
}

// openPath is open(2).
func (h *procFiles) openPath(c *call) (answer, error) {
	return h.answer(c, opening{dir: unix.AT_FDCWD, path: c.Args[0], flags: int(uint32(c.Args[1]))}, nil)
}
