package snapshot

import (
	"agentsh/internal/trash"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ExportTrash copies the trash of an ended sandbox to a directory that it
// creates, and returns the number of files. Without files it creates no
// directory. [ReadExported] reads the copy.
func (s *Store) ExportTrash(to string) (files int, err error) {
	all, err := s.Sessions()
	if err != nil {
		return 0, err
	}
	for _, one := range all {
		list, err := one.Trash()
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

// export copies a session's record and its trash.
func (s *Session) export(to string, list []trash.Entry) error {
	copied := &Session{Record: s.Record, dir: to}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	if err := copied.writeJSON(recordName, s.Record); err != nil {
		return err
	}
	return trash.Export(filepath.Join(s.dir, trashName), filepath.Join(to, trashName), list)
}

// ReadExported reads an exported trash. If workspace is not empty, files are
// restored there: it replaces the first governed directory.
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
