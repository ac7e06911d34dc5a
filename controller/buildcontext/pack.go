// Package buildcontext packs a directory with a Dockerfile for a builder elsewhere. The archive has what .dockerignore leaves, and
// neither files of credentials nor links that lead out of the directory.
package buildcontext

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"agentsh/internal/text"
)

// The bounds of an archive.
const (
	maxFiles      = 20_000    // and directories
	maxTotal      = 512 << 20 // bytes of all files
	maxDockerfile = 1 << 20   // bytes
	maxProblems   = 20        // that are shown
)

// sentDockerfile is the name of the Dockerfile in archives.
const sentDockerfile = "Dockerfile"

// Options say what an archive has.
type Options struct {
	Dir        string            // empty: only Extra
	Dockerfile string            // its name in Dir
	Extra      []File            // further files, among them the Dockerfile as it is sent
	Values     map[string]string // secrets that no file may have, by what they are called
}

// File is a file of an archive that is not of the directory.
type File struct {
	Name       string
	Executable bool
	Path       string // of the file on this host; empty: Data
	Data       []byte
}

// Packed says what an archive has.
type Packed struct {
	Files   int   // and links
	Bytes   int64 // of all files, before compression
	LeftOut int   // files and directories that .dockerignore excludes, and .git
}

// entry is a file, a directory or a link that is packed.
type entry struct {
	name   string
	info   fs.FileInfo
	target string // of a link
	agreed bool   // .dockerignore names it after an exclamation mark
}

// Write writes a ZIP archive. All that may not be sent is in one error. If w is a file in the directory, the archive has all but it.
func Write(ctx context.Context, w io.Writer, o Options) (Packed, error) {
	p := &packer{ctx: ctx, zip: zip.NewWriter(w), o: o}
	if f, ok := w.(*os.File); ok {
		var err error
		if p.out, err = f.Stat(); err != nil {
			return p.packed, err
		}
	}
	if o.Dir != "" {
		if err := p.dir(); err != nil {
			return p.packed, err
		}
	}
	for _, f := range o.Extra {
		if err := p.extra(f); err != nil {
			return p.packed, err
		}
	}
	return p.packed, p.zip.Close()
}

// packer writes one archive.
type packer struct {
	ctx      context.Context
	zip      *zip.Writer
	o        Options
	out      fs.FileInfo // of the archive; nil: it is no file
	root     *os.Root
	ignore   ignore
	entries  []entry
	problems []string
	packed   Packed
}

func (p *packer) problem(name, format string, args ...any) {
	p.problems = append(p.problems, text.Visible(name)+": "+fmt.Sprintf(format, args...))
}

// failed is the error of all problems.
func (p *packer) failed() error {
	n := len(p.problems)
	if n == 0 {
		return nil
	}
	shown := p.problems[:min(n, maxProblems)]
	if n > maxProblems {
		shown = append(slices.Clone(shown), fmt.Sprintf("%d more", n-maxProblems))
	}
	return errors.New(strings.Join(shown, "\n"))
}

func (p *packer) dir() (err error) {
	if err := p.open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.root.Close()) }()
	if err := p.walk("."); err != nil {
		return err
	}
	if err := p.failed(); err != nil {
		return err
	}
	for _, e := range p.entries {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		if err := p.add(e); err != nil {
			return err
		}
	}
	return p.failed()
}

// open opens the directory. The caller closes its root.
func (p *packer) open() (err error) {
	if p.root, err = os.OpenRoot(p.o.Dir); err != nil {
		return err
	}
	if p.ignore, err = readIgnore(p.root, p.o.Dockerfile); err != nil {
		return errors.Join(err, p.root.Close())
	}
	return nil
}

// walk lists a directory.
func (p *packer) walk(dir string) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	d, err := p.root.Open(dir)
	if err != nil {
		return err
	}
	list, err := d.ReadDir(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, one := range list {
		name := path.Join(dir, one.Name())
		excluded, agreed, err := p.ignore.excluded(name)
		switch {
		case err != nil:
			return err
		case !one.IsDir() && (name == p.o.Dockerfile || name == sentDockerfile || p.ignore.isOwn(name)): // the one that is sent is in Extra
		case excluded && (!one.IsDir() || !p.ignore.patterns.Exclusions()):
			p.packed.LeftOut++
		case one.IsDir():
			if !excluded {
				if err := p.list(name, one, agreed); err != nil {
					return err
				}
			}
			if err := p.walk(name); err != nil {
				return err
			}
		default:
			if err := p.list(name, one, agreed); err != nil {
				return err
			}
		}
	}
	return nil
}

// list adds a file to the list if it may be sent.
func (p *packer) list(name string, one fs.DirEntry, agreed bool) error {
	info, err := one.Info()
	if err != nil {
		return err
	}
	if p.out != nil && os.SameFile(info, p.out) {
		return nil
	}
	e := entry{name: name, info: info, agreed: agreed}
	switch mode := info.Mode(); {
	case !utf8.ValidString(name) || strings.Contains(name, `\`):
		p.problem(name, "the name is not UTF-8 or has a backslash: rename it, or exclude it in .dockerignore")
	case mode.IsDir():
	case mode&fs.ModeSymlink != 0:
		if e.target, err = p.root.Readlink(name); err != nil {
			return err
		}
		if !p.inside(name, e.target) {
			p.problem(name, "this link leads out of the directory: replace it by what it leads to, or exclude it in .dockerignore")
		}
	case !mode.IsRegular():
		p.problem(name, "neither file, directory nor link: exclude it in .dockerignore")
	case !agreed && holdsCredentials(name):
		p.problem(name, "files of this name have credentials: exclude it in .dockerignore, or write !%s there if it has none", text.Visible(name))
	}
	p.entries = append(p.entries, e)
	if !one.IsDir() {
		p.packed.Files++
	}
	if info.Mode().IsRegular() {
		p.packed.Bytes += info.Size()
	}
	if len(p.entries) > maxFiles || p.packed.Bytes > maxTotal {
		return fmt.Errorf("%s has more than %d files and directories, or more than %d MiB: exclude what the image does not need in .dockerignore",
			text.Visible(p.o.Dir), maxFiles, maxTotal>>20)
	}
	return nil
}

// inside reports whether a link stays in the directory.
func (p *packer) inside(name, target string) bool {
	if path.IsAbs(target) || strings.Contains(target, "\x00") {
		return false
	}
	_, err := p.root.Stat(name)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err == nil
	}
	// It leads to nothing here. What is there in the image must be inside too: so it goes up only at its beginning.
	down := false
	for part := range strings.SplitSeq(target, "/") {
		if part == ".." && down {
			return false
		}
		down = down || part != ".." && part != "." && part != ""
	}
	full := path.Join(path.Dir(name), target)
	return full != ".." && !strings.HasPrefix(full, "../")
}

// add writes one entry.
func (p *packer) add(e entry) error {
	h := &zip.FileHeader{Name: e.name, Method: zip.Deflate}
	h.SetMode(e.info.Mode())
	switch {
	case e.info.IsDir():
		h.Name, h.Method = e.name+"/", zip.Store
		_, err := p.zip.CreateHeader(h)
		return err
	case e.info.Mode()&fs.ModeSymlink != 0:
		out, err := p.zip.CreateHeader(h)
		if err == nil {
			_, err = io.WriteString(out, e.target)
		}
		return err
	}
	f, err := p.root.OpenFile(e.name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe that replaced it would block
	if errors.Is(err, fs.ErrNotExist) {
		return changed(e.name)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(info, e.info) || info.Size() != e.info.Size() {
		return changed(e.name)
	}
	return p.copy(h, f, e)
}

// changed is the error of a file that is another one than the list has.
func changed(name string) error {
	return fmt.Errorf("%s changed while it was read: try again", text.Visible(name))
}

// copy writes a file. Its content is looked at on the way.
func (p *packer) copy(h *zip.FileHeader, f io.Reader, e entry) error {
	out, err := p.zip.CreateHeader(h)
	if err != nil {
		return err
	}
	look := &inspector{values: p.o.Values}
	n, err := io.Copy(io.MultiWriter(out, look), io.LimitReader(f, e.info.Size()+1))
	if err != nil {
		return err
	}
	if n != e.info.Size() {
		return changed(e.name)
	}
	found, err := look.found(p.ctx, e.name, e.agreed)
	if found != "" {
		p.problem(e.name, "%s", found)
	}
	return err
}

// extra writes a file that is not of the directory.
func (p *packer) extra(f File) error {
	h := &zip.FileHeader{Name: f.Name, Method: zip.Deflate}
	mode := fs.FileMode(0o644)
	if f.Executable {
		mode = 0o755
	}
	h.SetMode(mode)
	for _, e := range p.entries {
		if e.name == f.Name || strings.HasPrefix(e.name, f.Name+"/") || strings.HasPrefix(f.Name, e.name+"/") && !e.info.IsDir() {
			return fmt.Errorf("%s: the directory has a file of this name, which agentctl adds: rename it", f.Name)
		}
	}
	var in io.Reader = bytes.NewReader(f.Data)
	if f.Path != "" {
		opened, err := os.Open(f.Path)
		if err != nil {
			return err
		}
		defer opened.Close()
		in = opened
	}
	out, err := p.zip.CreateHeader(h)
	if err != nil {
		return err
	}
	look := &inspector{values: p.o.Values}
	n, err := io.Copy(io.MultiWriter(out, look), io.LimitReader(in, maxTotal+1))
	if err != nil {
		return err
	}
	if found, err := look.found(p.ctx, f.Name, p.ignore.agreed[f.Name]); found != "" || err != nil {
		return errors.Join(fmt.Errorf("%s: %s", f.Name, found), err)
	}
	p.packed.Files++
	if p.packed.Bytes += n; p.packed.Bytes > maxTotal {
		return fmt.Errorf("%s: more than %d MiB are sent with it", f.Name, maxTotal>>20)
	}
	return nil
}
