package notify

import (
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// maxCopies bounds the memory of all copies of a session that are in use, in bytes.
// copyOverhead is reserved for each copy beside its size.
const (
	maxCopies    = 256 << 20
	copyOverhead = 4 << 10
)

// copyBudget counts the memory of the copies of scripts and of loaders' programs. A copy
// that a process got lasts until that process has closed it.
type copyBudget struct {
	mu   sync.Mutex
	used int64
	open []*copyUse // released, and maybe still open in a process
}

// copyUse is the memory of one copy.
type copyUse struct {
	of       *copyBudget
	size     int64
	by       target.Process // that got the copy; zero: none
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
			"copies of the scripts that run now use %d MiB of memory, and all together may use %d MiB: end some of them",
			m.used>>20,
			maxCopies>>20,
		)
	}
	m.used += size
	return &copyUse{of: m, size: size}, nil
}

// installed notes the process that got a copy.
func (p *copyUse) installed(in target.Process, file *target.Handle) {
	if p == nil {
		return
	}
	if s, err := file.Now(); err == nil {
		p.heldBy(in, s)
	}
}

// heldBy notes the process that has a copy, and the file that it is there.
func (p *copyUse) heldBy(in target.Process, s unix.Stat_t) {
	if p == nil {
		return
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.by, p.dev, p.ino = in, s.Dev, s.Ino
}

// release gives the memory back. If a process got the copy, sweep does that later.
func (p *copyUse) release() {
	if p == nil {
		return
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.size > copyOverhead*2 && p.by != (target.Process{}) {
		p.of.open = append(p.of.open, p)
		return
	}
	p.of.used -= p.size
}

// sweep gives back the memory of copies that no process has open. It is called with mu
// held.
func (m *copyBudget) sweep() {
	rest := m.open[:0]
	for _, p := range m.open {
		if alive(p.by) && hasOpen(p.by.PID, p.dev, p.ino) {
			rest = append(rest, p)
		} else {
			m.used -= p.size
		}
	}
	clear(m.open[len(rest):])
	m.open = rest
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
