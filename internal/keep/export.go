package keep

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ExportTrash copies the trash of the sessions of an ended sandbox to a
// directory that it makes, and returns how many files that are; none: no
// directory is made. [ReadExported] reads it.
func (s *Store) ExportTrash(to string) (files int, err error) {
	all, err := s.Sessions()
	if err != nil {
		return 0, err
	}
	for _, one := range all {
		list, err := one.Trashed()
		if err != nil {
			return files, err
		}
		if len(list) == 0 {
			continue
		}
		if files > 0 {
			return files, errors.New("export trash: more than one session has one")
		}
		if err := one.export(to, list); err != nil {
			return 0, fmt.Errorf("export trash: %w", err)
		}
		files = len(list)
	}
	return files, nil
}

// export copies a trash as its session has it: the record, the manifest of what
// is there, and the files.
func (s *Session) export(to string, list []Trashed) error {
	at := filepath.Join(to, trashName)
	if err := os.MkdirAll(at, 0o700); err != nil {
		return err
	}
	copied := &Session{Record: s.Record, dir: to}
	if err := copied.writeJSON(recordName, s.Record); err != nil {
		return err
	}
	manifest, err := os.OpenFile(filepath.Join(at, manifestName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	lines := json.NewEncoder(manifest)
	for i := 0; i < len(list) && err == nil; i++ {
		e := &list[i]
		if e.Type == typeFile {
			err = copyKept(filepath.Join(s.dir, trashName, e.ID), filepath.Join(at, e.ID))
		}
		e.Linked, e.UID, e.GID = false, uint32(os.Geteuid()), uint32(os.Getegid()) // the user of the sandbox is gone with it
		if err == nil {
			err = lines.Encode(e)
		}
	}
	return errors.Join(err, manifest.Close())
}

// copyKept copies one file of a trash.
func copyKept(from, to string) (err error) {
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
	return copyContent(dst, src)
}

// ReadExported reads an exported trash. With a workspace its files are restored
// there: it stands for the first directory that was under file policy.
func ReadExported(dir, workspace string) (*Session, error) {
	data, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return nil, fmt.Errorf("trash: %w", err)
	}
	s := &Session{dir: dir}
	if err := json.Unmarshal(data, &s.Record); err != nil {
		return nil, fmt.Errorf("trash %s: %w", dir, err)
	}
	if workspace == "" {
		s.Workspace = nil
	} else if len(s.Workspace) > 0 {
		s.Workspace = s.Workspace[:1]
		s.Workspace[0].Backing = workspace
	}
	return s, nil
}
