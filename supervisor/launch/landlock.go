package launch

import "golang.org/x/sys/unix"

// Landlock is the floor beneath the other layers: what the kernel grants at
// most. See landlock(7).
type Landlock struct {
	// Handled are the file rights that only Rules grant; 0 leaves files alone.
	// Rights the kernel does not know are dropped: LandlockABI tells.
	Handled uint64
	Rules   []LandlockRule
	// Net are the TCP rights that are refused altogether.
	Net uint64
	// Scope keeps signals and abstract Unix sockets inside the session, where
	// the kernel has scopes (ABI 6).
	Scope bool
}

// LandlockRule grants rights on a path inside and all below it. A path that is
// not there grants nothing.
type LandlockRule struct {
	Path   string
	Access uint64
}

// Sets of file rights.
const (
	LandlockRead = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	LandlockExec = unix.LANDLOCK_ACCESS_FS_EXECUTE
	// LandlockWrite is every way to change files. It holds REFER, without which
	// no rename leaves its directory.
	LandlockWrite = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR |
		unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO |
		unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE
)

// LandlockABI is the kernel's version of Landlock; 0: it has none, or it is
// switched off. From 6 on it has scopes.
func LandlockABI() int {
	const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// supported are the file rights an ABI knows.
func supported(abi int) uint64 {
	rights := uint64(unix.LANDLOCK_ACCESS_FS_REFER) - 1
	if abi >= 2 {
		rights |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		rights |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= 5 {
		rights |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	return rights
}

func (l *Landlock) op(s *spec) {
	const (
		scopes = 3 // abstract Unix sockets, signals
		tcp    = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	)
	abi := LandlockABI()
	handled, net, scope := l.Handled&supported(abi), uint64(0), uint64(0)
	if abi >= 4 {
		net = l.Net & tcp
	}
	if abi >= 6 && l.Scope {
		scope = scopes
	}
	if abi == 0 || handled|net|scope == 0 {
		return
	}
	s.u32(opLandlock)
	s.u64(handled)
	s.u64(net)
	s.u64(scope)
	s.u32(uint32(len(l.Rules)))
	for _, r := range l.Rules {
		s.u64(r.Access & handled)
		s.str(r.Path)
	}
}
