package project

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"agentsh/internal/paths"
)

// OpenHome returns what of own lies outside a workspace in which a session has no rules. A
// workspace in which one of own exists is refused, and so is one that holds the state
// directory. A home without them may be the workspace: see [Trust.NoteOpened].
func OpenHome(own []string, state, workspace string) ([]string, error) {
	for _, name := range []string{filepath.Clean(state), paths.Resolve(state)} {
		if paths.Within(name, workspace) {
			return nil, fmt.Errorf("workspace %s: the state directory %s is in it, and sessions without namespaces cannot close it to "+
				"commands: set XDG_STATE_HOME to a directory outside", workspace, name)
		}
	}
	var rest []string
	for _, name := range own {
		if !paths.Within(name, workspace) {
			rest = append(rest, name)
			continue
		}
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("workspace %s: agentsh uses %s outside of sessions, and sessions without namespaces cannot close it to "+
				"commands: remove it, or work in another directory (--workspace DIR)", workspace, name)
		}
	}
	return rest, nil
}

// NoteOpened records that the home is in the workspace of such a session. From then on its
// policy and its programs are not the user's: commands can make them.
func (t Trust) NoteOpened() error {
	if err := os.MkdirAll(string(t), 0o700); err != nil {
		return err
	}
	return os.WriteFile(t.openMark(), nil, 0o600)
}

// HomeOpened reports whether [Trust.NoteOpened] was called.
func (t Trust) HomeOpened() bool {
	_, err := os.Lstat(t.openMark())
	return t != "" && err == nil
}

func (t Trust) openMark() string { return filepath.Join(string(t), "home-opened") }
