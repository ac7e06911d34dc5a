package place

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
	"agentsh/supervisor"
	"agentsh/supervisor/probe"
)

// Where sessions have no mounts, the governed directory is the directory of that name on this
// machine. One sandbox at a time can have it.

// realName is the file that says what there was in it before.
const realName = "directory.json"

// realDirectory is the directory of a machine that a sandbox uses.
type realDirectory struct {
	Path   string   `json:"path"`
	Before []string `json:"before"` // names in it that are not the sandbox's
}

// withoutMounts reports whether the session of a bootstrap will have no mounts.
func withoutMounts(operator supervisor.OperatorConfig, boot wire.Bootstrap) (bool, error) {
	allowed := slices.Clone(operator.Degraded)
	for _, s := range boot.Degraded {
		allowed = append(allowed, probe.Setting(s))
	}
	if !probe.Allowed(probe.Namespaces, allowed) {
		return false, nil
	}
	missing, err := probe.Survey(allowed, probe.Session{Governed: true})
	return missing.Has(probe.Namespaces), err
}

// useReal has a sandbox use the directory of this machine. It makes the directories that
// Landlock has rights for, which it asks for when the session opens. The lock lasts as long as
// this process.
func (b *sandbox) useReal(boot *wire.Bootstrap) error {
	root := boot.Governed[0].Path
	const hint = ": sessions have no mounts here, so the sandbox is that directory itself; make it, writable for the user of agentsh"
	if err := os.Mkdir(root, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make %s: %w%s", root, err, hint)
	}
	if err := unix.Access(root, unix.W_OK); err != nil {
		return fmt.Errorf("use %s: %w%s", root, err, hint)
	}
	dir, err := lockDirectory(root)
	if err != nil {
		return fmt.Errorf("use %s: %w: there is one sandbox at a time where sessions have no mounts", root, err)
	}
	b.locked = dir
	made := b.made(*boot)
	before, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	before = slices.DeleteFunc(before, func(name string) bool {
		return slices.Contains(made, path.Join(root, name)) && os.Remove(path.Join(root, name)) == nil // it was empty
	})
	if err := statedir.WriteJSON(filepath.Join(b.dir, realName), realDirectory{Path: root, Before: before}); err != nil {
		return err
	}
	for _, name := range made {
		if path.Dir(name) == root && slices.Contains(before, path.Base(name)) {
			return fmt.Errorf("use %s: it is not empty: remove what is in it from the image; if a run was killed, run 'agentctl gc --all'", name)
		}
		if err := os.MkdirAll(name, 0o755); err != nil {
			return err
		}
	}
	boot.Governed[0].Backing = root
	return nil
}

// made are the directories of a sandbox that are made before its session opens, those above
// first.
func (b *sandbox) made(boot wire.Bootstrap) []string {
	root := boot.Governed[0].Path
	out := []string{layout.Workspace, layout.ConfigDir, layout.Output, layout.AgentInput, layout.Feedback, layout.RuntimeDir,
		boot.Home, boot.EnvDir}
	for _, name := range []string{"WORKSPACE", "PROJECT_ROOT", "GIT_ROOT", "HOME"} {
		out = append(out, path.Clean(boot.Vars[name]))
	}
	out = slices.DeleteFunc(out, func(name string) bool { return !strings.HasPrefix(name, root+"/") })
	slices.Sort(out)
	return slices.Compact(out)
}

// errInUse tells that another sandbox has the directory now.
var errInUse = errors.New("another sandbox has it")

// lockDirectory opens a directory and locks it as long as this process has it open. The error
// has errInUse in its chain if another process locked it.
func lockDirectory(name string) (*os.File, error) {
	dir, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		err = errInUse
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// leaveReal removes what the sandbox has in the directory of this machine. The lock of a sandbox
// that was killed is taken again, because the next one may have the directory.
func (b *sandbox) leaveReal() error {
	data, err := os.ReadFile(filepath.Join(b.dir, realName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var d realDirectory
	if err == nil {
		err = json.Unmarshal(data, &d)
	}
	if err != nil {
		return fmt.Errorf("directory of the sandbox: %w", err)
	}
	if b.locked == nil {
		if b.locked, err = lockDirectory(d.Path); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("remove what the sandbox left in %s: %w: run 'agentctl gc --all' when that has ended", d.Path, err)
		}
	}
	err = errors.Join(removeOthers(d), b.locked.Close())
	b.locked = nil
	return err
}

// removeOthers removes what came to a directory since a sandbox has it.
func removeOthers(d realDirectory) error {
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		return fmt.Errorf("directory of the sandbox: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !slices.Contains(d.Before, e.Name()) {
			errs = append(errs, statedir.RemoveTree(filepath.Join(d.Path, e.Name())))
		}
	}
	return errors.Join(errs...)
}
