package notify

import (
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// maxCopies bounds the copies of a session that are in use, in bytes, and
// memoryStep is what is reserved for one beside its size.
const (
	maxCopies  = 256 << 20
	memoryStep = 4 << 10
)

// copyBudget counts the copies of scripts and of loaders' programs. One that was
// handed over lasts as long as its process has it open.
type copyBudget struct {
	mu      sync.Mutex
	used    int64
	lasting []*copyUse
}

// copyUse is the memory of one copy.
type copyUse struct {
	of       *copyBudget
	size     int64
	by       target.Process // that it was handed to; zero: none
	dev, ino uint64
}

// reserve counts a copy of at most size bytes. A nil copyBudget has no bound.
func (m *copyBudget) reserve(size int64) (*copyUse, error) {
	if m == nil {
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used+size > maxCopies {
		m.sweep()
	}
	if m.used+size > maxCopies {
		return nil, fmt.Errorf(
			"the scripts that run now hold %d MiB of memory, and all together may hold %d MiB: end some of them",
			m.used>>20,
			maxCopies>>20,
		)
	}
	m.used += size
	return &copyUse{of: m, size: size}, nil
}

// hand notes the process that gets a copy.
func (p *copyUse) hand(to target.Process, file *target.Handle) {
	if p == nil {
		return
	}
	f, err := file.Open()
	if err != nil {
		return
	}
	defer f.Close()
	var s unix.Stat_t
	if unix.Fstat(int(f.Fd()), &s) != nil {
		return
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.by, p.dev, p.ino = to, s.Dev, s.Ino
}

// release gives the memory back, or leaves that to the end of its process.
func (p *copyUse) release() {
	if p == nil {
		return
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.size > memoryStep*2 && p.by != (target.Process{}) {
		p.of.lasting = append(p.of.lasting, p)
		return
	}
	p.of.used -= p.size
}

// sweep forgets the copies that no process has open any more. It is called with
// mu held.
func (m *copyBudget) sweep() {
	rest := m.lasting[:0]
	for _, p := range m.lasting {
		if alive(p.by) && hasOpen(p.by.PID, p.dev, p.ino) {
			rest = append(rest, p)
		} else {
			m.used -= p.size
		}
	}
	clear(m.lasting[len(rest):])
	m.lasting = rest
}

// hasOpen reports whether a process has a file open.
func hasOpen(pid int, dev, ino uint64) bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd/"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		var s unix.Stat_t
		if unix.Stat(dir+e.Name(), &s) == nil && s.Dev == dev && s.Ino == ino {
			return true
		}
	}
	return false
}
