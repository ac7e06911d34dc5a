package statedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// WriteJSON replaces a file atomically: a reader sees the old or the new
// content, also after a crash.
func WriteJSON(name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeAtomic(name, append(data, '\n'))
}

// CheckReplaced returns an error for a file that a new one must not replace by its name: a
// device as /dev/null, a link as /dev/stdout, a directory.
func CheckReplaced(name string) error {
	info, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file: name another one, which is made", name)
	}
	return err
}

// RemoveUnfinished removes temporary files that killed writers of a file left.
// No process may be writing the file.
func RemoveUnfinished(name string) error {
	entries, err := os.ReadDir(filepath.Dir(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		number, ours := strings.CutPrefix(e.Name(), unfinished(name))
		if ours && number != "" && strings.Trim(number, "0123456789") == "" && e.Type().IsRegular() {
			err = errors.Join(err, os.Remove(filepath.Join(filepath.Dir(name), e.Name())))
		}
	}
	return err
}

// unfinished returns the prefix of temporary names for a file; digits follow.
func unfinished(name string) string { return "." + filepath.Base(name) + "." }

func writeAtomic(name string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), unfinished(name))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if _, err = f.Write(data); err != nil {
		return err
	}
	if err = f.Chmod(0o644); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// TakeLock opens a lock file and locks it in the way of how. See flock(2).
func TakeLock(name string, how int) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return f, nil
}

// RemoveTree removes a tree, including directories without permissions for
// their owner.
func RemoveTree(root string) error {
	err := os.RemoveAll(root)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	walkErr := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && err == nil {
			return os.Chmod(name, 0o700) // before WalkDir reads it
		}
		return err
	})
	return errors.Join(os.RemoveAll(root), walkErr)
}

// CheckRoom returns an error with unix.ENOSPC if a filesystem has less than
// need bytes free.
func CheckRoom(dir string, need int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("free space of %s: %w", dir, err)
	}
	free := int64(st.Bavail) * st.Bsize
	if free < need {
		return fmt.Errorf("%s has %d MiB free, %d MiB are needed: %w", dir, free>>20, need>>20, unix.ENOSPC)
	}
	return nil
}
