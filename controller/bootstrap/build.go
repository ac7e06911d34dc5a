package bootstrap

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"agentsh/internal/layout"

	"agentsh/controller/git"
	"agentsh/internal/rootfs"
	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
)

// permBits are the mode bits that are sent.
const permBits fs.FileMode = 0o775

// builder collects entries and problems.
type builder struct {
	entries  []Entry        // without a destination: removed
	at       map[string]int // destination to index
	problems []error
}

// newBuilder makes a builder for about n entries. A list and an index take half the
// memory of a map of entries.
func newBuilder(n int) *builder {
	return &builder{entries: make([]Entry, 0, n), at: make(map[string]int, n)}
}

// entry returns the entry of a destination; nil: there is none.
func (b *builder) entry(dest string) *Entry {
	if i, ok := b.at[dest]; ok {
		return &b.entries[i]
	}
	return nil
}

// remove removes the entry of a destination.
func (b *builder) remove(dest string) {
	*b.entry(dest) = Entry{}
	delete(b.at, dest)
}

func (b *builder) problem(err error) { b.problems = append(b.problems, err) }

// add adds an entry. Two entries with the same path are a problem, unless both
// are directories.
func (b *builder) add(e Entry) {
	old := b.entry(e.Dest)
	switch {
	case old == nil:
		b.at[e.Dest] = len(b.entries)
		b.entries = append(b.entries, e)
	case old.Kind == KindDir && e.Kind == KindDir:
		*old = e
	default:
		b.problem(fmt.Errorf("%s is delivered twice", e.Dest))
	}
}

// hostFile adds a file of the harness. It may replace one of the repository.
func (b *builder) hostFile(f File) {
	if err := checkDest(f.Dest); err != nil {
		b.problem(err)
		return
	}
	if old := b.entry(f.Dest); old != nil && old.tree != "" && old.Kind != KindDir {
		b.remove(f.Dest)
	}
	b.file(f)
}

// skill adds a skill with its replaced files.
func (b *builder) skill(s Skill) {
	dest := path.Join(layout.ConfigDir, "skills", filepath.Base(s.Dir))
	b.operatorTree(dest, s.Dir)
	for _, name := range slices.Sorted(maps.Keys(s.Overrides)) {
		if err := b.override(path.Join(dest, name), s.Overrides[name]); err != nil {
			b.problem(fmt.Errorf("skill %s: %w", s.Dir, err))
		}
	}
}

// override replaces a file by another one of the host. Without one the file or
// directory is left out.
func (b *builder) override(dest, source string) error {
	found := false
	for i := range b.entries {
		if at := b.entries[i].Dest; at == dest || strings.HasPrefix(at, dest+"/") {
			found = true
			b.remove(at)
		}
	}
	if source == "" && !found {
		return fmt.Errorf("there is no %s to leave out", dest)
	}
	if source == "" {
		return nil
	}
	info, err := os.Stat(source)
	if err == nil {
		b.file(File{Dest: dest, Source: source, Mode: info.Mode().Perm() & permBits})
	}
	return err
}

// maxDefinition bounds an agent definition to which a note is appended, in
// bytes.
const maxDefinition = 1 << 20

// definition adds the agent definition, with the note appended.
func (b *builder) definition(in Input) {
	f := File{Dest: path.Join(layout.ConfigDir, "agents", in.Agent+".md"), Source: in.Definition, Mode: 0o644}
	if in.Note == nil {
		b.file(f)
		return
	}
	source, err := openRegular(func(flag int) (*os.File, error) { return os.OpenFile(in.Definition, flag, 0) })
	if err != nil {
		b.problem(fmt.Errorf("%s: %w", f.Dest, err))
		return
	}
	defer source.Close()
	text, err := io.ReadAll(io.LimitReader(source, maxDefinition+1))
	if err == nil && len(text) > maxDefinition {
		err = fmt.Errorf("%s has more than %d bytes", in.Definition, maxDefinition)
	}
	if err != nil {
		b.problem(fmt.Errorf("%s: %w", f.Dest, err))
		return
	}
	f.Source, f.Data = "", slices.Concat(text, in.Note)
	b.file(f)
}

// file adds one file.
func (b *builder) file(f File) {
	if f.Mode&^0o777 != 0 {
		b.problem(fmt.Errorf("%s: mode %v has more than permission bits", f.Dest, f.Mode))
		return
	}
	e := Entry{Dest: f.Dest, Kind: KindFile, Mode: f.Mode & permBits, source: f.Source, data: f.Data}
	if err := e.digest(); err != nil {
		b.problem(fmt.Errorf("%s: %w", f.Dest, err))
		return
	}
	b.add(e)
}

// internalFile adds a file of the controller, or a symbolic link that stays
// below the root.
func (b *builder) internalFile(f File) {
	switch name, _ := strings.CutPrefix(f.Dest, layout.Sandbox+"/"); {
	case f.Target == "":
		b.file(f)
	case !stays(name, f.Target):
		b.problem(fmt.Errorf("%s: link to %.200q leaves the sandbox", f.Dest, f.Target))
	default:
		b.add(Entry{Dest: f.Dest, Kind: KindSymlink, Mode: 0o777, Target: f.Target})
	}
}

// digest sets the size and the SHA-256.
func (e *Entry) digest() error {
	sum := sha256.New()
	if e.source == "" {
		sum.Write(e.data)
		e.Size = int64(len(e.data))
	} else {
		f, err := e.open()
		if err != nil {
			return err
		}
		defer f.Close()
		if e.Size, err = io.Copy(sum, f); err != nil {
			return err
		}
	}
	e.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return nil
}

// openRegular opens a regular file. It does not block on a file of another
// type.
func openRegular(open func(flag int) (*os.File, error)) (*os.File, error) {
	f, err := open(os.O_RDONLY | syscall.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", f.Name())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// operatorTree adds a directory of the operator without git's own directory. An
// entry that cannot be sent is a problem.
func (b *builder) operatorTree(dest, dir string) {
	err := b.tree(dest, dir, func(name string) bool {
		return tarfs.IsGitDir(path.Base(name))
	}, func(name, why string) {
		b.problem(fmt.Errorf("%s: %s", filepath.Join(dir, name), why))
	})
	if err != nil {
		b.problem(fmt.Errorf("%s: %w", dir, err))
	}
}

// tree adds a directory and everything below it. skip leaves an entry out.
// refused is called for each entry that cannot be sent.
func (b *builder) tree(dest, dir string, skip func(string) bool, refused func(name, why string)) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return fs.WalkDir(rootfs.New(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if skip(name) && d.IsDir() {
			return fs.SkipDir
		} else if skip(name) {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		e := Entry{Dest: path.Join(dest, name), Mode: info.Mode().Perm() & permBits, tree: dir, source: filepath.FromSlash(name)}
		switch info.Mode().Type() {
		case fs.ModeDir:
			e.Kind = KindDir
		case fs.ModeSymlink:
			e.Kind, e.Mode = KindSymlink, 0o777
			if e.Target, err = root.Readlink(name); err != nil {
				return err
			}
			if !stays(name, e.Target) {
				refused(name, fmt.Sprintf("link to %.200q leaves the directory", e.Target))
				return nil
			}
		case 0:
			e.Kind = KindFile
			if err := e.digest(); err != nil {
				return err
			}
		default:
			refused(name, "neither file, directory nor link")
			return nil
		}
		b.add(e)
		return nil
	})
}

// stays reports whether the target of a symbolic link is below the tree. As in
// package tarfs, dot-dot is allowed only at the front of the target.
func stays(name, target string) bool {
	if target == "" || path.IsAbs(target) {
		return false
	}
	room, named := strings.Count(name, "/"), false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if room--; named || room < 0 {
				return false
			}
		default:
			named = true
		}
	}
	return true
}

// Texts that are added to a repository.
const (
	rulesName  = "AGENTS.md"
	bridgeName = "CLAUDE.md"
	bridge     = "The rules of this project are in AGENTS.md:\n\n@AGENTS.md\n"
)

// repository adds the clone. If the clone has no AGENTS.md, it adds that of the
// organisation. If the runtime needs a CLAUDE.md, it adds one that refers to
// AGENTS.md. Both are listed in .git/info/exclude, so that the agent does not
// commit them. It returns the entries that cannot be sent, and the files that
// were added.
func (b *builder) repository(in Input) (skipped, added []string) {
	if in.Repo == "" {
		return nil, nil
	}
	dest := path.Join(layout.Workspace, in.RepoName)
	has := map[string]bool{}
	err := b.tree(dest, in.Repo, func(name string) bool {
		has[name] = true
		return false
	}, func(name, why string) {
		skipped = append(skipped, fmt.Sprintf("%q: %s", name, why))
	})
	if err != nil {
		b.problem(fmt.Errorf("repository %s: %w", in.Repo, err))
		return nil, nil
	}
	for _, f := range in.Commit.Tree {
		e := Entry{
			Dest:   path.Join(dest, f.Path),
			Kind:   f.Kind,
			Mode:   f.Mode & permBits,
			Size:   f.Size,
			Target: f.Target,
			tree:   in.Repo,
			blob:   f.ID,
		}
		if e.Kind == KindSymlink {
			e.Mode = 0o777
		}
		switch has[f.Path] = true; {
		case tarfs.IsGitDir(path.Base(f.Path)) || !wire.IsNamePath(f.Path):
			skipped = append(skipped, fmt.Sprintf("%q: not a name that travels", f.Path))
		case e.Kind == KindSymlink && !stays(f.Path, f.Target):
			skipped = append(skipped, fmt.Sprintf("%q: link to %.200q leaves the directory", f.Path, f.Target))
		case hidden(f, in.Hidden):
			skipped = append(skipped, fmt.Sprintf("%q: the agent's program would be configured by it", f.Path))
		default:
			b.add(e)
		}
	}
	if !has[rulesName] && in.AgentsMD != nil {
		b.file(File{Dest: path.Join(dest, rulesName), Data: in.AgentsMD, Mode: 0o644})
		has[rulesName] = true
		added = append(added, rulesName)
	}
	if in.Bridge && has[rulesName] && !has[bridgeName] {
		b.file(File{Dest: path.Join(dest, bridgeName), Data: []byte(bridge), Mode: 0o644})
		added = append(added, bridgeName)
	}
	b.exclude(path.Join(dest, ".git"), added)
	return skipped, added
}

// hidden reports whether an entry is one of the hidden files or lies in a
// hidden directory. It also reports symbolic links that lead to a path where
// such a file could be.
func hidden(f git.TreeEntry, names []string) bool {
	if f.Kind == KindDir {
		return false // the directory is empty without its hidden files
	}
	for _, h := range names {
		if f.Path == h || strings.HasPrefix(f.Path, h+"/") || f.Kind == KindSymlink && strings.HasPrefix(h, f.Path+"/") {
			return true
		}
	}
	return false
}

// exclude lists the added files in .git/info/exclude.
func (b *builder) exclude(gitDir string, added []string) {
	if d := b.entry(gitDir); len(added) == 0 || d == nil || d.Kind != KindDir {
		return
	}
	dest := path.Join(gitDir, "info", "exclude")
	var text bytes.Buffer
	if old := b.entry(dest); old != nil {
		if old.Kind != KindFile {
			b.problem(fmt.Errorf("%s is a %s", old.Source(), old.Kind))
			return
		}
		f, err := old.open()
		if err != nil {
			b.problem(err)
			return
		}
		_, err = text.ReadFrom(io.LimitReader(f, 1<<20))
		f.Close()
		if err != nil {
			b.problem(err)
			return
		}
		b.remove(dest)
	}
	if text.Len() > 0 && !bytes.HasSuffix(text.Bytes(), []byte("\n")) {
		text.WriteByte('\n')
	}
	for _, name := range added {
		fmt.Fprintf(&text, "/%s\n", name)
	}
	b.file(File{Dest: dest, Data: text.Bytes(), Mode: 0o644})
}
