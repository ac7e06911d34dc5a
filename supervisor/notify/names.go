package notify

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// fill answers a call about a name as at the time of the evaluation.
func (f *follower) fill(tid int, call *followed) error {
	var data []byte
	var result int64
	switch call.kind {
	case callReadlink:
		text := call.file.links[call.link]
		data = []byte(text)[:min(len(text), int(call.args[call.size]))]
		result = int64(len(data))
	case callStat:
		st := call.file.content.Stat
		data = unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st))
	case callStatx:
		st := statx(&call.file.content.Stat)
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

// statx converts the status of a file. See statx(2).
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

// pathCall has the positions of the arguments of a call; negative: it has none.
type pathCall struct {
	kind             int
	dir, path, flags int
	buffer, size     int
	keepsLink        bool   // it does not follow a link at the end
	link             string // of readlink: the link
}

// pathCalls are the calls by which an interpreter finds its script.
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
