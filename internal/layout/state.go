package layout

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// State is the directory in which both programs of one user store what outlives
// them.
type State string

// FindState returns $XDG_STATE_HOME/agentsh when that variable is an absolute
// path. Otherwise it is /var/lib/agentsh for root and
// ~/.local/state/agentsh for others. It is [scratchState] and the uid where HOME is the
// root directory, and where [State.MakeForContainer] has made that. It makes nothing: see
// [State.Make].
func FindState(getenv func(string) string, uid int) (State, error) {
	if base := getenv("XDG_STATE_HOME"); filepath.IsAbs(base) {
		return State(filepath.Join(base, "agentsh")), nil
	}
	if uid == 0 {
		return "/var/lib/agentsh", nil
	}
	home := getenv("HOME")
	if home == "/" { // a container's user without an entry in passwd
		s := State(scratchState + strconv.Itoa(uid))
		if err := s.check(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		return s, nil
	}
	if s := State(scratchState + strconv.Itoa(uid)); s.check() == nil && s.ofContainer() {
		return s, nil
	}
	if filepath.IsAbs(home) {
		return State(filepath.Join(home, HomeState)), nil
	}
	return "", errors.New("no state directory: HOME is not an absolute path; run 'export XDG_STATE_HOME=DIR' with an absolute DIR of your own")
}

// HomeState is the usual state directory of a user in the home.
const HomeState = ".local/state/agentsh"

// scratchState begins state directories in a directory that everybody can write to.
const scratchState = "/var/tmp/agentsh-"

// FallbackState makes the state directory of a user whose home cannot have one.
func FallbackState(uid int) (State, error) {
	s := State(scratchState + strconv.Itoa(uid))
	return s, s.Make()
}

// ContainerState returns the state directory of a user in a container whose sessions have no
// namespaces. There a home may be a workspace, in which nothing can be closed to commands: so
// the directory is never in the home. It makes nothing: see [State.MakeForContainer].
func ContainerState(getenv func(string) string, uid int) (State, error) {
	if uid == 0 || filepath.IsAbs(getenv("XDG_STATE_HOME")) {
		return FindState(getenv, uid)
	}
	s := State(scratchState + strconv.Itoa(uid))
	if err := s.check(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return s, nil
}

// MakeForContainer makes what [ContainerState] returned. [FindState] returns the same
// directory from then on.
func (s State) MakeForContainer() error {
	if !strings.HasPrefix(string(s), scratchState) {
		return nil // root's, or one that the user chose: the others find it as it is
	}
	if err := s.Make(); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(string(s), containerMark), nil, 0o600); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	return nil
}

// containerMark is a file in a directory that [State.MakeForContainer] made.
const containerMark = "container"

// ofContainer reports whether [State.MakeForContainer] made the directory.
func (s State) ofContainer() bool {
	_, err := os.Lstat(filepath.Join(string(s), containerMark))
	return err == nil
}

// Make makes the directory for its owner only, if it is missing, and directories in it. It refuses one in
// /var/tmp that somebody else has made.
func (s State) Make(within ...string) error {
	for _, dir := range append([]string{string(s)}, within...) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("state directory: %w; set XDG_STATE_HOME to a directory that you may write", err)
		}
		if err := s.check(); err != nil {
			return err
		}
	}
	return nil
}

// check refuses a directory in /var/tmp that another user can change.
func (s State) check() error {
	if !strings.HasPrefix(string(s), scratchState) {
		return nil
	}
	if err := checkPrivate(string(s)); err != nil {
		return fmt.Errorf("state directory: %w; set XDG_STATE_HOME to another", err)
	}
	return nil
}

// ContainerWorkspace makes the workspace of commands in a container whose image has no
// working directory.
func ContainerWorkspace(uid int) (string, error) {
	if uid != 0 {
		return makePrivate(filepath.Join("/tmp", "work-"+strconv.Itoa(uid)))
	}
	const dir = "/work"
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// makePrivate makes a directory in one that everybody can write to, and refuses what
// somebody else has made there.
func makePrivate(dir string) (string, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, checkPrivate(dir)
}

// checkPrivate refuses a directory that another user can change.
func checkPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner, _ := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || owner == nil || int(owner.Uid) != os.Geteuid() || info.Mode().Perm() != 0o700 {
		return fmt.Errorf("%s must be a directory of this user with mode 0700", dir)
	}
	return nil
}

// Runs holds one directory for each run of agentctl.
func (s State) Runs() string { return filepath.Join(string(s), "runs") }

// Batches holds one directory for each batch of agentctl.
func (s State) Batches() string { return filepath.Join(string(s), "batches") }

// Sandboxes is the state of agentctl's local backend.
func (s State) Sandboxes() string { return filepath.Join(string(s), "sandboxes") }

// Machines holds one directory for each virtual machine of agentctl.
func (s State) Machines() string { return filepath.Join(string(s), "machines") }

// OpenShell holds the output of a gateway that agentctl started, and the lock for it.
func (s State) OpenShell() string { return filepath.Join(string(s), "openshell") }

// Lock is the file that orders agentctl's changes of [State.Runs] and [State.Sandboxes].
func (s State) Lock() string { return filepath.Join(string(s), "lock") }

// Temporary notes files that processes make elsewhere for a time.
func (s State) Temporary() string { return filepath.Join(string(s), "temporary") }

// Gateway holds the providers of agentctl's local gateway.
func (s State) Gateway() string { return filepath.Join(string(s), "gateway") }

// Store holds checkpoints, previous content and trash of agentsh's sessions.
func (s State) Store() string { return filepath.Join(string(s), "store") }

// Told is a mark: what this container lacks has been said.
func (s State) Told() string { return filepath.Join(string(s), "told") }

// Trust holds records of the policies of projects that the user trusts.
func (s State) Trust() string { return filepath.Join(string(s), "trust") }

// Agent is the home of an agent program in sessions of its own.
func (s State) Agent(name string) string { return filepath.Join(string(s), "agents", name) }

// AuditLogs holds the audit logs of sessions.
func (s State) AuditLogs() string { return filepath.Join(string(s), "audit") }

// AuditKey is the file of the key that signs audit logs.
func (s State) AuditKey() string { return filepath.Join(string(s), "audit.key") }

// Files in the directory of a sandbox whose supervisor goes on without its
// controller.
const (
	KeptSocket = "socket"    // of the supervisor
	KeptKeys   = "keys.json" // for its clients
	KeptFile   = "kept.json" // written when the controller has gone
)
