package launch

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/probe/trial"
)

// Landlock defines the rights that a session can have at most, whatever the
// other layers allow. See landlock(7).
type Landlock struct {
	// Handled are the file rights that only Rules grant; 0 restricts no files.
	Handled uint64
	Rules   []LandlockRule
	// Net are the TCP rights that are refused altogether.
	Net uint64
	// Scope restricts signals and abstract Unix sockets to the session.
	Scope bool
}

// check returns an error for settings that this kernel cannot enforce.
func (l *Landlock) check(abi int) error {
	switch {
	case l == nil:
		return nil
	case abi == 0:
		return errors.New("the kernel has no Landlock")
	case l.Handled&^supported(abi) != 0:
		return fmt.Errorf("the kernel's Landlock (ABI %d) misses the file rights %#x", abi, l.Handled&^supported(abi))
	case l.Net != 0 && abi < trial.LandlockNet:
		return fmt.Errorf("the kernel's Landlock (ABI %d) misses network rights", abi)
	case l.Scope && abi < trial.LandlockScopes:
		return fmt.Errorf("the kernel's Landlock (ABI %d) misses scopes", abi)
	}
	return nil
}

// LandlockRule grants rights on a path inside and everything below it. A rule
// for a missing path grants nothing.
type LandlockRule struct {
	Path   string
	Access uint64
}

// Sets of file rights. Mask them with LandlockRights.
const (
	LandlockRead = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	LandlockExec = unix.LANDLOCK_ACCESS_FS_EXECUTE
	// LandlockWrite are all rights to change files. They include REFER, which a rename
	// to another directory needs.
	LandlockWrite = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR |
		unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO |
		unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE
)

// landlockScopes are the scopes for abstract Unix sockets and signals.
const landlockScopes = 3

// LandlockABI is the kernel's version of Landlock. It is 0 if Landlock is missing or
// switched off.
func LandlockABI() int { return trial.LandlockABI() }

// LandlockRights returns the file rights that this kernel supports.
func LandlockRights() uint64 { return supported(LandlockABI()) }

// supported returns the file rights that an ABI version supports.
func supported(abi int) uint64 {
	if abi == 0 {
		return 0
	}
	rights := uint64(unix.LANDLOCK_ACCESS_FS_REFER) - 1
	if abi >= 2 {
		rights |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= trial.LandlockTruncate {
		rights |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= 5 {
		rights |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	return rights
}

func (l *Landlock) op(s *spec) {
	scope := uint64(0)
	if l.Scope {
		scope = landlockScopes
	}
	if l.Handled|l.Net|scope == 0 {
		return
	}
	s.u32(opLandlock)
	s.u64(l.Handled)
	s.u64(l.Net)
	s.u64(scope)
	s.u32(uint32(len(l.Rules)))
	for _, r := range l.Rules {
		s.u64(r.Access & l.Handled)
		s.str(r.Path)
	}
}
