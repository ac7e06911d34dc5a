package channel

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sort"
	"strings"
	"syscall"

	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
)

// Mount shows the directory that Root is open at as Path inside the sandbox.
type Mount struct {
	Path  string // absolute and clean
	Root  *os.Root
	Owner *tarfs.Owner // owner of everything created in it; nil: the process
}

// RootsConfig is the configuration of [Roots].
type RootsConfig struct {
	Mounts []Mount      // the longest matching path serves a request; the caller closes the roots
	Limits tarfs.Limits // of archives; Files also bounds a list, FileBytes a written file
	// Refuse returns why nothing may be created, replaced or removed at a path. If
	// Refuse is nil, all paths are allowed.
	Refuse func(path string) error
	// Changed is called with the sandbox paths that were created, replaced or removed,
	// before the operation is answered. It may be nil.
	Changed func(paths []string)
}

// Roots are [Files] of some directories. No path resolves beyond its root: a symbolic
// link may refer only to paths beneath the same root.
type Roots struct{ cfg RootsConfig }

var _ Files = (*Roots)(nil)

// NewRoots checks the mounts.
func NewRoots(cfg RootsConfig) (*Roots, error) {
	if cfg.Limits.Files == 0 {
		cfg.Limits.Files = 300_000
	}
	if cfg.Limits.FileBytes == 0 {
		cfg.Limits.FileBytes = 16 << 30
	}
	for _, m := range cfg.Mounts {
		if !path.IsAbs(m.Path) || path.Clean(m.Path) != m.Path || m.Root == nil {
			return nil, fmt.Errorf("served directory %q is not a clean absolute path with a root", m.Path)
		}
	}
	cfg.Mounts = append([]Mount(nil), cfg.Mounts...)
	sort.SliceStable(cfg.Mounts, func(i, j int) bool { return len(cfg.Mounts[i].Path) > len(cfg.Mounts[j].Path) })
	return &Roots{cfg}, nil
}

// find returns the root that serves name, and name relative to it.
func (r *Roots) find(name string) (*os.Root, string, error) {
	if !path.IsAbs(name) || path.Clean(name) != name || strings.IndexByte(name, 0) >= 0 {
		return nil, "", &wire.Error{Code: wire.CodeOutside, Message: fmt.Sprintf("%.200q is not a clean absolute path", name)}
	}
	for _, m := range r.cfg.Mounts {
		if name == m.Path {
			return m.Root, ".", nil
		}
		if rel, ok := strings.CutPrefix(name, strings.TrimSuffix(m.Path, "/")+"/"); ok {
			return m.Root, rel, nil
		}
	}
	return nil, "", &wire.Error{Code: wire.CodeOutside, Message: fmt.Sprintf("%.200q is not beneath a served directory", name)}
}

// owner returns the owner of files that are created at name.
func (r *Roots) owner(name string) *tarfs.Owner {
	for _, m := range r.cfg.Mounts {
		if name == m.Path || strings.HasPrefix(name, strings.TrimSuffix(m.Path, "/")+"/") {
			return m.Owner
		}
	}
	return nil
}

// findChanged is like find, for a name at which something changes.
func (r *Roots) findChanged(name string) (*os.Root, string, error) {
	root, rel, err := r.find(name)
	if err == nil && r.cfg.Refuse != nil {
		err = r.cfg.Refuse(name)
	}
	return root, rel, err
}

// findBelow is like findChanged, for a name that must not be a served directory
// itself.
func (r *Roots) findBelow(name string) (*os.Root, string, error) {
	root, rel, err := r.findChanged(name)
	if err == nil && rel == "." {
		err = &wire.Error{Code: wire.CodeRefused, Message: fmt.Sprintf("%q is a served directory itself", name)}
	}
	return root, rel, err
}

func (r *Roots) changed(paths ...string) {
	if r.cfg.Changed != nil {
		r.cfg.Changed(paths)
	}
}

// Stat describes a file. It does not follow a symbolic link at the end of the path.
func (r *Roots) Stat(_ context.Context, name string) (wire.FileInfo, error) {
	root, rel, err := r.find(name)
	if err != nil {
		return wire.FileInfo{}, err
	}
	info, err := root.Lstat(rel)
	if err != nil {
		return wire.FileInfo{}, err
	}
	return describe(root, rel, info), nil
}

// describe converts info into the form of the channel. A link that was replaced
// meanwhile has no target.
func describe(parent *os.Root, name string, info fs.FileInfo) wire.FileInfo {
	f := wire.FileInfo{
		Name: wire.Name(info.Name()), Size: info.Size(), Mode: uint32(info.Mode().Perm()), ModTime: info.ModTime(), Type: "other",
	}
	switch info.Mode().Type() {
	case 0:
		f.Type = "file"
	case fs.ModeDir:
		f.Type = "dir"
	case fs.ModeSymlink:
		f.Type = "symlink"
		target, _ := parent.Readlink(name)
		f.Target = wire.Name(target)
	}
	return f
}

// List describes the entries of a directory, sorted by name.
func (r *Roots) List(_ context.Context, name string) ([]wire.FileInfo, error) {
	root, rel, err := r.find(name)
	if err != nil {
		return nil, err
	}
	dir, err := root.OpenRoot(rel)
	if err != nil {
		return nil, err
	}
	defer closeRoot(dir)
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(r.cfg.Limits.Files + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(entries) > r.cfg.Limits.Files {
		return nil, &wire.Error{Code: wire.CodeLimit, Message: fmt.Sprintf("%q holds more than %d names", name, r.cfg.Limits.Files)}
	}
	list := make([]wire.FileInfo, 0, len(entries))
	for _, e := range entries {
		info, err := dir.Lstat(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, describe(dir, e.Name(), info))
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list, nil
}

// openRegular opens a regular file for reading. It never blocks: if a fifo replaced
// the file, the open succeeds at once and the fifo is then refused.
func openRegular(root *os.Root, rel string) (*os.File, fs.FileInfo, error) {
	f, err := root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &wire.Error{Code: wire.CodeRefused, Message: fmt.Sprintf("%q is not a regular file", rel)}
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// Read writes a range of a regular file to w.
func (r *Roots) Read(_ context.Context, rng wire.ReadRange, w io.Writer) (wire.FileInfo, error) {
	root, rel, err := r.find(string(rng.Path))
	if err != nil {
		return wire.FileInfo{}, err
	}
	if rng.Offset < 0 || rng.Length < 0 {
		return wire.FileInfo{}, &wire.Error{Code: wire.CodeRefused, Message: fmt.Sprintf("range %d+%d is negative", rng.Offset, rng.Length)}
	}
	f, info, err := openRegular(root, rel)
	if err != nil {
		return wire.FileInfo{}, err
	}
	defer f.Close()
	length := max(info.Size()-rng.Offset, 0)
	if rng.Length > 0 {
		length = min(length, rng.Length)
	}
	section := io.NewSectionReader(f, rng.Offset, length)
	if _, err := copyStream(w, section); err != nil {
		return wire.FileInfo{}, err
	}
	return describe(root, rel, info), nil
}

// WriteFile replaces a file. It writes and syncs a temporary file in the same
// directory and renames it. It replaces a symbolic link instead of following it. It
// checks IfMatch right before the rename.
func (r *Roots) WriteFile(_ context.Context, f wire.WriteFile, content io.Reader) (wire.FileInfo, error) {
	root, rel, err := r.findBelow(string(f.Path))
	if err != nil {
		return wire.FileInfo{}, err
	}
	if f.Mode&^0o777 != 0 {
		return wire.FileInfo{}, &wire.Error{Code: wire.CodeRefused, Message: fmt.Sprintf("mode %o has more than permission bits", f.Mode)}
	}
	parent, err := root.OpenRoot(path.Dir(rel))
	if err != nil {
		return wire.FileInfo{}, err
	}
	defer closeRoot(parent)
	temp := ".agentsh-write-" + rand.Text()
	digest, err := r.writeTemp(parent, temp, f, content)
	if err == nil {
		err = publish(parent, temp, path.Base(rel), f)
	}
	if err != nil {
		if gone := parent.Remove(temp); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
		return wire.FileInfo{}, err
	}
	r.changed(string(f.Path))
	info, err := parent.Lstat(path.Base(rel))
	if err != nil {
		return wire.FileInfo{}, err
	}
	d := describe(parent, path.Base(rel), info)
	d.SHA256 = digest
	return d, nil
}

// writeTemp writes and syncs the new content and returns its SHA-256.
func (r *Roots) writeTemp(parent *os.Root, temp string, f wire.WriteFile, content io.Reader) (string, error) {
	file, err := parent.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	limited := io.LimitReader(content, r.cfg.Limits.FileBytes+1)
	n, err := copyStream(io.MultiWriter(file, sum), limited)
	if err != nil {
		return "", err
	}
	if n > r.cfg.Limits.FileBytes {
		return "", &wire.Error{Code: wire.CodeLimit, Message: fmt.Sprintf("%q has more than %d bytes", f.Path, r.cfg.Limits.FileBytes)}
	}
	if o := r.owner(string(f.Path)); o != nil {
		if err := file.Chown(o.UID, o.GID); err != nil {
			return "", err
		}
	}
	if err := errors.Join(file.Chmod(fs.FileMode(f.Mode)), file.Sync()); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// publish gives the temporary file its name and syncs the directory.
func publish(parent *os.Root, temp, name string, f wire.WriteFile) error {
	if f.IfMatch != "" {
		have, err := digestOf(parent, name)
		if err != nil {
			return err
		}
		if have != f.IfMatch {
			return &wire.Error{Code: wire.CodeMismatch, Message: fmt.Sprintf("%q has SHA-256 %s, not the expected %.64s", f.Path, have, f.IfMatch)}
		}
	}
	if f.IfAbsent { // link(2) never replaces
		if err := errors.Join(parent.Link(temp, name), parent.Remove(temp)); err != nil {
			return err
		}
	} else if err := parent.Rename(temp, name); err != nil {
		return err
	}
	dir, err := parent.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

func digestOf(parent *os.Root, name string) (string, error) {
	f, _, err := openRegular(parent, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Mkdir makes a directory and its missing parents.
func (r *Roots) Mkdir(_ context.Context, name string, mode fs.FileMode) error {
	root, rel, err := r.findChanged(name)
	if err != nil {
		return err
	}
	if mode&^0o777 != 0 {
		return &wire.Error{Code: wire.CodeRefused, Message: fmt.Sprintf("mode %o has more than permission bits", mode)}
	}
	made, err := r.mkdirs(root, rel, mode, r.owner(name))
	if made > 0 {
		parts := strings.Split(name, "/")
		for i := range made {
			r.changed(strings.Join(parts[:len(parts)-i], "/"))
		}
	}
	return err
}

// mkdirs makes rel and its parents. It returns how many were missing.
func (r *Roots) mkdirs(root *os.Root, rel string, mode fs.FileMode, o *tarfs.Owner) (int, error) {
	info, err := root.Stat(rel)
	if err == nil && !info.IsDir() {
		return 0, &wire.Error{Code: wire.CodeExists, Message: fmt.Sprintf("%q is not a directory", rel)}
	}
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	made, err := r.mkdirs(root, path.Dir(rel), 0o755, o)
	if err != nil {
		return made, err
	}
	if err := root.Mkdir(rel, 0o700); err != nil {
		return made, err
	}
	made++
	return made, ownDir(root, rel, mode, o)
}

// ownDir sets the owner and mode of a directory that was just created. It uses a
// descriptor, because commands may replace the directory by another one or by a link.
func ownDir(root *os.Root, rel string, mode fs.FileMode, o *tarfs.Owner) error {
	dir, err := root.OpenFile(rel, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	info, err := dir.Stat()
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
		return &wire.Error{Code: wire.CodeRefused, Message: fmt.Sprintf("%q was replaced while it was made", rel)}
	}
	if o != nil {
		if err := dir.Chown(o.UID, o.GID); err != nil {
			return err
		}
	}
	return dir.Chmod(mode)
}

// Remove removes a name. A served directory itself stays.
func (r *Roots) Remove(_ context.Context, name string, recursive bool) error {
	root, rel, err := r.findBelow(name)
	if err != nil {
		return err
	}
	if _, err := root.Lstat(rel); err != nil {
		return err
	}
	remove := root.Remove
	if recursive {
		remove = root.RemoveAll
	}
	if err := remove(rel); err != nil {
		return err
	}
	r.changed(name)
	return nil
}

// CopyIn unpacks an archive below dest, and creates dest if necessary.
func (r *Roots) CopyIn(ctx context.Context, dest string, archive io.Reader) (wire.Manifest, error) {
	root, rel, err := r.findChanged(dest)
	if err != nil {
		return wire.Manifest{}, err
	}
	if _, err := r.mkdirs(root, rel, 0o755, r.owner(dest)); err != nil {
		return wire.Manifest{}, err
	}
	dir, err := root.OpenRoot(rel)
	if err != nil {
		return wire.Manifest{}, err
	}
	defer closeRoot(dir)
	m, err := tarfs.Install(ctx, dir, archive, tarfs.UnpackOptions{Limits: r.cfg.Limits, Owner: r.owner(dest)})
	if err != nil {
		return wire.Manifest{}, err
	}
	paths := make([]string, 0, len(m.Entries)+1)
	paths = append(paths, dest)
	for _, e := range m.Entries {
		paths = append(paths, path.Join(dest, string(e.Path)))
	}
	r.changed(paths...)
	return m, nil
}

// CopyOut packs a directory, or some paths of it.
func (r *Roots) CopyOut(ctx context.Context, req wire.CopyOut, w io.Writer) (wire.Manifest, error) {
	root, rel, err := r.find(string(req.Dir))
	if err != nil {
		return wire.Manifest{}, err
	}
	dir, err := root.OpenRoot(rel)
	if err != nil {
		return wire.Manifest{}, err
	}
	defer closeRoot(dir)
	return tarfs.Pack(ctx, dir, tarfs.PackOptions{
		Paths: req.Paths, Names: req.Names, Gone: req.Gone, SkipGit: req.SkipGit, Deleted: req.Deleted, Limits: r.cfg.Limits}, w)
}

// closeRoot closes a directory. Errors are ignored: the directory was only used to
// resolve names.
func closeRoot(root *os.Root) { _ = root.Close() }
