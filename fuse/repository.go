package fuse

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
	"agentsh/internal/gitguard"
	"agentsh/policy"
)

// repositories ensures that the repositories of a mount contain no setting by which
// git would later run a program. Package gitguard has the rules. They are enforced in
// three ways:
//
//   - Names in a directory make it a repository. A request for one of these names
//     holds tree.Moves exclusively ([tree.Tree.Lock]). A request that makes a
//     repository is checked against everything in the directory.
//   - A file can get a guarded name by a rename, or because its directory becomes a
//     repository. Its content is checked, and a copy of the checked content replaces
//     it. Descriptors and mappings of the old file then have no effect.
//   - A guarded file that is written under its name is written in memory. It is
//     checked when it is closed, and installed as a whole ([stage]).
type repositories struct {
	tree    *tree.Tree
	files   *files
	access  *access
	kernel  *kernel
	handles *openFiles
	nodes   *nodeFiles
	stages  *stages
	roots   []string // paths of the governed directories, which a repository may refer to
}

// on reports whether the current rules guard repositories.
func (r *repositories) on() bool {
	on, _ := r.access.rules.now().policy.GitGuard()
	return on
}

// exclusive reports whether requests for a name must run alone.
func (r *repositories) exclusive(name string) bool { return gitguard.Completes(name) && r.on() }

// is reports whether a directory is a repository, or would be with one more name in
// it. A directory that cannot be read counts as a repository.
func (r *repositories) is(dir, adding string) bool {
	p, err := r.files.openDir(dir)
	if err != nil {
		return !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR)
	}
	defer p.Close()
	return gitguard.IsRepository(func(name string) bool {
		var st unix.Stat_t
		return name == adding || !errors.Is(tree.Entry{DirFD: p.DirFD, Name: name}.Stat(&st), unix.ENOENT)
	})
}

// membership is a file as part of a repository.
type membership struct{ dir, name string }

// maxGuardedDepth is the greatest depth of a guarded file in its repository.
const maxGuardedDepth = 3

// holders returns the repositories in which the file at rel is guarded, or would be if
// it existed.
func (r *repositories) holders(rel string) []membership {
	dir, base := tree.Split(rel)
	if _, parent := tree.Split(dir); !gitguard.MayBeGuarded(parent, base) {
		return nil
	}
	var out []membership
	adding, name := base, base
	for range maxGuardedDepth {
		if gitguard.Guarded(name) && r.is(dir, adding) {
			out = append(out, membership{dir, name})
		}
		if dir == "" {
			break
		}
		dir, base = tree.Split(dir)
		name, adding = base+"/"+name, ""
	}
	return out
}

// guards reports whether the content of a regular file is checked.
func (r *repositories) guards(rel string) bool {
	_, base := tree.Split(rel)
	return base == ".git" || len(r.holders(rel)) > 0
}

// location returns the location of the repository at a path of the mount.
func (r *repositories) location(dir string) gitguard.Location {
	return gitguard.Location{Dir: r.files.inside(dir), Roots: r.roots}
}

// check checks the new content of a guarded file. Settings that old contains are
// allowed.
func (r *repositories) check(rel string, data, old []byte) []gitguard.Problem {
	var out []gitguard.Problem
	if dir, base := tree.Split(rel); base == ".git" {
		if old == nil || string(old) != string(data) {
			out = gitguard.CheckGitFile(data, r.location(dir))
		}
	}
	for _, h := range r.holders(rel) {
		out = append(out, gitguard.CheckFile(h.name, data, old, r.location(h.dir))...)
	}
	return out
}

// refuse denies an operation because of the first problem.
func (r *repositories) refuse(tid uint32, a query, problem gitguard.Problem) gofuse.Status {
	_, at := r.access.rules.now().policy.GitGuard()
	if problem.File == "" {
		problem.File = r.files.inside(a.rel)
	}
	r.access.report(tid, "", verdict{a,
		policy.Decision{Rule: &policy.Rule{Name: "git_guard", Pos: at}},
		policy.Diagnostic{Message: shown(problem.String()), Hint: problem.Hint}})
	return gofuse.EPERM
}

func (r *repositories) answer(tid uint32, a query, problems []gitguard.Problem) gofuse.Status {
	if len(problems) == 0 {
		return gofuse.OK
	}
	return r.refuse(tid, a, problems[0])
}

// make checks an entry that is about to be created: an empty file, a directory or a
// special file. Links are checked by [repositories.link].
func (r *repositories) make(tid uint32, a query, kind uint32) gofuse.Status {
	if !r.on() {
		return gofuse.OK
	}
	if code := r.nested(tid, a); !code.Ok() {
		return code
	}
	if code := r.special(tid, a, kind); !code.Ok() {
		return code
	}
	dir, base := tree.Split(a.rel)
	if kind == unix.S_IFREG && (base == ".git" || len(r.holders(a.rel)) > 0) {
		if code := r.answer(tid, a, r.check(a.rel, []byte{}, nil)); !code.Ok() {
			return code
		}
	}
	return r.complete(tid, a, dir, newEntry{name: base})
}

// partOf reports whether git reads an entry as a part of a repository and of returns
// true for its name relative to that repository. A directory called .git counts as a
// repository.
func (r *repositories) partOf(rel string, of func(name string) bool) bool {
	top, adding := tree.Split(rel)
	for {
		_, called := tree.Split(top)
		if of(strings.TrimPrefix(rel[len(top):], "/")) && (called == ".git" || r.is(top, adding)) {
			return true
		}
		if top == "" {
			return false
		}
		top, _ = tree.Split(top)
		adding = ""
	}
}

// nested denies an entry called .git among the files that git reads: git would take
// their directory for a work tree.
func (r *repositories) nested(tid uint32, a query) gofuse.Status {
	if _, base := tree.Split(a.rel); base != ".git" || !r.partOf(a.rel, gitguard.Reads) {
		return gofuse.OK
	}
	return r.refuse(tid, a, gitguard.Nested())
}

// special checks an entry that is not a file, directory or link.
func (r *repositories) special(tid uint32, a query, kind uint32) gofuse.Status {
	if kind == unix.S_IFREG || kind == unix.S_IFDIR || kind == unix.S_IFLNK {
		return gofuse.OK
	}
	_, base := tree.Split(a.rel)
	if base != ".git" && !r.partOf(a.rel, func(name string) bool { return gitguard.Special(name, kind == unix.S_IFIFO) }) {
		return gofuse.OK
	}
	return r.refuse(tid, a, gitguard.NotAFile())
}

// link checks a symbolic link that is about to be made or moved to its name.
func (r *repositories) link(tid uint32, a query, text string) gofuse.Status {
	if !r.on() {
		return gofuse.OK
	}
	if code := r.nested(tid, a); !code.Ok() {
		return code
	}
	dir, base := tree.Split(a.rel)
	problems := gitguard.CheckAnyLink(text)
	if base == ".git" {
		problems = gitguard.CheckGitLink(text, r.location(dir))
	}
	if code := r.answer(tid, a, problems); !code.Ok() {
		return code
	}
	adding := base
	for top := dir; ; top, _ = tree.Split(top) {
		rel := strings.TrimPrefix(a.rel[len(top):], "/")
		if gitguard.Reads(rel) && r.is(top, adding) {
			if code := r.answer(tid, a, gitguard.CheckLink(rel, text)); !code.Ok() {
				return code
			}
		}
		if top == "" {
			break
		}
		adding = ""
	}
	return r.complete(tid, a, dir, newEntry{name: base})
}

// hardLink checks a second name of a file. If a guarded file had two names, it could
// be changed under one of them without a check under the other.
func (r *repositories) hardLink(tid uint32, a query, n *tree.Node, names []string) gofuse.Status {
	if !r.on() {
		return gofuse.OK
	}
	for _, rel := range slices.Concat(names, []string{a.rel}) {
		if r.guards(rel) {
			return r.refuse(tid, a, gitguard.Problem{Reason: "what git reads here may have one name only", Hint: "copy the file"})
		}
	}
	if n.Kind() == unix.S_IFLNK {
		text, err := r.readLink(names[0])
		if err != nil {
			return gofuse.Status(errno(err))
		}
		return r.link(tid, a, text)
	}
	dir, base := tree.Split(a.rel)
	return r.complete(tid, a, dir, newEntry{name: base})
}

// mayRedirect refuses to redirect a name that makes a repository or is guarded in one.
func (r *repositories) mayRedirect(rel string) error {
	dir, base := tree.Split(rel)
	if _, parent := tree.Split(dir); r.on() && (base == ".git" || gitguard.Completes(base) || gitguard.MayBeGuarded(parent, base)) {
		return errors.New("git_guard allows no redirect of a name that git reads")
	}
	return nil
}

// content reads a regular file. It returns at most one byte more than the size that is
// checked.
func (r *repositories) content(rel string) ([]byte, error) {
	p, err := r.files.locate(rel)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	fd, err := p.Open(unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), rel)
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, gitguard.MaxFile+1))
	if data == nil {
		data = []byte{}
	}
	return data, err
}

// currentContent returns the content of a guarded file, or nil.
func (r *repositories) currentContent(rel string) []byte {
	data, err := r.content(rel)
	if err != nil {
		return nil
	}
	return data
}

func (r *repositories) readLink(rel string) (string, error) {
	p, err := r.files.locate(rel)
	if err != nil {
		return "", err
	}
	defer p.Close()
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(p.DirFD, p.Name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// maker returns the maker of an entry that is not a link.
func (r *repositories) maker(tid, mode uint32, do func(tree.Entry) error) maker {
	return maker{func(a query) gofuse.Status { return r.make(tid, a, mode&unix.S_IFMT) }, do}
}
