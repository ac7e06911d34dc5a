package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/statedir"
)

// Limits of one image.
const (
	maxBytes   = 64 << 30
	maxEntries = 4 << 20
)

// Suffixes of the names beside an extracted image. The time of the lock is that of the
// image's last use.
const (
	lockSuffix       = ".lock"
	unfinishedSuffix = ".unfinished"
)

// held are the locks of the images that this process uses. They end with the process,
// and so does its run.
var held struct {
	sync.Mutex
	locks []*os.File
}

// extracted returns the directory of an extracted image. It is complete or
// absent. Other processes wait while one extracts. [Collect] of another process does
// not remove it while this process runs.
func (c Config) extracted(ctx context.Context, digest string, open opener) (string, error) {
	if err := os.MkdirAll(c.Cache, 0o700); err != nil {
		return "", err
	}
	dir := filepath.Join(c.Cache, strings.Replace(digest, ":", "-", 1))
	for {
		used, err := use(dir)
		if used || err != nil {
			return dir, err
		}
		if err := extractLocked(ctx, dir, open); err != nil {
			return "", err
		}
	}
}

// use reports whether an image is extracted, and locks it if it is.
func use(dir string) (bool, error) {
	lock, err := statedir.TakeLock(dir+lockSuffix, unix.LOCK_SH)
	if err != nil {
		return false, err
	}
	_, err = os.Lstat(dir)
	if err == nil {
		now := time.Now()
		err = os.Chtimes(dir+lockSuffix, now, now)
	}
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return false, errors.Join(err, lock.Close())
	}
	held.Lock()
	defer held.Unlock()
	held.locks = append(held.locks, lock)
	return true, nil
}

// extractLocked extracts an image, unless another process does it first.
func extractLocked(ctx context.Context, dir string, open opener) (err error) {
	lock, err := statedir.TakeLock(dir+lockSuffix, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	unfinished := dir + unfinishedSuffix
	if err := statedir.RemoveTree(unfinished); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Mkdir(unfinished, 0o755); err != nil {
		return err
	}
	if err = extract(ctx, unfinished, open); err == nil {
		err = os.Rename(unfinished, dir)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("extract: %w", err), statedir.RemoveTree(unfinished))
	}
	return nil
}

func extract(ctx context.Context, dir string, open opener) error {
	in, err := open()
	if err != nil {
		return err
	}
	defer in.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	t := tree{root: root, owners: os.Geteuid() == 0, left: maxBytes}
	r := tar.NewReader(in)
	for all := (bounds{}); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if err := all.add(h); err != nil {
			return err
		}
		if err := t.add(h, r); err != nil {
			return fmt.Errorf("%q: %w", h.Name, err)
		}
	}
	if err := end(in); err != nil {
		return err
	}
	if t.files == 0 {
		return errors.New("the archive holds no files")
	}
	return t.finish()
}

// tree writes the files of an archive. The [os.Root] follows no link out of it. Layers
// replace files, and have owners, hard links and no manifest: an archive of package
// tarfs has the opposite of each.
type tree struct {
	root   *os.Root
	owners bool          // the owners of the archive are taken
	left   int64         // bytes that files may have
	files  int           // written
	dirs   []*tar.Header // get their modes last, as they may be read-only
}

func (t *tree) add(h *tar.Header, in io.Reader) error {
	name := path.Clean(strings.TrimPrefix(h.Name, "/"))
	if name == "." {
		return nil
	}
	if !filepath.IsLocal(name) {
		return errors.New("the name leads out of the image")
	}
	switch h.Typeflag {
	case tar.TypeDir, tar.TypeReg, tar.TypeGNUSparse, tar.TypeSymlink, tar.TypeLink:
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo, tar.TypeXGlobalHeader:
		return nil // a device, fifo or comment
	default:
		return fmt.Errorf("unknown type %q of an entry: make the archive with tar --format=pax", h.Typeflag)
	}
	if err := t.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return t.addDirectory(name, h)
	}
	if err := t.root.RemoveAll(name); err != nil { // the last of two entries holds
		return err
	}
	t.files++
	switch h.Typeflag {
	case tar.TypeSymlink:
		if err := t.root.Symlink(h.Linkname, name); err != nil || !t.owners {
			return err
		}
		return t.root.Lchown(name, h.Uid, h.Gid)
	case tar.TypeLink:
		return t.root.Link(path.Clean(strings.TrimPrefix(h.Linkname, "/")), name)
	}
	return t.addFile(name, h, in)
}

func (t *tree) addDirectory(name string, h *tar.Header) error {
	info, err := t.root.Lstat(name)
	if err == nil && !info.IsDir() {
		err = t.root.Remove(name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	h.Name = name
	t.dirs = append(t.dirs, h)
	return t.root.MkdirAll(name, 0o755)
}

func (t *tree) addFile(name string, h *tar.Header, in io.Reader) (err error) {
	if t.left -= h.Size; t.left < 0 {
		return fmt.Errorf("the image has more than %d bytes", int64(maxBytes))
	}
	f, err := t.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, in); err != nil {
		return err
	}
	if t.owners {
		if err := f.Chown(h.Uid, h.Gid); err != nil {
			return err
		}
	}
	return f.Chmod(t.mode(h))
}

// mode is the mode of a file or directory. Its owner can always read it, since
// the owner of the cache may not be that of the image.
func (t *tree) mode(h *tar.Header) fs.FileMode {
	mode := h.FileInfo().Mode() & (fs.ModePerm | fs.ModeSticky)
	if t.owners {
		return mode | h.FileInfo().Mode()&(fs.ModeSetuid|fs.ModeSetgid)
	}
	return mode | 0o400
}

// finish sets the owners and modes of directories.
func (t *tree) finish() error {
	for _, h := range t.dirs {
		info, err := t.root.Lstat(h.Name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
			continue // replaced by a later entry
		}
		if err != nil {
			return err
		}
		if t.owners {
			err = t.root.Lchown(h.Name, h.Uid, h.Gid)
		}
		if err := errors.Join(err, t.root.Chmod(h.Name, t.mode(h)|0o700)); err != nil {
			return err
		}
	}
	return nil
}
