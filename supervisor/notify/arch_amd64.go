package notify

import "golang.org/x/sys/unix"

const nativeArch = 0xc000003e // AUDIT_ARCH_X86_64

func init() { handlers[unix.SYS_OPEN] = (*worker).openPath }

// openPath is open(2), which newer architectures do not have.
func (w *worker) openPath(c *call) error {
	return w.open(c, opening{dir: unix.AT_FDCWD, path: c.Args[0], flags: int(uint32(c.Args[1]))}, nil)
}
