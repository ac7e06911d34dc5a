package controller

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// defaultRules is the AGENTS.md of the organisation, below the root of the
// harness: beside it, or beside the directory harness. A repository without one
// gets it in the sandbox.
const defaultRules = "defaults/AGENTS.md"

// maxRules bounds it, in bytes.
const maxRules = 1 << 20

// readRules reads the organisation's AGENTS.md, when it has one.
func (r *run) readRules() error {
	root, err := os.OpenRoot(r.harness.Root)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	info, err := root.Stat(filepath.FromSlash(defaultRules))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", defaultRules)
	}
	if err != nil {
		return badConfig("", "rules of the organisation: %w", err)
	}
	f, err := root.Open(filepath.FromSlash(defaultRules))
	if err != nil {
		return badConfig("", "rules of the organisation: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxRules+1))
	if err == nil && len(data) > maxRules {
		err = fmt.Errorf("%s has more than %d bytes", defaultRules, maxRules)
	}
	if err != nil {
		return badConfig("", "rules of the organisation: %w", err)
	}
	r.rules = append([]byte{}, data...)
	return nil
}
