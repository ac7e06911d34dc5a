package git

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Copy makes another clone of the same files at dest. Git never changes an object that it has
// written, so both have the same files for them, where the file system can do that.
func (c Clone) Copy(dest string) (Clone, error) {
	from := filepath.Join(c.Dir, ".git")
	objects := filepath.Join(from, "objects") + "/"
	err := os.Mkdir(dest, 0o755)
	if err == nil {
		err = filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			to := filepath.Join(dest, strings.TrimPrefix(name, c.Dir))
			switch {
			case d.IsDir():
				return os.Mkdir(to, 0o755)
			case strings.HasPrefix(name, objects) && os.Link(name, to) == nil:
				return nil
			}
			return copyFile(name, to)
		})
	}
	if err != nil {
		return Clone{}, fmt.Errorf("copy clone: %w", err)
	}
	return Clone{Dir: dest, Source: c.Source}, nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
