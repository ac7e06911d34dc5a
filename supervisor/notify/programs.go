package notify

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io/fs"
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
//
// The files of denied programs are looked up in every session.
type listings struct {
	root   *os.File
	file   string              // empty: nothing is remembered
	mounts map[string][]string // names of mount points that commands see, by their directory
	ofOne  map[uint64]bool     // devices of filesystems that are made for one session
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
	p := &listings{root: root.Dir, byPath: map[string]int{}, lists: map[fileID]*listing{}, opened: map[int]*target.Handle{}}
	if root.Cache == "" {
		return p
	}
	info, err := os.ReadFile(root.Mounts)
	if err != nil {
		return p
	}
	p.file, p.mounts, p.ofOne = root.Cache, mountPoints(info), ofOne(info)
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
	now.steady = p.file != "" && h.Quick() && !p.ofOne[now.version.dev] && time.Since(ctime) > steadyAfter
	return p.add(now)
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

// save writes the file if it would change. A failure costs the next session the time that it
// would save.
func (p *listings) save() {
	if p.file == "" || !p.changed {
		return
	}
	unfinished := p.file + ".new"
	f, err := os.OpenFile(unfinished, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) { // another session writes it, or was killed
		if info, err := os.Lstat(unfinished); err == nil && time.Since(info.ModTime()) > time.Minute {
			_ = os.Remove(unfinished)
		}
		return
	}
	if err != nil {
		return
	}
	data := p.encode()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil && len(data) <= maxRemembered {
		err = os.Rename(unfinished, p.file)
	}
	if err != nil || len(data) > maxRemembered {
		_ = os.Remove(unfinished)
	}
}

// encode returns the content of the file: the directories and listings of this session that
// may be remembered.
func (p *listings) encode() []byte {
	e := encoder{b: []byte(programsMagic)}
	index := map[int]int{}
	for i, d := range p.dirs {
		if d.verified && d.steady {
			index[i] = len(index)
		}
	}
	kept := func(s step) bool { _, is := index[s.dir]; return is }
	e.number(uint64(len(index)))
	for i, d := range p.dirs {
		if kept(step{dir: i}) {
			e.dir(d)
		}
	}
	for _, l := range p.lists {
		if !kept(step{dir: l.dir}) {
			continue
		}
		e.number(1)
		e.number(uint64(index[l.dir]))
		e.bool(l.all)
		e.number(uint64(len(l.names)))
		for _, n := range l.names {
			known := n.known && !slices.ContainsFunc(n.steps, func(s step) bool { return !kept(s) })
			e.name(n, known, index)
		}
	}
	e.number(0)
	sum := sha256.Sum256(e.b)
	return append(e.b, sum[:]...)
}

// decode reads the content of the file and reports whether it is whole.
func (p *listings) decode(data []byte) bool {
	end := len(data) - sha256.Size
	if end < len(programsMagic) || sha256.Sum256(data[:end]) != [sha256.Size]byte(data[end:]) ||
		string(data[:len(programsMagic)]) != programsMagic {
		return false
	}
	d := decoder{b: data[len(programsMagic):end]}
	for range d.count() {
		dir := d.dir()
		p.byPath[dir.lookup] = len(p.dirs)
		p.dirs = append(p.dirs, dir)
	}
	for d.count() == 1 {
		l := &listing{dir: d.index(len(p.dirs)), all: d.bool()}
		l.names = make([]programName, d.count())
		for i := range l.names {
			l.names[i] = d.name(len(p.dirs))
		}
		if d.bad {
			return false
		}
		p.lists[p.dirs[l.dir].version.fileID] = l
	}
	return !d.bad && len(d.b) == 0
}

// encoder appends numbers and texts.
type encoder struct{ b []byte }

func (e *encoder) number(n uint64) { e.b = binary.AppendUvarint(e.b, n) }

func (e *encoder) text(s string) {
	e.number(uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) bool(is bool) {
	if is {
		e.number(1)
	} else {
		e.number(0)
	}
}

func (e *encoder) dir(d *programDir) {
	e.text(d.lookup)
	e.text(d.path)
	v := d.version
	for _, n := range []uint64{v.dev, v.ino, uint64(v.mtime.Sec), uint64(v.mtime.Nsec), uint64(v.ctime.Sec), uint64(v.ctime.Nsec)} {
		e.number(n)
	}
}

func (e *encoder) name(n programName, known bool, index map[int]int) {
	e.text(n.name)
	e.bool(n.link)
	e.bool(known)
	if !known {
		return
	}
	e.number(n.target.dev)
	e.number(n.target.ino)
	e.number(uint64(len(n.steps)))
	for _, s := range n.steps {
		e.number(uint64(index[s.dir]))
		e.text(s.name)
	}
}

// decoder reads what an encoder appended. bad: it was something else.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) number() uint64 {
	n, size := binary.Uvarint(d.b)
	if d.bad = d.bad || size <= 0; d.bad {
		return 0
	}
	d.b = d.b[size:]
	return n
}

// count is a number of things that follow, each at least a byte long.
func (d *decoder) count() int {
	n := d.number()
	if d.bad = d.bad || n > uint64(len(d.b)); d.bad {
		return 0
	}
	return int(n)
}

func (d *decoder) text() string {
	n := d.count()
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

func (d *decoder) bool() bool { return d.number() == 1 }

// index is the index of one of n directories.
func (d *decoder) index(n int) int {
	i := d.number()
	if d.bad = d.bad || i >= uint64(n); d.bad {
		return 0
	}
	return int(i)
}

func (d *decoder) dir() *programDir {
	dir := &programDir{lookup: d.text(), path: d.text(), steady: true}
	v := &dir.version
	v.dev, v.ino = d.number(), d.number()
	v.mtime.Sec, v.mtime.Nsec, v.ctime.Sec, v.ctime.Nsec = int64(d.number()), int64(d.number()), int64(d.number()), int64(d.number())
	return dir
}

func (d *decoder) name(dirs int) programName {
	n := programName{name: d.text(), link: d.bool(), known: d.bool()}
	if !n.known {
		return n
	}
	n.target = fileID{d.number(), d.number()}
	n.steps = make([]step, d.count())
	for i := range n.steps {
		n.steps[i] = step{d.index(dirs), d.text()}
	}
	return n
}
