package boxes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"

	"agentsh/controller/sandbox"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// notSaved are files of a sandbox that each new one has of its own: variables and settings.
var notSaved = []string{layout.EnvFile, layout.EnvDir, layout.RuntimeDir, path.Dir(layout.OutputSchema)}

// Save writes the files of a sandbox into a new file of this machine: its home and its workspace, without
// what agentctl delivers there. The file appears whole or not at all. It returns the size in bytes.
func Save(ctx context.Context, box sandbox.Executor, state statedir.Dir, file string) (size int64, err error) {
	if err := statedir.CheckReplaced(file); err != nil {
		return 0, err
	}
	list, err := box.List(ctx, layout.Workspace)
	if err != nil {
		return 0, err
	}
	paths := wire.Names{path.Base(layout.Home)}
	for _, f := range list {
		if name := path.Join(layout.Workspace, string(f.Name)); !slices.Contains(notSaved, name) {
			paths = append(paths, path.Join(path.Base(layout.Workspace), string(f.Name)))
		}
	}
	temporary, err := temporary(state, filepath.Join(filepath.Dir(file), ".agentctl-save-"))
	if err != nil {
		return 0, err
	}
	defer func() { _ = temporary.Remove() }() // it has another name after a success
	temp, err := os.OpenFile(temporary.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	err = box.CopyOut(ctx, wire.CopyOut{Dir: layout.Sandbox, Paths: paths, Gone: true}, temp)
	info, statErr := temp.Stat()
	if err = errors.Join(err, statErr, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), file)
	}
	if err != nil {
		return 0, fmt.Errorf("save the files of the sandbox: %w", err)
	}
	return info.Size(), nil
}

// Load puts the files of a saved sandbox into another one, over those that it has.
func Load(ctx context.Context, box sandbox.Executor, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := box.CopyIn(ctx, layout.Sandbox, f, func(wire.ManifestEntry) error { return nil }); err != nil {
		return fmt.Errorf("load %s: %w", file, err)
	}
	return nil
}
