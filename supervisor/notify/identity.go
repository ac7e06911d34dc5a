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
	names, paths, err := compile(denied)
	if err != nil {
		return nil, err
	}
	left := maxEntries
	seen := map[fileID]map[string]fileID{} // targets of the links of a directory: /bin and /usr/bin may be one
	for _, dir := range root.Path {
		err := ids.each(dir, &left, func(at fileID, name string, link bool) error {
			file := path.Join(dir, name)
			var err error
			if link {
				err = ids.addLink(seen, at, name, file)
			}
			if err == nil && (matches(names, name) || matches(paths, file)) {
				err = ids.add(file, deniedFile)
			}
			if err == nil && policy.MultiCallName(name) {
				err = ids.add(file, multiCallFile)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("identify programs: %w", err)
		}
	}
	for _, g := range paths {
		literals, _ := g.Literals()
		for _, file := range literals {
			if err := ids.add(file, deniedFile); err != nil {
				return nil, fmt.Errorf("identify programs: %w", err)
			}
		}
	}
	for _, dir := range loaderDirs {
		err := ids.each(dir, &left, func(_ fileID, name string, _ bool) error {
			if strings.HasPrefix(name, "ld-") && strings.Contains(name, ".so") {
				return ids.add(path.Join(dir, name), loaderFile)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("identify programs: %w", err)
		}
	}
	return ids, nil
}

func compile(denied []string) (names, paths []*glob.Glob, err error) {
	for _, pattern := range denied {
		kind := glob.Text
		if strings.Contains(pattern, "/") {
			kind = glob.Path
		}
		g, err := glob.Compile(kind, pattern)
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("program pattern %q: %w", pattern, err)
		case kind == glob.Path:
			paths = append(paths, g)
		default:
			names = append(names, g)
		}
	}
	return names, paths, nil
}

func matches(globs []*glob.Glob, s string) bool {
	return slices.ContainsFunc(globs, func(g *glob.Glob) bool { return g.Match(s) })
}

// each calls f for the files and links of a directory, with the directory's own
// identity; one that is missing has none.
func (ids *Identities) each(dir string, left *int, f func(at fileID, name string, link bool) error) error {
	h, err := target.ResolveIn(ids.root.Dir, dir)
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.Close()
	at := fileID{h.Stat.Dev, h.Stat.Ino}
	entries, err := h.ReadDir()
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if *left -= len(entries); *left < 0 {
		return fmt.Errorf("more than %d files in the directories of PATH", maxEntries)
	}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		if err := f(at, e.Name(), e.Type()&os.ModeSymlink != 0); err != nil {
			return err
		}
	}
	return nil
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

// addLink stores the target of the link name in the directory at. file is its path.
func (ids *Identities) addLink(seen map[fileID]map[string]fileID, at fileID, name, file string) error {
	id, known := seen[at][name]
	if !known {
		st, err := target.StatIn(ids.root.Dir, file)
		if err != nil && !absent(err) {
			return err
		}
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			id = fileID{st.Dev, st.Ino}
		}
		if seen[at] == nil {
			seen[at] = map[string]fileID{}
		}
		seen[at][name] = id
	}
	if id != (fileID{}) {
		ids.links[id] = append(ids.links[id], file)
	}
	return nil
}

// Why a file is an original.
const (
	deniedFile = iota
	loaderFile
	multiCallFile
)

func (ids *Identities) add(name string, why int) error {
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
	o.loader = o.loader || why == loaderFile
	o.multi = o.multi || why == multiCallFile
	if why == deniedFile && !slices.Contains(o.paths, name) {
		o.paths = append(o.paths, name)
	}
	return nil
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
