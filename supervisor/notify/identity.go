package notify

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/policy"
	"agentsh/policy/glob"
	"agentsh/seccomp/target"
)

// Identities recognises copies, hard links and other names of denied programs. It is safe
// for concurrent use.
type Identities struct {
	root    Root
	links   map[fileID][]string // links on the PATH, by the file they lead to
	known   map[fileID]*original
	bySize  map[int64][]*original
	mu      sync.Mutex
	digests map[fileVersion][sha256.Size]byte
}

// Root is the file system that commands see.
type Root struct {
	Dir  *os.File // the root directory; the caller keeps it open and closes it
	Path []string // absolute directories with programs

	// Cache is a file that no command can see, in which listings of directories are kept for
	// the next session; empty: none. Mounts is the mountinfo of the commands' mounts.
	Cache, Mounts string

	// Own is the directory that a session may show by an overlay of one above it. Directories on
	// the way to it tell no change of the layer below them.
	Own string
}

// readOwn reads a file that nobody but this user can write to.
func readOwn(name string) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&^0o600 != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Size > maxRemembered {
		return nil, unix.EPERM
	}
	data := make([]byte, st.Size)
	_, err = io.ReadFull(f, data)
	return data, err
}

// FileIdentity is what is known about a file besides its own path.
type FileIdentity struct {
	Names  []string // absolute paths of links on the PATH that lead to it
	Same   []string // paths of denied programs it is identical to
	Loader bool     // it is, or is a copy of, the dynamic loader

	MultiCall bool // it is, or is a copy of, a multi-call program
}

type fileID struct{ dev, ino uint64 }

// fileVersion is a file with the times that change with its content.
type fileVersion struct {
	fileID
	size         int64
	mtime, ctime unix.Timespec
}

// original is a file that others are compared with.
type original struct {
	paths  []string // denied names that lead to it
	loader bool
	multi  bool   // a multi-call program
	path   string // that it is read by
	id     fileID
	digest func() ([sha256.Size]byte, error)
}

// Bounds of the files that are known.
const (
	maxEntries = 1 << 16
	maxDigests = 1 << 12
)

// loaderDirs are the directories of dynamic loaders. Others have links to them.
var loaderDirs = []string{"/lib64", "/lib", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"}

// BuildIdentities resolves the names and path patterns in denied, as
// policy.DeniedPrograms lists them: names on root.Path, paths as they are. A file that
// does not exist yet has no identity: only its name is recognised.
func BuildIdentities(denied []string, root Root) (*Identities, error) {
	ids := &Identities{root: root, links: map[fileID][]string{}, known: map[fileID]*original{},
		bySize: map[int64][]*original{}, digests: map[fileVersion][sha256.Size]byte{}}
	if err := ids.build(denied); err != nil {
		return nil, fmt.Errorf("identify programs: %w", err)
	}
	return ids, nil
}

func (ids *Identities) build(denied []string) error {
	programs, err := compile(denied)
	if err != nil {
		return err
	}
	dirs := directories{ids: ids, programs: programs, read: map[fileID][]*entry{}, known: openPrograms(ids.root)}
	defer dirs.known.close()
	for _, dir := range ids.root.Path {
		entries, err := dirs.list(dir, false)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := dirs.addEntry(e, path.Join(dir, e.name)); err != nil {
				return err
			}
		}
	}
	for _, file := range programs.files {
		if err := ids.add(file, func(o *original) { o.deny(file) }); err != nil {
			return err
		}
	}
	for _, dir := range loaderDirs {
		entries, err := dirs.list(dir, true)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !loader(e.name) {
				continue
			}
			if err := ids.add(path.Join(dir, e.name), func(o *original) { o.loader = true }); err != nil {
				return err
			}
		}
	}
	dirs.known.save()
	return nil
}

// loader reports whether a file is a dynamic loader by its name.
func loader(name string) bool { return strings.HasPrefix(name, "ld-") && strings.Contains(name, ".so") }

// deniedPrograms are names and patterns of denied programs.
type deniedPrograms struct {
	names    map[string]bool // file names
	files    []string        // paths
	patterns []*glob.Glob    // of file names
	paths    []*glob.Glob    // of paths
}

func compile(denied []string) (*deniedPrograms, error) {
	p := &deniedPrograms{names: map[string]bool{}}
	for _, pattern := range denied {
		kind := glob.Text
		if strings.Contains(pattern, "/") {
			kind = glob.Path
		}
		g, err := glob.Compile(kind, pattern)
		if err != nil {
			return nil, fmt.Errorf("program pattern %q: %w", pattern, err)
		}
		literals, all := g.Literals()
		switch {
		case kind == glob.Path:
			p.files = append(p.files, literals...)
			if !all {
				p.paths = append(p.paths, g)
			}
		case all:
			for _, name := range literals {
				p.names[name] = true
			}
		default:
			p.patterns = append(p.patterns, g)
		}
	}
	return p, nil
}

func matches(globs []*glob.Glob, s string) bool {
	return slices.ContainsFunc(globs, func(g *glob.Glob) bool { return g.Match(s) })
}

// directories reads each directory once: /bin and /usr/bin may be one.
type directories struct {
	ids      *Identities
	programs *deniedPrograms
	read     map[fileID][]*entry
	entries  int // in all of them
	known    *listings
}

// entry is a file or a link in a directory that may be of interest.
type entry struct {
	*programName
	list *listing

	denied bool // by its name
	multi  bool // a multi-call program

	resolved bool // a link's target is known
	original *original
}

// list returns the entries of a directory; one that is missing has none. loaders: no others
// are of interest.
func (d *directories) list(dir string, loaders bool) ([]*entry, error) {
	h, err := target.ResolveIn(d.ids.root.Dir, dir)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer h.Close()
	at := fileID{h.Stat.Dev, h.Stat.Ino}
	if known, is := d.read[at]; is {
		return known, nil
	}
	found, err := d.known.list(dir, h, loaders)
	if err != nil {
		return nil, err
	}
	if d.entries += len(found.names); d.entries > maxEntries {
		return nil, fmt.Errorf("more than %d files in the directories of PATH", maxEntries)
	}
	var entries []*entry
	for i := range found.names {
		n := &found.names[i]
		denied, multi := d.programs.names[n.name] || matches(d.programs.patterns, n.name), policy.MultiCallName(n.name)
		if n.link || denied || multi || len(d.programs.paths) > 0 || loader(n.name) {
			entries = append(entries, &entry{programName: n, list: found, denied: denied, multi: multi})
		}
	}
	d.read[at] = entries
	return entries, nil
}

func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// file resolves a path to a regular file; nil: there is none.
func (ids *Identities) file(name string) (*target.Handle, error) {
	h, err := target.ResolveIn(ids.root.Dir, name)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !h.Regular() {
		h.Close()
		return nil, nil
	}
	return h, nil
}

// addEntry records an entry of a directory of PATH under its path file.
func (d *directories) addEntry(e *entry, file string) error {
	ids := d.ids
	if e.link && !e.resolved {
		if _, err := d.known.leadsTo(e.list, e.programName); err != nil {
			return err
		}
		e.resolved = true
	}
	if e.link && e.target != (fileID{}) {
		ids.links[e.target] = append(ids.links[e.target], file)
	}
	deny := e.denied || matches(d.programs.paths, file)
	if !deny && !e.multi {
		return nil
	}
	add := func(o *original) {
		e.original = o
		o.multi = o.multi || e.multi
		if deny {
			o.deny(file)
		}
	}
	if e.original != nil {
		add(e.original)
		return nil
	}
	return ids.add(file, add)
}

// add has others compared with the file that a path means, and calls f with it. Where there
// is none it does nothing.
func (ids *Identities) add(name string, f func(*original)) error {
	h, err := ids.file(name)
	if h == nil {
		return err
	}
	defer h.Close()
	id := fileID{h.Stat.Dev, h.Stat.Ino}
	o := ids.known[id]
	if o == nil {
		o = &original{path: h.Path, id: id}
		o.digest = sync.OnceValues(func() ([sha256.Size]byte, error) { return ids.originalDigest(o) })
		ids.known[id] = o
		if h.Stat.Size > 0 {
			ids.bySize[h.Stat.Size] = append(ids.bySize[h.Stat.Size], o)
		}
	}
	f(o)
	return nil
}

// deny records a denied name of the file.
func (o *original) deny(name string) {
	if !slices.Contains(o.paths, name) {
		o.paths = append(o.paths, name)
	}
}

// Of returns the identity of a file. It reads the content only if the size is that of a
// denied program.
func (ids *Identities) Of(h *target.Handle) (FileIdentity, error) {
	id := fileID{h.Stat.Dev, h.Stat.Ino}
	like := FileIdentity{Names: ids.links[id]}
	if o := ids.known[id]; o != nil {
		like.Same, like.Loader, like.MultiCall = o.paths, o.loader, o.multi
		return like, nil
	}
	candidates := ids.bySize[h.Stat.Size]
	if len(candidates) == 0 {
		return like, nil
	}
	digest, err := ids.digest(h)
	if err != nil {
		return like, fmt.Errorf("compare %s with the denied programs: %w", h.Path, err)
	}
	for _, o := range candidates {
		other, err := o.digest()
		if err != nil {
			return like, fmt.Errorf("compare %s with %s: %w", h.Path, o.path, err)
		}
		if other == digest {
			like.Same = append(like.Same, o.paths...)
			like.Loader = like.Loader || o.loader
			like.MultiCall = like.MultiCall || o.multi
		}
	}
	return like, nil
}

// originalDigest reads a denied program once. It fails if another file has replaced it:
// then its identity is lost.
func (ids *Identities) originalDigest(o *original) ([sha256.Size]byte, error) {
	h, err := target.ResolveIn(ids.root.Dir, o.path)
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	defer h.Close()
	if !h.Same(o.id.dev, o.id.ino) {
		return [sha256.Size]byte{}, errors.New("it was replaced since the session began")
	}
	return ids.digest(h)
}

// digest returns the SHA-256 of a file, from the cache where no command can
// change the file.
func (ids *Identities) digest(h *target.Handle) (sum [sha256.Size]byte, err error) {
	fixed, err := h.ReadOnly()
	if err != nil {
		return sum, err
	}
	key := versionOf(h)
	if fixed {
		ids.mu.Lock()
		sum, known := ids.digests[key]
		ids.mu.Unlock()
		if known {
			return sum, nil
		}
	}
	f, err := h.Open()
	if err != nil {
		return sum, err
	}
	defer f.Close()
	hash := sha256.New()
	n, err := io.Copy(hash, io.LimitReader(f, h.Stat.Size+1))
	if err != nil {
		return sum, err
	}
	if n != h.Stat.Size {
		return sum, errors.New("it changed while it was read")
	}
	hash.Sum(sum[:0])
	if !fixed {
		return sum, nil
	}
	ids.mu.Lock()
	defer ids.mu.Unlock()
	if len(ids.digests) >= maxDigests {
		clear(ids.digests)
	}
	ids.digests[key] = sum
	return sum, nil
}
