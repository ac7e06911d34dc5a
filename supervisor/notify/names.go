package notify

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// fill answers a question about a name as it was decided.
func (f *follower) fill(tid int, call *followed) error {
	var data []byte
	var result int64
	switch call.kind {
	case callReadlink:
		text := call.file.links[call.link]
		data = []byte(text)[:min(len(text), int(call.args[call.size]))]
		result = int64(len(data))
	case callStat:
		st := call.file.held.Stat
		data = unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st))
	case callStatx:
		st := statx(&call.file.held.Stat)
		data = unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st))
	}
	if err := target.Write(tid, call.args[call.buffer], data); err != nil {
		if errors.Is(err, target.ErrFault) || errors.Is(err, unix.EIO) || errors.Is(err, unix.EFAULT) {
			return target.SetResult(tid, -int64(unix.EFAULT))
		}
		return err
	}
	return target.SetResult(tid, result)
}

// statx is a file's status in the other form. See statx(2).
func statx(st *unix.Stat_t) unix.Statx_t {
	at := func(t unix.Timespec) unix.StatxTimestamp {
		return unix.StatxTimestamp{Sec: t.Sec, Nsec: uint32(t.Nsec)}
	}
	return unix.Statx_t{
		Mask: unix.STATX_BASIC_STATS, Blksize: uint32(st.Blksize), Nlink: uint32(st.Nlink), Uid: st.Uid, Gid: st.Gid, Mode: uint16(st.Mode),
		Ino: st.Ino, Size: uint64(st.Size), Blocks: uint64(st.Blocks), Atime: at(st.Atim), Mtime: at(st.Mtim), Ctime: at(st.Ctim),
		Dev_major: unix.Major(st.Dev), Dev_minor: unix.Minor(st.Dev), Rdev_major: unix.Major(st.Rdev), Rdev_minor: unix.Minor(st.Rdev),
	}
}

// Kinds of calls that have a path.
const (
	callOpen = iota
	callStat
	callStatx
	callReadlink
	callGetcwd
)

// pathCall is where a call has its arguments; negative: nowhere.
type pathCall struct {
	kind             int
	dir, path, flags int
	buffer, size     int
	keepsLink        bool   // it never follows a link at the end
	link             string // of readlink: the link
}

// pathCalls are the calls that an interpreter finds its script by.
var pathCalls = map[int]pathCall{
	unix.SYS_OPENAT:     {kind: callOpen, dir: 0, path: 1, flags: 2},
	unix.SYS_OPENAT2:    {kind: callOpen, dir: 0, path: 1, flags: 2},
	unix.SYS_NEWFSTATAT: {kind: callStat, dir: 0, path: 1, buffer: 2, flags: 3},
	unix.SYS_STATX:      {kind: callStatx, dir: 0, path: 1, flags: 2, buffer: 4},
	unix.SYS_READLINKAT: {kind: callReadlink, dir: 0, path: 1, buffer: 2, size: 3},
}

func (c *followed) noFollow() bool {
	return c.keepsLink || c.dir >= 0 && c.args[c.flags]&unix.AT_SYMLINK_NOFOLLOW != 0
}
