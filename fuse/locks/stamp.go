package locks

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxStamps bounds the files whose attributes are stored. Beyond it a file counts as
// changed.
const maxStamps = 4096

// settled is the time after which a further change gets another ctime. Before Linux
// 6.13 all changes within one tick of the kernel have the same time.
const settled = 20 * time.Millisecond

// Stamps detects changes of a file between two locks.
type Stamps struct {
	mu sync.Mutex
	by map[inode]stamp
}

// stamp are the attributes of a file when it was locked.
type stamp struct {
	size         int64
	mtime, ctime unix.Timespec
	unsettled    bool // another change may have left the same times
}

// Refresh calls drop with the size of a file that may have changed since the last call
// for it. The first call for a file calls drop. No other call returns before drop has.
func (s *Stamps) Refresh(fd int, drop func(size int64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		drop(0)
		return
	}
	key := inode{st.Dev, st.Ino}
	age := time.Since(time.Unix(st.Ctim.Unix()))
	now := stamp{st.Size, st.Mtim, st.Ctim, age < settled}
	before, known := s.by[key]
	if s.by == nil || len(s.by) >= maxStamps {
		s.by = map[inode]stamp{}
	}
	s.by[key] = now
	if !known || before.unsettled || before != now {
		drop(st.Size)
	}
}
