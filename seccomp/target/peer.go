package target

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Peer is a process as a thread sees it in the procfs of the thread's own root.
// Its numbers are those of that procfs.
type Peer struct {
	PID    int
	Parent int
	Group  int    // process group
	Start  uint64 // clock ticks since boot
	UID    int    // effective user id, as seen here
	Name   string // base name of the program; empty: not readable
}

// maxPeers is the maximum number of processes in a list.
const maxPeers = 1 << 15

// Self returns the process of the thread. It fails if the procfs in the
// thread's root belongs to another pid namespace, because its numbers would
// mean other processes.
func (t *Target) Self() (Peer, error) {
	text, err := readProc(t.proc, "status")
	if err != nil {
		return Peer{}, fmt.Errorf("read the status of thread %d: %w", t.TID, err)
	}
	all, err := Numbers(text)
	if err != nil {
		return Peer{}, fmt.Errorf("read the numbers of thread %d: %w", t.TID, err)
	}
	pid, err := strconv.Atoi(all[len(all)-1])
	if err != nil {
		return Peer{}, fmt.Errorf("read the status of thread %d: %w", t.TID, err)
	}
	self, err := t.Peer(pid)
	if err != nil {
		return Peer{}, err
	}
	tgid, err := strconv.Atoi(statusField(text, "Tgid"))
	if err != nil {
		return Peer{}, fmt.Errorf("read the status of thread %d: %w", t.TID, err)
	}
	here, err := Identify(tgid)
	if err != nil {
		return Peer{}, err
	}
	if here.Start != self.Start || self.PID != pid {
		return Peer{}, fmt.Errorf("the procfs that thread %d sees is not that of its pid namespace", t.TID)
	}
	return self, nil
}

// Identify reports whether number means the thread or its process in the thread's pid
// namespace. name is the base name of the program, empty if it cannot be read. Own is much
// faster than [Target.Self].
func (t *Target) Identify(number int) (name string, own bool, err error) {
	text, err := readProc(t.proc, "status")
	if err != nil {
		return "", false, fmt.Errorf("read the status of thread %d: %w", t.TID, err)
	}
	for _, field := range []string{"NStgid", "NSpid"} {
		numbers := statusField(text, field)
		if numbers[strings.LastIndexByte(numbers, '\t')+1:] == strconv.Itoa(number) {
			exe, err := readlinkat(t.proc, "exe")
			if err == nil {
				name = path.Base(strings.TrimSuffix(exe, deletedSuffix))
			}
			return name, true, nil
		}
	}
	return "", false, nil
}

// Nested reports whether the thread is in a pid namespace below the one of
// this process.
func (t *Target) Nested() (bool, error) {
	text, err := readProc(t.proc, "status")
	if err != nil {
		return false, fmt.Errorf("read the status of thread %d: %w", t.TID, err)
	}
	all, err := Numbers(text)
	if err != nil {
		return false, fmt.Errorf("read the numbers of thread %d: %w", t.TID, err)
	}
	return len(all) > 1, nil
}

// Peer returns the process with a process or thread number. The error is ESRCH
// if there is none.
func (t *Target) Peer(number int) (Peer, error) {
	dir, err := t.openPeer(number)
	if err != nil {
		return Peer{}, err
	}
	defer func() { _ = unix.Close(dir) }()
	text, err := readProc(dir, "status")
	if err != nil {
		return Peer{}, peerError(number, err)
	}
	var p Peer
	var errs [2]error
	p.PID, errs[0] = strconv.Atoi(statusField(text, "Tgid"))
	ids := strings.Fields(statusField(text, "Uid"))
	if len(ids) < 2 {
		return Peer{}, fmt.Errorf("process %d: its status cannot be read", number)
	}
	p.UID, errs[1] = strconv.Atoi(ids[1])
	if err := errors.Join(errs[:]...); err != nil {
		return Peer{}, fmt.Errorf("process %d: its status cannot be read: %w", number, err)
	}
	if p.PID != number {
		return t.Peer(p.PID) // a thread: its process tells the rest
	}
	s, err := readStat(dir, "stat")
	if err != nil {
		return Peer{}, peerError(number, err)
	}
	p.Parent, p.Group, p.Start = s.parent, s.group, s.start
	if exe, err := readlinkat(dir, "exe"); err == nil {
		p.Name = path.Base(strings.TrimSuffix(exe, deletedSuffix))
	}
	return p, nil
}

// Signal sends a signal to the process p if it is still the same.
func (t *Target) Signal(p Peer, signal unix.Signal) error {
	dir, err := t.procDir(strconv.Itoa(p.PID), unix.O_RDONLY)
	if err != nil {
		return peerError(p.PID, err)
	}
	defer func() { _ = unix.Close(dir) }()
	s, err := readStat(dir, "stat")
	if err != nil || s.start != p.Start {
		return peerError(p.PID, unix.ENOENT)
	}
	// A directory of procfs serves as a pidfd, but not in gVisor. See pidfd_send_signal(2).
	if err := unix.PidfdSendSignal(dir, signal, nil, 0); !errors.Is(err, unix.EBADF) {
		return err
	}
	fd, err := openProcess(t, p)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.PidfdSendSignal(fd, signal, nil, 0)
}

// Peers lists all processes that the thread's procfs shows.
func (t *Target) Peers() ([]Peer, error) {
	fd, err := t.procDir(".", unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	h := &Handle{fd: fd, Path: "/proc"}
	defer h.Close()
	entries, err := h.ReadDir()
	if err != nil {
		return nil, err
	}
	var list []Peer
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if len(list) >= maxPeers {
			return nil, fmt.Errorf("more than %d processes", maxPeers)
		}
		p, err := t.Peer(pid)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

func (t *Target) openPeer(number int) (int, error) {
	if number <= 0 {
		return -1, peerError(number, unix.ENOENT)
	}
	fd, err := t.procDir(strconv.Itoa(number), unix.O_PATH)
	if err != nil {
		return -1, peerError(number, err)
	}
	return fd, nil
}

// procDir opens a directory of the procfs in the thread's root.
func (t *Target) procDir(name string, flags uint64) (int, error) {
	root, err := t.rootFD()
	if err != nil {
		return -1, err
	}
	fd, err := openat2(root, "proc/"+name, &unix.OpenHow{
		Flags:   flags | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return -1, err
	}
	if procDir(fd) == procNot {
		_ = unix.Close(fd)
		return -1, errors.New("the thread has no procfs at /proc")
	}
	return fd, nil
}

// peerError converts all errors for a missing process to ESRCH.
func peerError(number int, err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", number, unix.ESRCH)
	}
	return fmt.Errorf("process %d: %w", number, err)
}
