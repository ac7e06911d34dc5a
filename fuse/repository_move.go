package fuse

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"strings"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/device"
	"agentsh/fuse/tree"
	"agentsh/internal/gitguard"
	"agentsh/policy"
)

// newEntry is an entry that is about to get a name in a directory.
type newEntry struct {
	name string
	from string // present path; empty: it is about to be created
}

// rename checks the effect of a rename on repositories. If git reads a file at the new
// name, a copy of the checked content replaces the file.
func (r *repositories) rename(tid uint32, src, dst *movement, exchange bool) gofuse.Status {
	if !r.on() {
		return gofuse.OK
	}
	code := r.arrive(tid, src.from, src.to, src.st.Mode&unix.S_IFMT, exchange)
	if code.Ok() && exchange {
		code = r.arrive(tid, dst.from, dst.to, dst.st.Mode&unix.S_IFMT, true)
	}
	return code
}

// arrive checks one entry that moves. An entry that git reads at its new name cannot
// be exchanged with another: the checked content must be the content that remains.
func (r *repositories) arrive(tid uint32, from, to string, kind uint32, exchange bool) gofuse.Status {
	a := query{policy.OpRename, to}
	if code := r.nested(tid, a); !code.Ok() {
		return code
	}
	dir, base := tree.Split(to)
	swapped := gitguard.Problem{Reason: "what git reads is not exchanged with something else", Hint: "rename one after the other"}
	switch kind {
	case unix.S_IFLNK:
		text, err := r.readLink(from)
		if err != nil {
			return gofuse.Status(errno(err))
		}
		return r.link(tid, a, text)
	case unix.S_IFDIR:
		return r.arriveDir(tid, a, from, exchange)
	}
	guarded := r.guards(to)
	switch {
	case exchange && (guarded || gitguard.Completes(base)):
		return r.refuse(tid, a, swapped)
	case kind != unix.S_IFREG:
		if code := r.special(tid, a, kind); !code.Ok() {
			return code
		}
	case guarded:
		data, err := r.content(from)
		if err != nil {
			return gofuse.Status(errno(err))
		}
		if code := r.answer(tid, a, r.check(to, data, r.currentContent(to))); !code.Ok() {
			return code
		}
		if code := r.complete(tid, a, dir, newEntry{base, from}); !code.Ok() {
			return code
		}
		if code := r.replaceByCopy(tid, a, from, data); !code.Ok() {
			return code
		}
		go r.kernel.invalidate(to) // as in replaceByCopy: the kernel would use the old file for the new name
		return gofuse.OK
	}
	return r.complete(tid, a, dir, newEntry{base, from})
}

// arriveDir checks a directory that moves: its content at the new path, and the
// repository that it becomes a part of.
func (r *repositories) arriveDir(tid uint32, a query, from string, exchange bool) gofuse.Status {
	dir, base := tree.Split(a.rel)
	oldDir, oldBase := tree.Split(from)
	_, parent := tree.Split(dir)
	if dir == oldDir && !exchange && !gitguard.Completes(base) && !gitDirectory(base) && oldBase != "worktrees" && parent != "worktrees" {
		return gofuse.OK // its paths lead to the same files as before
	}
	r.kernel.StepAside()
	seen := r.survey(from, "", from)
	at := r.location(a.rel)
	at.Moved = true
	found, err := gitguard.Scan(seen.entries, gitguard.Options{Location: at, Exact: true, Old: seen.stays})
	if err != nil {
		return r.unread(tid, a, err)
	}
	if len(found.Problems) > 0 {
		return r.refuse(tid, a, inTree(found.Problems[0], r.files.inside(a.rel)))
	}
	adding := base
	for top := dir; ; top, _ = tree.Split(top) {
		rel := strings.TrimPrefix(a.rel[len(top):], "/")
		if gitguard.Reads(rel) && r.is(top, adding) {
			code := r.join(tid, a, top, newEntry{rel, from})
			if exchange {
				code = r.refuse(
					tid,
					a,
					gitguard.Problem{Reason: "what git reads is not exchanged with something else", Hint: "rename one after the other"},
				)
			}
			if !code.Ok() {
				return code
			}
		}
		if top == "" {
			return gofuse.OK
		}
		adding = ""
	}
}

// gitDirectory reports whether git reads a directory of that name in a repository.
func gitDirectory(name string) bool { return gitguard.Reads(name + "/x") }

// complete checks everything in a directory that becomes a repository because an entry
// arrives.
func (r *repositories) complete(tid uint32, a query, dir string, e newEntry) gofuse.Status {
	if !gitguard.Completes(e.name) || r.is(dir, "") || !r.is(dir, e.name) {
		return gofuse.OK
	}
	return r.join(tid, a, dir, e)
}

// join checks an entry that becomes a part of a repository. If the directory was no
// repository before, join checks the whole repository. A copy replaces each file that
// was not guarded until now.
func (r *repositories) join(tid uint32, a query, top string, e newEntry) gofuse.Status {
	seen := &survey{r: r, bytes: map[string][]byte{}, under: map[string]string{}, left: maxGuardedEntries}
	if r.is(top, "") {
		seen.list = shape
	} else {
		seen.addRepository(top, e.name)
	}
	if e.from != "" {
		seen.walk(e.from, e.name, e.from)
	} else {
		seen.list = append(seen.list, gitguard.Entry{Path: e.name, Mode: fs.ModeIrregular})
	}
	at := r.location(top)
	at.Moved = e.from != ""
	found, err := gitguard.Scan(seen.entries, gitguard.Options{Location: at, Exact: true, Old: seen.stays})
	if err != nil {
		return r.unread(tid, a, err)
	}
	if len(found.Problems) > 0 {
		return r.refuse(tid, a, inTree(found.Problems[0], r.files.inside(top)))
	}
	for name, data := range seen.bytes {
		if seen.stays(name) != nil {
			continue
		}
		if code := r.replaceByCopy(tid, a, seen.under[name], data); !code.Ok() {
			return code
		}
	}
	return gofuse.OK
}

// shape stands for the entries of an existing repository.
var shape = []gitguard.Entry{{Path: "HEAD", Mode: fs.ModeIrregular}, {Path: "objects", Mode: fs.ModeDir}, {Path: "refs", Mode: fs.ModeDir}}

// inTree returns a problem with the path that commands use.
func inTree(p gitguard.Problem, dir string) gitguard.Problem {
	p.File = strings.TrimSuffix(dir, "/") + "/" + p.File
	return p
}

func (r *repositories) unread(tid uint32, a query, err error) gofuse.Status {
	return r.refuse(tid, a, gitguard.Problem{Reason: "its content cannot be checked: " + err.Error(), Hint: "move its parts one by one"})
}

// maxGuardedEntries bounds the entries that are examined for one request.
const maxGuardedEntries = 1_000_000

// survey is a walk over a tree of the backing. It records entries with the paths they
// will have after a move into another tree.
type survey struct {
	r     *repositories
	list  []gitguard.Entry
	bytes map[string][]byte // content of regular files that were read, by path in the other tree
	under map[string]string // their present paths
	tops  []string          // directories whose own repositories are guarded already
	left  int
	err   error
}

// survey walks a whole tree.
func (r *repositories) survey(from, as, top string) *survey {
	l := &survey{r: r, bytes: map[string][]byte{}, under: map[string]string{}, left: maxGuardedEntries}
	l.walk(from, as, top)
	return l
}

func (l *survey) entries(yield func(gitguard.Entry, error) bool) {
	if l.err != nil {
		yield(gitguard.Entry{}, l.err)
		return
	}
	for _, e := range l.list {
		if !yield(e, nil) {
			return
		}
	}
}

// walk adds an entry. For a directory it adds all entries below it. as is the entry's
// path in the other tree. Repositories at top or below it are guarded already.
func (l *survey) walk(rel, as, top string) {
	p, err := l.r.files.locate(rel)
	if err != nil {
		l.err = err
		return
	}
	defer p.Close()
	var st unix.Stat_t
	if err := p.Stat(&st); err != nil {
		l.err = err
		return
	}
	l.tops = append(l.tops, top)
	l.add(rel, as, st.Mode)
}

// addRepository adds the entries that git reads in a directory, except one name.
func (l *survey) addRepository(dir, but string) {
	l.tops = append(l.tops, dir)
	for _, e := range l.below(dir) {
		if e.Name == but {
			continue
		}
		if e.Mode&unix.S_IFMT == unix.S_IFDIR && !gitDirectory(e.Name) {
			continue
		}
		l.add(tree.Join(dir, e.Name), e.Name, e.Mode)
	}
}

func (l *survey) add(rel, as string, mode uint32) {
	if l.err != nil {
		return
	}
	entry := gitguard.Entry{Path: as, Mode: fs.ModeIrregular}
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		entry.Mode = fs.ModeDir
	case unix.S_IFIFO:
		entry.Mode = fs.ModeNamedPipe
	case unix.S_IFSOCK:
		entry.Mode = fs.ModeSocket
	case unix.S_IFREG:
		entry.Mode = 0
		entry.Read = func() ([]byte, error) {
			data, err := l.r.content(rel)
			l.bytes[as], l.under[as] = data, rel
			return data, err
		}
	case unix.S_IFLNK:
		entry.Mode = fs.ModeSymlink
		entry.Read = func() ([]byte, error) {
			text, err := l.r.readLink(rel)
			return []byte(text), err
		}
	}
	if ofInterest(as, entry.Mode) {
		l.list = append(l.list, entry)
	}
	if entry.Mode != fs.ModeDir {
		return
	}
	for _, e := range l.below(rel) {
		l.add(tree.Join(rel, e.Name), tree.Join(as, e.Name), e.Mode)
	}
}

// ofInterest omits entries that no check reads. That is nearly all of them.
func ofInterest(as string, mode fs.FileMode) bool {
	dir, base := tree.Split(as)
	_, parent := tree.Split(dir)
	return as != "" &&
		(mode == fs.ModeSymlink || mode == fs.ModeNamedPipe || base == ".git" || gitguard.Completes(base) || gitguard.MayBeGuarded(parent, base))
}

func (l *survey) below(dir string) []gofuse.DirEntry {
	if l.err != nil {
		return nil
	}
	p, err := l.r.files.openDir(dir)
	if err != nil {
		l.err = err
		return nil
	}
	defer p.Close()
	list, err := entries(p, &l.left)
	if errors.Is(err, unix.E2BIG) {
		err = errors.New("there are too many entries")
	}
	l.err = err
	return list
}

// stays returns the content of a file that is guarded at its present path by a
// repository that moves with it.
func (l *survey) stays(as string) []byte {
	rel, read := l.under[as]
	if !read {
		return nil
	}
	if _, base := tree.Split(rel); base == ".git" {
		return l.bytes[as]
	}
	for _, h := range l.r.holders(rel) {
		for _, top := range l.tops {
			if (h.dir == top || top == "" || strings.HasPrefix(h.dir, top+"/")) && l.r.is(h.dir, "") {
				return l.bytes[as]
			}
		}
	}
	return nil
}

// replaceByCopy replaces a file by a copy of its checked content. Descriptors and
// mappings of the old file then do not change the new one. The node that the kernel
// has for the name becomes invalid: its next use makes the kernel look the name up
// again.
func (r *repositories) replaceByCopy(tid uint32, a query, rel string, data []byte) gofuse.Status {
	p, err := r.files.locate(rel)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer p.Close()
	var st unix.Stat_t
	if err := p.Stat(&st); err != nil {
		return gofuse.Status(errno(err))
	}
	if st.Nlink > 1 || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return r.refuse(
			tid,
			a,
			gitguard.Problem{File: r.files.inside(rel), Reason: "what git reads here may have one name only", Hint: "copy the file"},
		)
	}
	gone, err := p.PinLastName(&st)
	if err == nil {
		_, err = r.install(p, &st, data)
	}
	if err != nil {
		if gone != 0 {
			tree.CloseFD(gone)
		}
		return gofuse.Status(errno(err))
	}
	dir, base := tree.Split(rel)
	parent, unknown := r.tree.Walk(dir)
	if unknown != "" {
		tree.CloseFD(gone)
		return gofuse.OK
	}
	r.tree.Replace(parent, base, gone)
	go r.kernel.NotifyEntry(parent.ID(), base) // ends with its notice to the kernel, which may wait for the answer to this request
	return gofuse.OK
}

// install creates a file with the owner, mode and times of an old one and renames it
// over the old name.
func (r *repositories) install(p tree.Entry, old *unix.Stat_t, data []byte) (unix.Stat_t, error) {
	var st unix.Stat_t
	fresh := tree.Entry{DirFD: p.DirFD, Name: ".agentsh-" + rand.Text()}
	fd, err := fresh.Open(unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, old.Mode&0o777)
	if err != nil {
		return st, err
	}
	defer tree.CloseFD(fd)
	err = writeAll(fd, data)
	if err == nil {
		err = r.files.giveOwner(made{fresh, fd, false}, &st)
	}
	if err == nil {
		err = unix.Renameat2(p.DirFD, fresh.Name, p.DirFD, p.Name, 0)
	}
	if err != nil {
		_ = unix.Unlinkat(p.DirFD, fresh.Name, 0) // the caller gets the first error
		return st, err
	}
	return st, unix.Fstat(fd, &st)
}

func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := device.Retry(func() (int, error) { return unix.Write(fd, data) })
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}
