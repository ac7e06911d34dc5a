package target

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// memoryFlags are the flags of memory files, other than MFD_CLOEXEC, as this kernel knows
// them.
var memoryFlags = sync.OnceValue(func() int {
	fd, err := memoryFile()
	if err != nil {
		return unix.MFD_ALLOW_SEALING
	}
	defer func() { _ = unix.Close(fd) }()
	if seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err == nil && seals&unix.F_SEAL_EXEC != 0 {
		return unix.MFD_ALLOW_SEALING | unix.MFD_NOEXEC_SEAL
	}
	return unix.MFD_ALLOW_SEALING
})

// maxMemoryName is the longest name that is given to a memory file in a thread. The kernel
// takes 249 bytes.
const maxMemoryName = 64

// ReplaceOpen makes a thread that is stopped at the entry of an open make an empty memory
// file instead. name is the address of the path, whose end becomes the name of that file.
// The registers that it returns are for [FillOpened].
func ReplaceOpen(tid int, name uint64, length int, closeOnExec bool) (*Registers, error) {
	r, err := ReadRegisters(tid)
	if err != nil {
		return nil, err
	}
	if length > maxMemoryName {
		name += uint64(length - maxMemoryName)
	}
	flags := memoryFlags()
	if closeOnExec {
		flags |= unix.MFD_CLOEXEC
	}
	return r, r.Replace(tid, unix.SYS_MEMFD_CREATE, name, uint64(flags))
}

// FillOpened gives the memory file that a thread has made the content of a file, and seals
// it. The thread is stopped at the exit of its call, which then returns number. Other
// threads of the program can exchange the descriptor: a file that is not an empty memory
// file is never written to.
func FillOpened(tid, number int, r *Registers, content *Handle) (made unix.Stat_t, err error) {
	if number >= 0 {
		if made, err = fillMemory(tid, number, content); err != nil {
			return made, err
		}
	}
	return made, r.Restore(tid, int64(number))
}

func fillMemory(tid, number int, content *Handle) (made unix.Stat_t, err error) {
	name := "/proc/" + strconv.Itoa(tid) + "/fd/" + strconv.Itoa(number)
	link, err := os.Readlink(name)
	if err != nil {
		return made, err
	}
	if !strings.HasPrefix(link, "/memfd:") {
		return made, fmt.Errorf("descriptor %d of thread %d is %s, not a new memory file", number, tid, link)
	}
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return made, fmt.Errorf("open descriptor %d of thread %d: %w", number, tid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var now unix.Stat_t
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0) // only of memory files
	if err == nil {
		err = unix.Fstat(fd, &made)
	}
	if err != nil || seals&unix.F_SEAL_SEAL != 0 || made.Size != 0 {
		return made, errors.Join(fmt.Errorf("descriptor %d of thread %d is not a new memory file", number, tid), err)
	}
	if _, err := fill(fd, content, content.Stat.Size); err != nil {
		return made, fmt.Errorf("fill the memory file of thread %d: %w", tid, err)
	}
	if err := unix.Stat(name, &now); err != nil || now.Dev != made.Dev || now.Ino != made.Ino {
		return made, errors.Join(fmt.Errorf("descriptor %d of thread %d was exchanged", number, tid), err)
	}
	return made, nil
}
