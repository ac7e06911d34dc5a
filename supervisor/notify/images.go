package notify

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/seccomp/target"
)

// image is one program that a process of a command runs or is about to run.
type image struct {
	command   *command
	path      string   // inside the sandbox; empty: before the command's first exec
	depth     int      // 0: the command itself; -1: before its first exec
	ancestors []string // programs that led to it, nearest first, each once
	pending   []pendingScript
}

// command is one top-level command.
type command struct {
	CommandInfo
	deepest  int      // depth of the deepest exec so far
	programs []string // every program it ran, each once
}

// images stores the program of each process of the session. A process that is
// not in the table runs the program of its nearest ancestor in it. It is safe
// for concurrent use.
type images struct {
	mu    sync.Mutex
	table map[target.Process]*image
	marks map[uint64]*command // by the mark that the processes of a command inherit
	past  map[uint64]string   // ids of commands that ended last, for events that come late
	limit int                 // size at which ended processes are removed

	parents parents

	// awaited are execs whose success was not observed: see [Config.Unverified].
	awaited map[target.Process]expected
}

// Bounds on what one command can make the table hold.
const (
	maxAncestors = 64
	maxPrograms  = 1024
	maxParents   = 4096
	firstLimit   = 512
	maxPast      = 1024
)

// expected is the program of a process if its exec succeeds.
type expected struct {
	*image
	dev, ino uint64 // of the program that the kernel runs
}

func newImages() *images {
	return &images{table: map[target.Process]*image{}, marks: map[uint64]*command{}, past: map[uint64]string{}, limit: firstLimit,
		parents: parents{known: map[int]parent{}}, awaited: map[target.Process]expected{}}
}

func (m *images) register(id target.Identity, info CommandInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.table[id.Process] = &image{command: &command{CommandInfo: info, deepest: -1}, depth: -1}
	m.prune()
}

// mark stores the mark of a command's first process, before its first exec.
func (m *images) mark(mark uint64, c *command) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.marks[mark] = c
}

// forget removes the mark of a command, by which its orphans are known.
func (m *images) forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.marks, func(mark uint64, c *command) bool {
		if c.ID != id {
			return false
		}
		if len(m.past) >= maxPast {
			clear(m.past)
		}
		m.past[mark] = id
		return true
	})
}

// marked returns the id of the command whose processes have a mark, or an empty string.
func (m *images) marked(mark uint64) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.marks[mark]; c != nil {
		return c.ID
	}
	return m.past[mark]
}

// caller is the process that makes a call. The real ancestors of an orphan are not known:
// image is then the shallowest that it can have, and deepest the deepest. A request can be
// evaluated for both.
type caller struct {
	*image
	deepest *image // nil unless an orphan
}

// of finds the image of the process that t belongs to.
func (m *images) of(t *target.Target, id target.Identity) (caller, error) {
	img, err := m.nearest(id)
	if err != nil {
		return m.orphan(t, err)
	}
	if img.depth >= 0 {
		return caller{image: img}, nil
	}
	mark, ok, err := t.Mark()
	if err != nil {
		return caller{}, err
	}
	if ok {
		m.mark(mark, img.command)
	}
	return caller{image: img}, nil
}

// identify describes the process of a thread, and its command, for events.
func (m *images) identify(t *target.Target) (wire.Process, string, error) {
	id, err := t.Identity()
	if err != nil {
		return wire.Process{}, "", err
	}
	p := process(t, id)
	caller, err := m.of(t, id)
	if err != nil {
		return *p, "", err
	}
	return *p, caller.command.ID, nil
}

// process describes a process for events.
func process(t *target.Target, id target.Identity) *wire.Process {
	return &wire.Process{PID: id.PID, StartTime: id.Start, Exe: t.Exe(), Cwd: t.Cwd()}
}

// nearest finds the image of a process or of its nearest ancestor.
func (m *images) nearest(id target.Identity) (*image, error) {
	if img := m.current(id.Process); img != nil {
		return img, nil
	}
	for range maxParents {
		if held, alive := m.parents.alive(id.Parent); alive && held.Start <= id.Start {
			if img := m.current(held); img != nil {
				return img, nil
			}
		}
		parent, err := target.Identify(id.Parent)
		if err != nil {
			return nil, fmt.Errorf("process %d belongs to no command: %w", id.PID, err)
		}
		if parent.Start > id.Start {
			return nil, fmt.Errorf("process %d belongs to no command: its parent's number was used again", id.PID)
		}
		if img := m.current(parent.Process); img != nil {
			m.parents.add(parent.Process)
			return img, nil
		}
		id = parent
	}
	return nil, errors.New("more parents than are followed")
}

// current is the image of a process, or nil if it has none of its own. An exec that was
// not verified counts as successful once the process runs its program.
func (m *images) current(p target.Process) *image {
	m.mu.Lock()
	defer m.mu.Unlock()
	next, waits := m.awaited[p]
	if !waits {
		return m.table[p]
	}
	var exe unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/exe", p.PID), &exe); err != nil || exe.Dev != next.dev || exe.Ino != next.ino {
		return m.table[p]
	}
	delete(m.awaited, p)
	m.table[p] = next.image
	return next.image
}

// expect stores an exec that is not verified.
func (m *images) expect(p target.Process, e expected) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := e.command
	if !slices.Contains(c.programs, e.path) && len(c.programs) < maxPrograms {
		c.programs = append(c.programs, e.path)
	}
	c.deepest = max(c.deepest, e.depth)
	m.awaited[p] = e
	m.prune()
}

// orphan finds the command of a process without known ancestors by its mark.
func (m *images) orphan(t *target.Target, why error) (caller, error) {
	mark, ok, err := t.Mark()
	if err != nil || !ok {
		return caller{}, errors.Join(why, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.marks[mark]
	if c == nil {
		return caller{}, why
	}
	exe := t.Exe()
	return caller{
		image:   &image{command: c, path: exe},
		deepest: &image{command: c, path: exe, depth: max(c.deepest, 0), ancestors: slices.Clone(c.programs)},
	}, nil
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

// prune removes ended processes each time the table has doubled. Nothing refers to them:
// their children have another parent. It is called with mu held.
func (m *images) prune() {
	if len(m.table)+len(m.awaited) < m.limit {
		return
	}
	maps.DeleteFunc(m.table, func(p target.Process, _ *image) bool { return !alive(p) })
	maps.DeleteFunc(m.awaited, func(p target.Process, _ expected) bool { return !alive(p) })
	m.limit = max(firstLimit, 2*(len(m.table)+len(m.awaited)))
}

func alive(p target.Process) bool {
	id, err := target.Identify(p.PID)
	return err == nil && id.Start == p.Start
}
