package tarfs

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sort"
	"syscall"

	"agentsh/internal/wire"
)

// PackOptions select the files to pack.
type PackOptions struct {
	Paths   []string // slash paths beneath the root, each with all below it
	Names   []string // slash paths beneath the root, each alone; no Paths and no Names: everything
	Gone    bool     // a path that does not exist is left out and named, instead of an error
	SkipGit bool     // leave out every .git
	Deleted []string // recorded in the manifest
	Limits  Limits
}

// Pack writes the tree beneath root as one stream to w and returns its manifest. It
// omits files that an archive cannot contain (devices, sockets, links that leave the
// tree) and lists them in Skipped. A path of opts.Paths that does not exist is an
// error. Pack never follows a symbolic link and never waits on a fifo.
func Pack(ctx context.Context, root *os.Root, opts PackOptions, w io.Writer) (wire.Manifest, error) {
	p := &packer{
		Writer: NewWriter(w, opts.Limits),
		ctx:    ctx,
		opts:   opts,
	}
	p.manifest.Deleted = opts.Deleted
	if len(opts.Paths)+len(opts.Names) == 0 {
		if err := p.dir(root, "."); err != nil {
			return wire.Manifest{}, fmt.Errorf("pack: %w", err)
		}
	}
	for _, name := range opts.Paths {
		if err := p.path(root, name, true); err != nil {
			return wire.Manifest{}, fmt.Errorf("pack: %w", err)
		}
	}
	for _, name := range opts.Names {
		if err := p.path(root, name, false); err != nil {
			return wire.Manifest{}, fmt.Errorf("pack: %w", err)
		}
	}
	m, err := p.Close()
	if err != nil {
		return wire.Manifest{}, fmt.Errorf("pack manifest: %w", err)
	}
	return m, nil
}

// packer is the state of one [Pack].
type packer struct {
	*Writer
	ctx     context.Context
	opts    PackOptions
	shallow bool // directories are packed without the entries below them
}

// path packs one path of the options. If deep is true, it also packs the entries below
// it.
func (p *packer) path(root *os.Root, name string, deep bool) error {
	if name == "." {
		return p.dir(root, ".")
	}
	if err := p.tally.checkName(name); err != nil {
		return p.leaveOut(name, err)
	}
	if p.opts.SkipGit && hasGitDir(name) {
		return nil
	}
	parent, err := openParent(root, path.Dir(name))
	if err == nil {
		defer release(parent)
		var info fs.FileInfo
		if info, err = parent.Lstat(path.Base(name)); err == nil {
			p.shallow = !deep
			return p.entry(parent, name, info)
		}
	}
	if p.opts.Gone && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrRefused)) {
		return p.leaveOut(name, fmt.Errorf("%w: %w", err, ErrRefused))
	}
	return err
}

// openParent opens the directory dir beneath root. It refuses a path through a
// symbolic link, because the archive would show a directory there.
func openParent(root *os.Root, dir string) (*os.Root, error) {
	for d := dir; d != "."; d = path.Dir(d) {
		info, err := root.Lstat(d)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			return nil, refuse(d, "not a directory")
		}
	}
	return root.OpenRoot(dir)
}

// dir packs the entries of the directory that root is open at.
func (p *packer) dir(root *os.Root, name string) error {
	f, err := root.Open(".")
	if err != nil {
		return err
	}
	entries, err := f.ReadDir(-1)
	f.Close()
	if err != nil {
		return err
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].Name() < entries[j].Name() })
	for _, e := range entries {
		info, err := root.Lstat(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process removed it meanwhile
		}
		if err != nil {
			return err
		}
		if err := p.entry(root, path.Join(name, e.Name()), info); err != nil {
			return err
		}
	}
	return nil
}

// entry packs one name of the directory that parent is open at.
func (p *packer) entry(parent *os.Root, name string, info fs.FileInfo) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	base := path.Base(name)
	if p.opts.SkipGit && IsGitDir(base) {
		return nil
	}
	if err := p.tally.checkName(name); err != nil {
		return p.leaveOut(name, err)
	}
	if name == manifestName {
		return p.leaveOut(name, refuse(name, "name is reserved"))
	}
	switch info.Mode().Type() {
	case 0:
		return p.file(parent, name)
	case fs.ModeDir:
		return p.subdir(parent, name, info)
	case fs.ModeSymlink:
		target, err := parent.Readlink(base)
		if err != nil {
			return err
		}
		if err := p.tally.checkTarget(name, target); err != nil {
			return p.leaveOut(name, err)
		}
		return p.header(wire.ManifestEntry{Path: wire.Name(name), Type: typeSymlink, Mode: 0o777, Target: wire.Name(target)})
	default:
		return p.leaveOut(name, refuse(name, "neither file, directory nor link"))
	}
}

func (p *packer) subdir(parent *os.Root, name string, info fs.FileInfo) error {
	sub, err := openDirNoFollow(parent, path.Base(name))
	if err != nil {
		return err
	}
	defer release(sub)
	if err := p.header(wire.ManifestEntry{Path: wire.Name(name), Type: typeDir, Mode: uint32(info.Mode().Perm() & permBits)}); err != nil {
		return err
	}
	if p.shallow {
		return nil
	}
	return p.dir(sub, name)
}

// openDirNoFollow opens the directory base as a root. It checks that base is still the
// same directory and not a symbolic link that replaced it.
func openDirNoFollow(parent *os.Root, base string) (*os.Root, error) {
	sub, err := parent.OpenRoot(base)
	if err != nil {
		return nil, err
	}
	opened, err := sub.Stat(".")
	if err != nil {
		release(sub)
		return nil, err
	}
	named, err := parent.Lstat(base)
	if err != nil || !os.SameFile(opened, named) {
		release(sub)
		return nil, errors.Join(refuse(base, "replaced while it was packed"), err)
	}
	return sub, nil
}

// file packs one regular file. It writes as many bytes as the file had when it was
// opened.
func (p *packer) file(parent *os.Root, name string) error {
	f, err := parent.OpenFile(path.Base(name), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another process removed it meanwhile
	}
	if errors.Is(err, syscall.ELOOP) {
		return p.leaveOut(name, refuse(name, "replaced while it was packed"))
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return p.leaveOut(name, refuse(name, "replaced while it was packed"))
	}
	e := wire.ManifestEntry{Path: wire.Name(name), Type: typeFile, Mode: uint32(info.Mode().Perm() & permBits), Size: info.Size()}
	if e.Size <= int64(len(p.buffer)) {
		return p.small(f, e)
	}
	if err := p.header(e); err != nil {
		return err
	}
	_, err = p.fill(f)
	return err
}

// small packs a file that fits the buffer, with the size that was really read.
func (p *packer) small(f *os.File, e wire.ManifestEntry) error {
	n, err := io.ReadFull(f, p.buffer[:e.Size])
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%q: %w", e.Path, err)
	}
	e.Size, e.SHA256 = int64(n), sha256.Sum256(p.buffer[:n])
	if err := p.header(e); err != nil {
		return err
	}
	_, err = p.tw.Write(p.buffer[:n])
	return err
}

func writeManifest(tw *tar.Writer, m wire.Manifest) error {
	var size counter
	if err := encodeManifest(&size, m); err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: manifestName, Mode: 0o600, Size: int64(size), Format: tar.FormatPAX}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	return encodeManifest(tw, m)
}

// counter counts what is written.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// encodeManifest writes what json.Marshal returns, entry by entry: the whole text of
// many entries is larger than they are.
func encodeManifest(to io.Writer, m wire.Manifest) error {
	rest := m
	rest.Entries = []wire.ManifestEntry{}
	shell, err := json.Marshal(rest)
	if err != nil {
		return err
	}
	const open = `{"entries":[`
	after, found := bytes.CutPrefix(shell, []byte(open))
	if !found {
		return fmt.Errorf("manifest: it begins with %.20q", shell)
	}
	w := bufio.NewWriterSize(to, 64<<10)
	_, _ = w.WriteString(open) // Flush returns the first error
	for i := range m.Entries {
		data, err := json.Marshal(&m.Entries[i])
		if err != nil {
			return err
		}
		if i > 0 {
			_ = w.WriteByte(',')
		}
		_, _ = w.Write(data)
	}
	_, _ = w.Write(after)
	return w.Flush()
}

// onlyReader hides every method but Read, so that the caller's buffer is used.
type onlyReader struct{ io.Reader }
