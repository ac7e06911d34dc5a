// Package cgroup limits the memory, swap, processor time and number of all processes of a
// session together. See cgroups(7).
//
// A session has one group with its limits, in the unified hierarchy (cgroup v2) or in one
// hierarchy per controller (v1). Each command has a group below it. That group counts
// processes that the kernel killed because memory ran out, and may have stricter limits.
// The session init is outside: it must neither be killed nor run out of processes.
//
// The package trusts no version: a limit is enforced if the kernel accepted it. find.go
// finds the hierarchies and prepares the group of the supervisor.
package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Limits bound one group. A zero field is no limit.
type Limits struct {
	MemoryBytes int64
	SwapLimited bool  // SwapBytes is a limit, and may be 0
	SwapBytes   int64 // in addition to the memory
	CPUPercent  int   // of one processor
	Pids        int   // processes and threads
}

// Kind is a kind of limit.
type Kind uint8

// The kinds of limit.
const (
	Memory Kind = iota
	Swap
	CPU
	Pids
	kinds
)

// String is the limited resource.
func (k Kind) String() string { return [kinds]string{"memory", "swap", "cpu", "pids"}[k] }

var controllers = [kinds]string{Memory: "memory", Swap: "memory", CPU: "cpu", Pids: "pids"}

// Kinds are the kinds of limit that l has.
func (l Limits) Kinds() []Kind {
	var out []Kind
	for k, set := range [kinds]bool{Memory: l.MemoryBytes > 0, Swap: l.SwapLimited, CPU: l.CPUPercent > 0, Pids: l.Pids > 0} {
		if set {
			out = append(out, Kind(k))
		}
	}
	return out
}

// Group is the group of one session. It is safe for concurrent use.
type Group struct {
	dirs []directory

	mu   sync.Mutex
	busy []*Command // released; removed when their last process has ended
}

// directory is a group in one hierarchy.
type directory struct {
	path        string
	unified     bool
	controllers []string
}

// New makes a group for limits of some kinds below the group of this process. It returns
// the reason for each kind that cannot be enforced. The name must be unused. Close removes
// the group.
func New(name string, wanted []Kind) (*Group, map[Kind]error) {
	g := &Group{}
	unmet := map[Kind]error{}
	for _, k := range wanted {
		if err := g.join(name, controllers[k]); err != nil {
			unmet[k] = err
		}
	}
	return g, unmet
}

// join makes the group in the hierarchy of a controller.
func (g *Group) join(name, controller string) error {
	p, err := find(controller)
	if err != nil {
		return err
	}
	base := p.dir
	if p.unified {
		if base, err = p.open([]string{controller}); err != nil {
			return err
		}
	}
	d := directory{path: filepath.Join(base, name), unified: p.unified, controllers: []string{controller}}
	i := slices.IndexFunc(g.dirs, func(x directory) bool { return x.path == d.path })
	if i < 0 {
		if err := os.Mkdir(d.path, 0o755); err != nil {
			return err
		}
		g.dirs = append(g.dirs, d)
	} else if !slices.Contains(g.dirs[i].controllers, controller) {
		g.dirs[i].controllers = append(g.dirs[i].controllers, controller)
	}
	if p.unified {
		return enable(d.path, []string{controller}) // for the groups of commands
	}
	return nil
}

// Paths are the directories of the group, for [Remove].
func (g *Group) Paths() []string {
	var out []string
	for _, d := range g.dirs {
		out = append(out, d.path)
	}
	return out
}

// Limit sets the limits of the whole session. It returns the reason for each kind that
// the kernel refuses.
func (g *Group) Limit(l Limits) map[Kind]error { return limit(g.dirs, l) }

// Try tests whether commands can have limits of their own. It returns the reason for
// each kind that the kernel refuses.
func (g *Group) Try(l Limits) map[Kind]error {
	dirs, err := makeDirs(g.dirs, "try")
	unmet := map[Kind]error{}
	if err == nil {
		unmet = limit(dirs, l)
		err = removeDirs(dirs)
	}
	if err != nil {
		for _, k := range l.Kinds() {
			unmet[k] = err
		}
	}
	return unmet
}

// Close removes the group and all groups below it. Their processes must have ended.
func (g *Group) Close() error { return Remove(g.Paths()) }

// limit sets limits on a group.
func limit(dirs []directory, l Limits) map[Kind]error {
	unmet := map[Kind]error{}
	for _, k := range l.Kinds() {
		i := slices.IndexFunc(dirs, func(d directory) bool { return slices.Contains(d.controllers, controllers[k]) })
		if i < 0 {
			unmet[k] = fmt.Errorf("the session has no group with the %s controller", controllers[k])
			continue
		}
		if err := dirs[i].set(k, l); err != nil {
			unmet[k] = err
		}
	}
	return unmet
}

// cpuPeriod is the period in which processor time is limited, in microseconds. It is the
// kernel's default.
const cpuPeriod = 100_000

// set sets one limit.
func (d directory) set(k Kind, l Limits) error {
	quota := int64(l.CPUPercent) * cpuPeriod / 100
	switch {
	case k == Memory && d.unified:
		return d.number("memory.max", l.MemoryBytes)
	case k == Memory:
		return d.number("memory.limit_in_bytes", l.MemoryBytes)
	case k == Swap && d.unified:
		return d.number("memory.swap.max", l.SwapBytes)
	case k == Swap && l.MemoryBytes == 0:
		return errors.New("cgroup v1 limits swap only together with max_memory_mb")
	case k == Swap:
		return d.number("memory.memsw.limit_in_bytes", l.MemoryBytes+l.SwapBytes)
	case k == CPU && d.unified:
		return write(d.path, "cpu.max", fmt.Sprintf("%d %d", quota, cpuPeriod))
	case k == CPU:
		if err := d.number("cpu.cfs_period_us", cpuPeriod); err != nil {
			return err
		}
		return d.number("cpu.cfs_quota_us", quota)
	default:
		return d.number("pids.max", int64(l.Pids))
	}
}

func (d directory) number(name string, n int64) error {
	return write(d.path, name, strconv.FormatInt(n, 10))
}

// Command is the group of one command.
type Command struct {
	dirs []directory
}

// Command makes the group of one command. Its name must be one path element
// that is unused; Release removes it.
func (g *Group) Command(name string, l Limits) (*Command, error) {
	g.sweep()
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\n\x00") || len(name) > 200 {
		return nil, fmt.Errorf("make group: %q is no name for one", name)
	}
	dirs, err := makeDirs(g.dirs, name)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, err := range limit(dirs, l) {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(append(errs, removeDirs(dirs))...)
	}
	return &Command{dirs}, nil
}

// makeDirs makes a group below each of the directories.
func makeDirs(in []directory, name string) ([]directory, error) {
	var dirs []directory
	for _, d := range in {
		d.path = filepath.Join(d.path, name)
		if err := os.Mkdir(d.path, 0o755); err != nil {
			return nil, errors.Join(fmt.Errorf("make group: %w", err), removeDirs(dirs))
		}
		dirs = append(dirs, d)
	}
	return dirs, nil
}

func removeDirs(dirs []directory) error {
	var errs []error
	for _, d := range dirs {
		if err := os.Remove(d.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Add moves a process into the group. pid is a number in this supervisor's pid namespace.
// Processes that it starts later are in the group too. The limit on processes does not
// refuse the move.
func (c *Command) Add(pid int) error {
	for _, d := range c.dirs {
		if err := d.number("cgroup.procs", int64(pid)); err != nil {
			return fmt.Errorf("limit process %d: %w", pid, err)
		}
	}
	return nil
}

// OOMKills is the number of processes of the group that the kernel killed because a limit
// on memory was reached.
func (c *Command) OOMKills() (int, error) {
	for _, d := range c.dirs {
		if !slices.Contains(d.controllers, controllers[Memory]) {
			continue
		}
		name := "memory.oom_control"
		if d.unified {
			name = "memory.events"
		}
		text, err := os.ReadFile(filepath.Join(d.path, name))
		if err != nil {
			return 0, err
		}
		return oomKills(text)
	}
	return 0, nil
}

// ContainerOOMKills is the number of processes that the kernel killed because a limit on
// memory was reached, in the group that is mounted at the top: that of the container, where
// this process is in one. See cgroups(7).
func ContainerOOMKills() (int, error) {
	text, err := os.ReadFile("/sys/fs/cgroup/memory.events")
	if errors.Is(err, os.ErrNotExist) {
		text, err = os.ReadFile("/sys/fs/cgroup/memory/memory.oom_control")
	}
	if err != nil {
		return 0, err
	}
	return oomKills(text)
}

// oomKills reads the count from memory.events or memory.oom_control.
func oomKills(text []byte) (int, error) {
	for line := range bytes.Lines(text) {
		if count, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			return strconv.Atoi(string(bytes.TrimSpace(count)))
		}
	}
	return 0, errors.New("the kernel does not count processes that it killed because memory ran out")
}

// Release removes the group of a command. If processes are left in it, a later call of
// Command or Release removes it.
func (g *Group) Release(c *Command) {
	g.mu.Lock()
	g.busy = append(g.busy, c)
	g.mu.Unlock()
	g.sweep()
}

// sweep removes released groups without processes. Close reports those that cannot be
// removed.
func (g *Group) sweep() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy = slices.DeleteFunc(g.busy, func(c *Command) bool { return removeDirs(c.dirs) == nil })
}

// Remove removes the directories of a group, and the groups of commands in them. A
// directory that does not exist is no error; one with processes is.
func Remove(paths []string) error {
	var errs []error
	for _, dir := range paths {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		errs = append(errs, err)
		for _, e := range entries {
			if e.IsDir() {
				errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
			}
		}
		errs = append(errs, os.Remove(dir))
	}
	return errors.Join(errs...)
}
