package tarfs

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"agentsh/internal/wire"
)

// Owner is a numeric user and group.
type Owner struct{ UID, GID int }

// UnpackOptions select the accepted entries and their owner.
type UnpackOptions struct {
	Limits      Limits
	RefuseGit   bool   // refuse every entry in or at a .git
	Owner       *Owner // owner of every created file; nil: the caller. Owners in the stream are never used
	KeepPartial bool   // on an error [Unpack] lists what arrived, and [Receive] keeps it
}

// Unpack writes the stream r into root, which must be an empty directory. It returns
// its manifest once every entry has matched it. On an error the returned manifest is
// empty; with KeepPartial it contains the entries that arrived complete. The caller must then remove the files in
// root or mark them as partial; see [Receive].
func Unpack(ctx context.Context, root *os.Root, r io.Reader, opts UnpackOptions) (wire.Manifest, error) {
	u := &unpacker{
		ctx:   ctx,
		root:  root,
		opts:  opts,
		tally: tally{limits: opts.Limits.withDefaults()},
		dirs:  map[string]dirKind{".": explicitDir},
		cur:   root, curName: ".",
		buffer: make([]byte, copyBuffer),
	}
	defer u.leave()
	if err := requireEmpty(root); err != nil {
		return wire.Manifest{}, fmt.Errorf("unpack: %w", err)
	}
	m, err := u.run(tar.NewReader(r))
	if err == nil {
		return m, nil
	}
	err = fmt.Errorf("unpack: %w", err)
	if !opts.KeepPartial {
		return wire.Manifest{}, err
	}
	return wire.Manifest{Entries: u.arrived.take()}, err
}

// requireEmpty returns an error if a directory is not empty.
func requireEmpty(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(1)
	if len(names) > 0 {
		return fmt.Errorf("the directory already holds %q", names[0])
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// dirKind is why a directory was made.
type dirKind byte

const (
	implicitDir dirKind = iota + 1 // the parent of an entry; it has no entry of its own yet
	explicitDir
)

// unpacker is the state of one [Unpack].
type unpacker struct {
	ctx     context.Context
	root    *os.Root
	opts    UnpackOptions
	tally   tally
	dirs    map[string]dirKind // other names are known by the file system alone
	arrived entryList
	buffer  []byte

	cur     *os.Root // the directory of the last entry
	curName string
}

// entryList holds entries in blocks: a slice that grows is copied, and for a while takes
// more than twice the memory.
type entryList struct {
	blocks [][]wire.ManifestEntry
	n      int // entries
}

// entryBlock is the number of entries of a block.
const entryBlock = 1024

func (l *entryList) add(e wire.ManifestEntry) {
	if l.n%entryBlock == 0 {
		l.blocks = append(l.blocks, make([]wire.ManifestEntry, 0, entryBlock))
	}
	last := &l.blocks[len(l.blocks)-1]
	*last = append(*last, e)
	l.n++
}

// at returns entry i, from 0.
func (l *entryList) at(i int) *wire.ManifestEntry { return &l.blocks[i/entryBlock][i%entryBlock] }

// take returns the entries as one slice. The list is empty then.
func (l *entryList) take() []wire.ManifestEntry {
	all := slices.Concat(l.blocks...)
	*l = entryList{}
	return all
}

// run reads entries up to the manifest and compares them with it. It sets directory
// modes last.
func (u *unpacker) run(tr *tar.Reader) (wire.Manifest, error) {
	for {
		if err := u.ctx.Err(); err != nil {
			return wire.Manifest{}, err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return wire.Manifest{}, fmt.Errorf("stream ends after %d entries without a manifest: %w", u.arrived.n, io.ErrUnexpectedEOF)
		}
		if err != nil {
			return wire.Manifest{}, fmt.Errorf("read entry %d: %w", u.arrived.n+1, err)
		}
		if h.Name == manifestName {
			return u.finish(tr, h)
		}
		if err := u.entry(tr, h); err != nil {
			return wire.Manifest{}, err
		}
	}
}

// finish checks the manifest and that nothing follows it.
func (u *unpacker) finish(tr *tar.Reader, h *tar.Header) (wire.Manifest, error) {
	if limit := u.tally.limits.manifestBytes(); h.Typeflag != tar.TypeReg || h.Size > limit {
		return wire.Manifest{}, fmt.Errorf("manifest of type %q with %d bytes, at most %d: %w", h.Typeflag, h.Size, limit, ErrLimit)
	}
	m, err := readManifest(tr, &u.arrived, &u.tally)
	if err != nil {
		return wire.Manifest{}, fmt.Errorf("manifest: %w", err)
	}
	switch h, err := tr.Next(); {
	case err == nil:
		return wire.Manifest{}, refuse(h.Name, "comes after the manifest")
	case !errors.Is(err, io.EOF):
		return wire.Manifest{}, fmt.Errorf("after the manifest: %w", err)
	}
	u.leave()
	m.Entries = u.arrived.take()
	for i := len(m.Entries) - 1; i >= 0; i-- {
		if e := m.Entries[i]; e.Type == typeDir {
			if err := u.root.Chmod(string(e.Path), fs.FileMode(e.Mode)); err != nil {
				return wire.Manifest{}, err
			}
		}
	}
	return m, nil
}

// entry checks one header and creates the entry that it describes.
func (u *unpacker) entry(tr *tar.Reader, h *tar.Header) error {
	name, target := wire.Name(strings.TrimSuffix(h.Name, "/")), wire.Name(h.Linkname)
	e := wire.ManifestEntry{Path: name, Mode: uint32(h.Mode), Size: h.Size, Target: target}
	switch h.Typeflag {
	case tar.TypeReg:
		e.Type, e.Path, e.Target = typeFile, wire.Name(h.Name), ""
	case tar.TypeDir:
		e.Type, e.Target = typeDir, ""
	case tar.TypeSymlink:
		e.Type, e.Mode = typeSymlink, 0o777
	default:
		return refuse(h.Name, "type %q is neither file, directory nor symbolic link", h.Typeflag)
	}
	if err := u.tally.checkName(string(e.Path)); err != nil {
		return err
	}
	if err := errors.Join(u.tally.entry(string(e.Path), e.Size), u.tally.name(string(e.Target))); err != nil {
		return err
	}
	if u.opts.RefuseGit && hasGitDir(string(e.Path)) {
		return refuse(string(e.Path), "git's own directory")
	}
	if e.Type != typeSymlink && (h.Mode < 0 || fs.FileMode(h.Mode)&^permBits != 0 || h.Mode > 0o7777) {
		return refuse(string(e.Path), "mode %o has bits other than %o", h.Mode, permBits)
	}
	if e.Type != typeFile && e.Size != 0 {
		return refuse(string(e.Path), "a %s with %d bytes of content", e.Type, e.Size)
	}
	if err := u.enter(path.Dir(string(e.Path))); err != nil {
		return err
	}
	var err error
	switch e.Type {
	case typeDir:
		err = u.dir(e)
	case typeSymlink:
		err = u.symlink(e)
	default:
		err = u.file(tr, e)
	}
	if errors.Is(err, fs.ErrExist) { // the directory was empty
		return refuse(string(e.Path), "name appears twice")
	}
	return err
}

// enter makes dir the current directory and creates it and its missing parents.
func (u *unpacker) enter(dir string) error {
	if dir == u.curName {
		return nil
	}
	if err := u.parents(dir); err != nil {
		return err
	}
	u.leave()
	sub, err := u.root.OpenRoot(dir)
	if err != nil {
		return err
	}
	u.cur, u.curName = sub, dir
	return nil
}

// leave makes the root the current directory.
func (u *unpacker) leave() {
	if u.cur != u.root {
		release(u.cur)
	}
	u.cur, u.curName = u.root, "."
}

// parents creates dir and its missing parents.
func (u *unpacker) parents(dir string) error {
	if u.dirs[dir] != 0 {
		return nil
	}
	if err := u.parents(path.Dir(dir)); err != nil {
		return err
	}
	if len(u.dirs) >= 2*u.tally.limits.Files {
		return fmt.Errorf("%q: more than %d directories: %w", dir, u.tally.limits.Files, ErrLimit)
	}
	if err := u.root.Mkdir(dir, 0o755); errors.Is(err, fs.ErrExist) {
		return refuse(dir, "has entries below it but is not a directory")
	} else if err != nil {
		return err
	}
	u.dirs[dir] = implicitDir
	return u.chown(u.root, dir)
}

func (u *unpacker) chown(parent *os.Root, name string) error {
	if u.opts.Owner == nil {
		return nil
	}
	return parent.Lchown(name, u.opts.Owner.UID, u.opts.Owner.GID)
}

func (u *unpacker) dir(e wire.ManifestEntry) error {
	name := path.Base(string(e.Path))
	if u.dirs[string(e.Path)] != implicitDir {
		if err := u.cur.Mkdir(name, 0o700); err != nil {
			return err
		}
		if err := u.chown(u.cur, name); err != nil {
			return err
		}
	}
	u.dirs[string(e.Path)] = explicitDir
	u.arrived.add(e)
	return nil
}

func (u *unpacker) symlink(e wire.ManifestEntry) error {
	if err := u.tally.checkTarget(string(e.Path), string(e.Target)); err != nil {
		return err
	}
	if err := u.cur.Symlink(string(e.Target), path.Base(string(e.Path))); err != nil {
		return err
	}
	u.arrived.add(e)
	return u.chown(u.cur, path.Base(string(e.Path)))
}

func (u *unpacker) file(tr *tar.Reader, e wire.ManifestEntry) error {
	f, err := u.cur.OpenFile(path.Base(string(e.Path)), os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	sum := sha256.New()
	if err := u.fill(f, io.TeeReader(tr, sum), e); err != nil {
		f.Close()
		return fmt.Errorf("%q: %w", e.Path, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("%q: %w", e.Path, err)
	}
	sum.Sum(e.SHA256[:0])
	u.arrived.add(e)
	return nil
}

// fill writes one file's content and sets its owner and mode.
func (u *unpacker) fill(f *os.File, r io.Reader, e wire.ManifestEntry) error {
	n, err := io.CopyBuffer(onlyWriter{f}, r, u.buffer)
	if err != nil {
		return err
	}
	if n != e.Size {
		return fmt.Errorf("%d of %d bytes: %w", n, e.Size, io.ErrUnexpectedEOF)
	}
	if u.opts.Owner != nil {
		if err := f.Chown(u.opts.Owner.UID, u.opts.Owner.GID); err != nil {
			return err
		}
	}
	return f.Chmod(fs.FileMode(e.Mode))
}

// onlyWriter hides every method but Write, so that the caller's buffer is used.
type onlyWriter struct{ io.Writer }
