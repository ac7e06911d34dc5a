package gitguard

import (
	"errors"
	"io"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"
)

// Entry is one entry of a tree: a file, a symbolic link or a directory. A directory
// may be omitted if it is not empty. A submodule entry of a commit has
// [fs.ModeIrregular].
type Entry struct {
	Path string // slash separated, relative to the tree
	Mode fs.FileMode
	// Read returns the content of a file, or the text of a symbolic link. It is called
	// for few entries, after all entries were listed. Of a larger file it may return
	// only [MaxFile]+1 bytes.
	Read func() ([]byte, error)
}

// Options are the options of [Scan].
type Options struct {
	// Location is the location of the tree: Dir is its path, Roots are the trees that
	// paths may refer to.
	Location Location
	// Exact compares names byte by byte. Otherwise two names are equal if any common
	// file system treats them as one.
	Exact bool
	// Commit says that the tree is that of a commit, in which no entry may be called
	// .git.
	Commit bool
	// Old returns the content of a file that is allowed to stay, or nil. If Old is nil,
	// nothing may stay.
	Old func(path string) []byte
}

// Found is the result of [Scan]. Both lists are sorted.
type Found struct {
	Repositories []string  // directories that git uses as repositories, and .git files and links
	Problems     []Problem // contents of these that are not allowed; File is the path
}

// Scan finds every repository in a tree and everything in it that is not allowed. The
// order of the entries does not matter. The error is that of the iterator or of a Read.
func Scan(entries iter.Seq2[Entry, error], o Options) (Found, error) {
	s := scan{Options: o, dirs: map[string]map[string]bool{}, named: map[string]bool{}}
	for e, err := range entries {
		if err != nil {
			return Found{}, err
		}
		s.add(e)
	}
	for dir := range s.dirs {
		if s.isRepository(dir) {
			s.found.Repositories = append(s.found.Repositories, dir)
		}
	}
	for _, e := range s.candidates {
		if err := s.check(e); err != nil {
			return Found{}, err
		}
	}
	slices.Sort(s.found.Repositories)
	slices.SortFunc(s.found.Problems, func(a, b Problem) int {
		if c := strings.Compare(a.File, b.File); c != 0 {
			return c
		}
		return a.Line - b.Line
	})
	return s.found, nil
}

type scan struct {
	Options
	dirs       map[string]map[string]bool // names that make a repository, by folded directory
	named      map[string]bool            // paths called .git in a commit
	candidates []candidate
	found      Found
}

type candidate struct {
	Entry
	folded string // path in the form that is compared
}

func (s *scan) fold(name string) string {
	if s.Exact {
		return name
	}
	return fold(name)
}

// add records an entry, and the directories that its path implies.
func (s *scan) add(e Entry) {
	parts := strings.Split(e.Path, "/")
	if s.Commit {
		s.addDotGits(parts)
	}
	for i, p := range parts {
		parts[i] = s.fold(p)
	}
	for i, p := range parts {
		name := s.completing(p)
		if name == "" {
			continue
		}
		dir := strings.Join(parts[:i], "/")
		if s.dirs[dir] == nil {
			s.dirs[dir] = map[string]bool{}
		}
		s.dirs[dir][name] = true
	}
	last := parts[len(parts)-1]
	parent := ""
	if len(parts) > 1 {
		parent = parts[len(parts)-2]
	}
	if isLink(e.Mode) || isSpecial(e.Mode) || s.isDotGit(path.Base(e.Path)) || e.Mode.IsRegular() && MayBeGuarded(parent, last) {
		s.candidates = append(s.candidates, candidate{e, strings.Join(parts, "/")})
	}
}

// addDotGits records names of .git in the path of an entry of a commit.
func (s *scan) addDotGits(parts []string) {
	for i, p := range parts {
		if name := strings.Join(parts[:i+1], "/"); s.isDotGit(p) && !s.named[name] {
			s.named[name] = true
			s.found.Problems = append(s.found.Problems, Problem{File: name, Reason: "git takes this name for .git on some file system"})
		}
	}
}

// completing returns the name that makes a repository and of which p is a form.
func (s *scan) completing(p string) string {
	if p == "head" && !s.Exact {
		return "HEAD"
	}
	if Completes(p) {
		return p
	}
	return ""
}

func (s *scan) isDotGit(name string) bool {
	return name == ".git" || !s.Exact && IsDotGit(name)
}

func (s *scan) isRepository(dir string) bool {
	names := s.dirs[dir]
	return IsRepository(func(name string) bool { return names[name] })
}

// check checks one entry for every repository that it may be a part of.
func (s *scan) check(e candidate) error {
	if err := s.checkDotGit(e); err != nil {
		return err
	}
	for dir := path.Dir(e.folded); ; dir = path.Dir(dir) {
		if dir == "." {
			dir = ""
		}
		rel := strings.TrimPrefix(e.folded[len(dir):], "/")
		if s.isRepository(dir) {
			if err := s.checkIn(e, rel); err != nil {
				return err
			}
		}
		if dir == "" {
			return nil
		}
	}
}

// Reads reports whether git reads an entry, by its name relative to the git directory.
// git reads entries of the git directory itself and of the directories that it knows.
func Reads(rel string) bool {
	first, _, deep := strings.Cut(rel, "/")
	return !deep || slices.Contains(Directories, first)
}

func (s *scan) checkIn(e candidate, rel string) error {
	switch {
	case !s.Commit && Reads(rel) && s.isDotGit(path.Base(e.Path)):
		s.report(e, []Problem{Nested()})
		return nil
	case isSpecial(e.Mode) && Special(rel, e.Mode&fs.ModeNamedPipe != 0):
		s.report(e, []Problem{NotAFile()})
		return nil
	case isLink(e.Mode) && Reads(rel):
	case e.Mode.IsRegular() && Guarded(rel):
	default:
		return nil
	}
	data, err := e.content()
	if err != nil {
		return err
	}
	if isLink(e.Mode) {
		if s.completing(rel) == "HEAD" {
			rel = "HEAD"
		}
		s.report(e, CheckLink(rel, string(data)))
		return nil
	}
	var old []byte
	if s.Old != nil {
		old = s.Old(e.Path)
	}
	at := s.Location
	at.Dir = path.Join(at.Dir, originalDir(e.Path, rel))
	s.report(e, CheckFile(rel, data, old, at))
	return nil
}

// originalDir returns the directory that contains rel, as name spells it.
func originalDir(name, rel string) string {
	for range strings.Count(rel, "/") + 1 {
		name = path.Dir(name)
	}
	return name
}

// checkDotGit checks an entry called .git. If it is a directory, its entries decide
// whether it is a repository.
func (s *scan) checkDotGit(e candidate) error {
	if !s.isDotGit(path.Base(e.Path)) {
		return nil
	}
	if !isLink(e.Mode) && !e.Mode.IsRegular() {
		return nil
	}
	data, err := e.content()
	if err != nil {
		return err
	}
	s.found.Repositories = append(s.found.Repositories, e.Path)
	at := s.Location
	at.Dir = path.Join(at.Dir, path.Dir(e.Path))
	if isLink(e.Mode) {
		s.report(e, CheckGitLink(string(data), at))
		return nil
	}
	s.report(e, CheckGitFile(data, at))
	return nil
}

func (e *Entry) content() ([]byte, error) {
	if e.Read == nil {
		return nil, errors.New(e.Path + " cannot be read")
	}
	return e.Read()
}

func (s *scan) report(e candidate, problems []Problem) {
	for _, p := range problems {
		p.File = e.Path
		s.found.Problems = append(s.found.Problems, p)
	}
}

// FS lists the entries of a file system for [Scan]. The file system must support
// reading of links, as [os.Root.FS] does.
func FS(fsys fs.FS) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if name == "." {
				return nil
			}
			if !yield(Entry{Path: name, Mode: d.Type(), Read: func() ([]byte, error) { return readFS(fsys, name, d.Type()) }}, nil) {
				return fs.SkipAll
			}
			return nil
		})
		if err != nil {
			yield(Entry{}, err)
		}
	}
}

func readFS(fsys fs.FS, name string, mode fs.FileMode) ([]byte, error) {
	if isLink(mode) {
		text, err := fs.ReadLink(fsys, name)
		return []byte(text), err
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	return io.ReadAll(io.LimitReader(f, MaxFile+1))
}
