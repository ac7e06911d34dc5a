package notify

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"
)

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
	e := encoder{b: []byte(programsMagic), shown: p.shown}
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
	d := decoder{s: string(data[len(programsMagic):end]), shown: p.shown}
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
	return !d.bad && d.s == ""
}

// encoder appends numbers and texts.
type encoder struct {
	b     []byte
	shown overlay
}

func (e *encoder) number(n uint64) { e.b = binary.AppendUvarint(e.b, n) }

func (e *encoder) device(dev uint64) { e.number(e.shown.swap(e.shown.dev, e.shown.number, dev)) }

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
	e.device(v.dev)
	for _, n := range []uint64{v.ino, uint64(v.mtime.Sec), uint64(v.mtime.Nsec), uint64(v.ctime.Sec), uint64(v.ctime.Nsec)} {
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
	e.device(n.target.dev)
	e.number(n.target.ino)
	e.number(uint64(len(n.steps)))
	for _, s := range n.steps {
		e.number(uint64(index[s.dir]))
		e.text(s.name)
	}
}

// decoder reads what an encoder appended. bad: it was something else. There are thousands of
// names: they are parts of one text, and all steps lie in a few arrays.
type decoder struct {
	s     string
	bad   bool
	shown overlay
	steps []step // that are free
}

// number reads what binary.AppendUvarint appended.
func (d *decoder) number() (n uint64) {
	for i := 0; i < len(d.s) && i < binary.MaxVarintLen64 && !d.bad; i++ {
		b := d.s[i]
		if i == binary.MaxVarintLen64-1 && b > 1 {
			break // more than 64 bits
		}
		n |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			d.s = d.s[i+1:]
			return n
		}
	}
	d.bad = true
	return 0
}

// device is the device of a filesystem in this session.
func (d *decoder) device() uint64 { return d.shown.swap(d.shown.number, d.shown.dev, d.number()) }

// count is a number of things that follow, each at least a byte long.
func (d *decoder) count() int {
	n := d.number()
	if d.bad = d.bad || n > uint64(len(d.s)); d.bad {
		return 0
	}
	return int(n)
}

func (d *decoder) text() string {
	n := d.count()
	s := d.s[:n]
	d.s = d.s[n:]
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
	v.dev, v.ino = d.device(), d.number()
	v.mtime.Sec, v.mtime.Nsec, v.ctime.Sec, v.ctime.Nsec = int64(d.number()), int64(d.number()), int64(d.number()), int64(d.number())
	return dir
}

func (d *decoder) name(dirs int) programName {
	n := programName{name: d.text(), link: d.bool(), known: d.bool()}
	if !n.known {
		return n
	}
	n.target = fileID{d.device(), d.number()}
	n.steps = d.someSteps(d.count())
	for i := range n.steps {
		n.steps[i] = step{d.index(dirs), d.text()}
	}
	return n
}

// someSteps are n new steps.
func (d *decoder) someSteps(n int) []step {
	if n > len(d.steps) {
		d.steps = make([]step, max(n, 512))
	}
	some := d.steps[:n:n]
	d.steps = d.steps[n:]
	return some
}
