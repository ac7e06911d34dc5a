package trash

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"agentsh/internal/beneath"
)

// Export copies the listed entries of a trash to a directory that it makes: the
// manifest and the files. The copies belong to the caller's user, because the
// user of an ended sandbox may be gone.
func Export(from, to string, list []Entry) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	manifest, err := os.OpenFile(filepath.Join(to, manifestName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	lines := json.NewEncoder(manifest)
	for i := 0; i < len(list) && err == nil; i++ {
		e := &list[i]
		if e.Type == beneath.TypeFile {
			err = copyFile(filepath.Join(from, e.ID), filepath.Join(to, e.ID))
		}
		e.Linked, e.UID, e.GID = false, uint32(os.Geteuid()), uint32(os.Getegid())
		if err == nil {
			err = lines.Encode(e)
		}
	}
	return errors.Join(err, manifest.Close())
}

// copyFile copies the content of one entry.
func copyFile(from, to string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	return beneath.CopyContent(dst, src)
}
