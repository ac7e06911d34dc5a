package notify

import (
	"errors"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// listings are those of the directories of programs, kept in a file from one session to
// the next: to read them takes longer than everything else that a session does before its
// first command. Nothing of them counts unless it is proven:
//
//   - A listing counts if the directory has the inode and the times that it had.
//   - What a link leads to counts if this holds for each directory with a name on the way.
//   - A name with a mount over it is looked up, and so is one on another filesystem than its
//     directory.
//   - Only local filesystems are remembered that other sessions have, too, and no directory that
//     was changed within the last second: a later change then has another time.
//   - Of an overlay that each session makes anew only the directories of its last layer are
//     remembered: see [overlay].
//
// The files of denied programs are looked up in every session.
type listings struct {
	root   *os.File
	file   string              // empty: nothing is remembered
	mounts map[string][]string // names of mount points that commands see, by their directory
	ofOne  map[uint64]bool     // devices of filesystems that are made for one session
	shown  overlay             // the one of ofOne that each session has
	own    string              // see [Root.Own]
	dirs   []*programDir
	byPath map[string]int // index in dirs by the path that was looked up
	lists  map[fileID]*listing
	opened map[int]*target.Handle // directories on the way of links, by their index in dirs

	changed bool // the file is to be written
}

// programDir is a directory that names were looked up in.
type programDir struct {
	lookup, path string // as it was looked up, and its own path; without one it is missing
	version      fileVersion
	steady       bool // it may be remembered
	verified     bool // in this session
}

// listing is what a directory has: all its files and links, or the loaders alone.
type listing struct {
	dir   int
	all   bool
	names []programName
}

// programName is an entry of a directory that is no directory itself.
type programName struct {
	name   string
	link   bool
	known  bool   // target and steps are remembered
	target fileID // of a link to a regular file, else zero
	steps  []step // names on the way to the target, each in its directory
}

type step struct {
	dir  int
	name string
}

// Bounds of the file.
const (
	programsMagic = "agentsh programs 1\n"
	maxRemembered = 8 << 20
	maxSteps      = 16
	maxOpened     = 64
)

// steadyAfter is how long ago a directory was changed whose next change has another time. Tests
// wait for less.
var steadyAfter = time.Second

// openPrograms reads the file of root.Cache. A file that is missing, damaged or not the
// user's own is as good as empty.
func openPrograms(root Root) *listings {
	p := &listings{root: root.Dir, own: root.Own, byPath: map[string]int{}, lists: map[fileID]*listing{}, opened: map[int]*target.Handle{}}
	if root.Cache == "" {
		return p
	}
	info, err := os.ReadFile(root.Mounts)
	if err != nil {
		return p
	}
	p.file, p.mounts, p.ofOne = root.Cache, mountPoints(info), ofOne(info)
	p.shown = overlayIn(info, p.ofOne)
	if data, err := readOwn(p.file); err == nil && !p.decode(data) {
		p.dirs, p.byPath, p.lists = nil, map[string]int{}, map[fileID]*listing{}
	}
	return p
}

// list returns the names in an open directory that was looked up by a path. loaders: those
// of loaders are enough.
func (p *listings) list(lookup string, h *target.Handle, loaders bool) (*listing, error) {
	at := fileID{h.Stat.Dev, h.Stat.Ino}
	dir := p.dir(lookup, h)
	if l := p.lists[at]; l != nil && (l.all || loaders) && p.dirs[l.dir].version == p.dirs[dir].version && p.verify(l.dir) {
		return l, nil
	}
	found, err := h.ReadDir()
	if err != nil && !absent(err) {
		return nil, err
	}
	l := &listing{dir: dir, all: !loaders}
	for _, f := range found {
		if !f.IsDir() && (l.all || loader(f.Name())) {
			l.names = append(l.names, programName{name: f.Name(), link: f.Type()&os.ModeSymlink != 0})
		}
	}
	p.lists[at] = l
	p.changed = p.changed || p.dirs[dir].steady
	return l, nil
}

// dir is the index of a directory that is open. What is remembered of it counts if it is
// the same.
func (p *listings) dir(lookup string, h *target.Handle) int {
	now := &programDir{lookup: lookup, path: h.Path, version: versionOf(h), verified: true}
	now.version.size = 0
	if i, known := p.same(now); known {
		return i
	}
	ctime := time.Unix(now.version.ctime.Unix())
	now.steady = p.file != "" && h.Quick() && p.lasts(now) && time.Since(ctime) > steadyAfter
	return p.add(now)
}

// lasts reports whether the next session has the filesystem of a directory, too.
func (p *listings) lasts(d *programDir) bool {
	return !p.ofOne[d.version.dev] || d.version.dev == p.shown.dev && !nested(d.path, p.own)
}

// noDir is the index of a directory that is missing, or that commands cannot see.
func (p *listings) noDir(lookup string) int {
	now := &programDir{lookup: lookup, steady: true, verified: true}
	if i, known := p.same(now); known {
		return i
	}
	return p.add(now)
}

// same returns the index of a directory that is as it was.
func (p *listings) same(now *programDir) (int, bool) {
	i, known := p.byPath[now.lookup]
	if !known || p.dirs[i].path != now.path || p.dirs[i].version != now.version {
		return 0, false
	}
	p.dirs[i].verified = true
	return i, true
}

// add returns the index of a new directory. What is remembered by the index of the former one
// counts no longer.
func (p *listings) add(d *programDir) int {
	p.dirs = append(p.dirs, d)
	p.byPath[d.lookup] = len(p.dirs) - 1
	return len(p.dirs) - 1
}

// verify reports whether a remembered directory is the same in this session.
func (p *listings) verify(i int) bool {
	d := p.dirs[i]
	if d.verified {
		return true
	}
	if p.byPath[d.lookup] != i {
		return false
	}
	now, err := p.resolve(d.lookup)
	return err == nil && now == i
}

// resolve is the index of a directory that a path means. It is resolved once in a session: a
// change after that has another time, which the next session sees.
func (p *listings) resolve(lookup string) (int, error) {
	if i, known := p.byPath[lookup]; known && p.dirs[i].verified {
		return i, nil
	}
	h, err := target.ResolveIn(p.root, lookup)
	if absent(err) {
		return p.noDir(lookup), nil
	}
	if err != nil {
		return 0, err
	}
	i := p.dir(lookup, h)
	p.keep(i, h)
	return i, nil
}

// open opens a directory that this session has resolved. Its names are those of that directory,
// also if the path now means another one. The handle is valid until the next call.
func (p *listings) open(i int) (*target.Handle, error) {
	if h := p.opened[i]; h != nil {
		return h, nil
	}
	lookup := p.dirs[i].lookup
	h, err := target.ResolveIn(p.root, lookup)
	if err != nil {
		return nil, err
	}
	if p.dir(lookup, h) != i {
		h.Close()
		return nil, unix.ESTALE
	}
	p.keep(i, h)
	return h, nil
}

func (p *listings) keep(i int, h *target.Handle) {
	if len(p.opened) >= maxOpened {
		p.close()
	}
	p.opened[i] = h
}

// close closes the directories that are open.
func (p *listings) close() {
	for _, h := range p.opened {
		h.Close()
	}
	clear(p.opened)
}

// leadsTo returns the regular file that a link of a listing leads to; zero: none.
func (p *listings) leadsTo(l *listing, n *programName) (fileID, error) {
	if n.known && !slices.ContainsFunc(n.steps, func(s step) bool { return !p.verify(s.dir) || p.covered(s) }) {
		return n.target, nil
	}
	was := n.known
	n.known, n.target, n.steps = false, fileID{}, nil
	st, err := target.StatIn(p.root, path.Join(p.dirs[l.dir].path, n.name))
	if err != nil && !absent(err) {
		return fileID{}, err
	}
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
		n.target = fileID{st.Dev, st.Ino}
	}
	if p.file != "" {
		n.known = p.trace(n, step{l.dir, n.name})
		p.changed = p.changed || was || n.known
	}
	return n.target, nil
}

// covered reports whether something is mounted over a name.
func (p *listings) covered(s step) bool { return slices.Contains(p.mounts[p.dirs[s.dir].path], s.name) }

// trace finds the names by which a link leads to its target. It reports whether they prove
// the target as long as their directories stay as they are.
func (p *listings) trace(n *programName, at step) bool {
	for range maxSteps {
		d := p.dirs[at.dir]
		n.steps = append(n.steps, at)
		if !d.steady || p.covered(at) {
			return false
		}
		if d.path == "" {
			return n.target == fileID{}
		}
		dir, err := p.open(at.dir)
		if err != nil {
			return false
		}
		st, text, err := dir.Entry(at.name)
		switch {
		case err != nil && !errors.Is(err, unix.ENOENT):
			return false
		case err != nil:
			return n.target == fileID{}
		case st.Mode&unix.S_IFMT == unix.S_IFREG:
			return n.target == fileID{st.Dev, st.Ino} && st.Dev == d.version.dev
		case st.Mode&unix.S_IFMT != unix.S_IFLNK:
			return n.target == fileID{}
		}
		if at, err = p.follow(d.path, text); err != nil {
			return false
		}
	}
	return false
}

// follow is the name that the text of a link means, with its directory.
func (p *listings) follow(from, text string) (step, error) {
	dir, name := path.Split(text)
	if name == "" || name == "." || name == ".." {
		return step{}, unix.ELOOP
	}
	if !strings.HasPrefix(dir, "/") {
		dir = from + "/" + dir // not cleaned: a name before .. may be a link
	}
	if dir = strings.TrimRight(dir, "/"); dir == "" {
		dir = "/"
	}
	i, err := p.resolve(dir)
	return step{i, name}, err
}
