package notify

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"agentsh/seccomp/target"
)

// image is one program that a process of a command runs, or is about to.
type image struct {
	command   *command
	path      string   // inside the sandbox; empty: before the command's first exec
	depth     int      // 0: the command itself; -1: before its first exec
	ancestors []string // programs that led to it, nearest first, each once
}

// command is one top-level command.
type command struct {
	CommandInfo
	deepest  int      // depth of the deepest exec so far
	programs []string // every program it ran, each once
}

// images knows which program each process of the session runs. A process that
// is not in the table runs the program of its nearest ancestor that is.
type images struct {
	mu    sync.Mutex
	table map[target.Process]*image
	stems map[target.Process]*command // the parent of a command's first process, which adopts its orphans
	limit int                         // size at which dead processes are looked for
}

// Bounds on what one command can make the table hold.
const (
	maxAncestors = 64
	maxPrograms  = 1024
	maxParents   = 4096
	firstLimit   = 512
)

func newImages() *images {
	return &images{table: map[target.Process]*image{}, stems: map[target.Process]*command{}, limit: firstLimit}
}

func (m *images) register(id target.Identity, info CommandInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &command{CommandInfo: info, deepest: -1}
	m.table[id.Process] = &image{command: c, depth: -1}
	// A stem outside the namespace, or one that is gone, adopts nothing.
	if stem, err := target.Identify(id.Parent); err == nil {
		m.stems[stem.Process] = c
	}
	m.prune()
}

// caller is what an exec comes from. An orphan's real ancestors are not known
// any more: its image is then the shallowest it can be, and deepest the other
// end, so that a request can be judged at both.
type caller struct {
	*image
	deepest *image // nil unless an orphan
}

// of finds the image of a process.
func (m *images) of(id target.Identity) (caller, error) {
	for range maxParents {
		m.mu.Lock()
		img, stem := m.table[id.Process], m.stems[id.Process]
		m.mu.Unlock()
		if img != nil {
			return caller{image: img}, nil
		}
		if stem != nil {
			return m.orphan(stem), nil
		}
		parent, err := target.Identify(id.Parent)
		if err != nil {
			return caller{}, fmt.Errorf("process %d belongs to no command: its ancestors are gone: %w", id.PID, err)
		}
		if parent.Start > id.Start {
			return caller{}, fmt.Errorf("process %d belongs to no command: its parent's number was used again", id.PID)
		}
		id = parent
	}
	return caller{}, errors.New("more parents than are followed")
}

func (m *images) orphan(c *command) caller {
	m.mu.Lock()
	defer m.mu.Unlock()
	return caller{
		image:   &image{command: c},
		deepest: &image{command: c, depth: max(c.deepest, 0), ancestors: slices.Clone(c.programs)},
	}
}

// next is the image that c becomes when it executes path.
func (c *image) next(path string) (*image, error) {
	img := &image{command: c.command, path: path, depth: c.depth + 1}
	if c.path == "" {
		img.ancestors = c.ancestors
		return img, nil
	}
	img.ancestors = append(make([]string, 0, len(c.ancestors)+1), c.path)
	for _, a := range c.ancestors {
		if a != c.path {
			img.ancestors = append(img.ancestors, a)
		}
	}
	if len(img.ancestors) > maxAncestors {
		return nil, fmt.Errorf("more than %d different programs above this one", maxAncestors)
	}
	return img, nil
}

// executed records that the process now runs img.
func (m *images) executed(p target.Process, img *image) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := img.command
	if !slices.Contains(c.programs, img.path) {
		if len(c.programs) >= maxPrograms {
			return fmt.Errorf("more than %d different programs in one command", maxPrograms)
		}
		c.programs = append(c.programs, img.path)
	}
	c.deepest = max(c.deepest, img.depth)
	m.table[p] = img
	m.prune()
	return nil
}

// prune forgets dead processes, each time the table has doubled. Nothing refers
// to them: their children were adopted. It is called with mu held.
func (m *images) prune() {
	if len(m.table)+len(m.stems) < m.limit {
		return
	}
	for p := range m.table {
		if !alive(p) {
			delete(m.table, p)
		}
	}
	for p := range m.stems {
		if !alive(p) {
			delete(m.stems, p)
		}
	}
	m.limit = max(firstLimit, 2*(len(m.table)+len(m.stems)))
}

func alive(p target.Process) bool {
	id, err := target.Identify(p.PID)
	return err == nil && id.Start == p.Start
}
