package view

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"agentsh"
	"agentsh/internal/layout"
	"agentsh/supervisor/launch"
)

// Shell is the SHELL of every command.
const Shell = "/bin/bash"

// sessionFiles are the files that a session adds to a plan.
type sessionFiles struct {
	Options
	plan  *Plan
	files Files
}

// mounts show the account of the commands' user, the host name, the resolver,
// and the startup script with what lies beside it.
func (f sessionFiles) mounts() ([]launch.Mount, error) {
	var out []launch.Mount
	for _, make := range []func() ([]launch.Mount, error){f.accounts, f.hosts, f.resolver, f.startup} {
		m, err := make()
		if err != nil {
			return nil, err
		}
		out = append(out, m...)
	}
	return out, nil
}

// shown reports whether a name lies in a tree that is bound.
func (f sessionFiles) shown(name string) bool {
	return slices.ContainsFunc(f.plan.binds, func(b bind) bool { return Below(name, b.path) })
}

// replace binds a file of the session over one of the machine.
func (f sessionFiles) replace(name, target string, data []byte) (launch.Mount, error) {
	source := filepath.Join(f.State, path.Base(name))
	if err := os.WriteFile(source, data, 0o644); err != nil {
		return launch.Mount{}, fmt.Errorf("session file %s: %w", name, err)
	}
	return launch.Mount{Kind: launch.Bind, Source: source, Target: target, ReadOnly: true, NoExec: true}, nil
}

// accounts replace the files of users and groups.
func (f sessionFiles) accounts() ([]launch.Mount, error) {
	if !f.shown("/etc/passwd") || !f.shown("/etc/group") {
		return nil, nil
	}
	var out []launch.Mount
	passwd, group := f.User.accounts(f.plan.Home, Shell)
	for name, data := range map[string][]byte{"/etc/passwd": passwd, "/etc/group": group} {
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
			continue // a minimal image: there is nothing to cover in a read-only tree
		}
		m, err := f.replace(name, name, data)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// hosts gives layout.HostName an address: programs look up the host's name when they
// start. The machine's lines stay. A machine without the file gets none, as
// nothing can be made in a read-only tree.
func (f sessionFiles) hosts() ([]launch.Mount, error) {
	const name = "/etc/hosts"
	at, err := filepath.EvalSymlinks(name)
	if errors.Is(err, fs.ErrNotExist) || !f.shown(name) || !f.shown(at) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("session file %s: %w", name, err)
	}
	data, err := os.ReadFile(at)
	if err != nil {
		return nil, fmt.Errorf("session file %s: %w", name, err)
	}
	if n := len(data); n > 0 && data[n-1] != '\n' {
		data = append(data, '\n')
	}
	m, err := f.replace(name, at, fmt.Appendf(data, "127.0.0.1 %s\n", layout.HostName))
	return []launch.Mount{m}, err
}

// resolver replaces the configuration of the C library's resolver. See
// resolv.conf(5). A machine without the file needs none: the C library asks
// 127.0.0.1.
func (f sessionFiles) resolver() ([]launch.Mount, error) {
	const name = "/etc/resolv.conf"
	if f.files.Resolver == nil {
		return nil, nil
	}
	at, err := filepath.EvalSymlinks(name)
	if errors.Is(err, fs.ErrNotExist) || !f.shown(name) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("session file %s: %w", name, err)
	}
	m, err := f.replace(name, at, f.files.Resolver)
	return []launch.Mount{m}, err
}

// startup returns the mounts of the startup script and, if requested, of this
// program.
func (f sessionFiles) startup() ([]launch.Mount, error) {
	if !f.shown(layout.Library) {
		if f.Program {
			return nil, fmt.Errorf("%s cannot be shown: the policy shows nothing of %s", layout.Program, layout.Library)
		}
		return nil, nil
	}
	out := []launch.Mount{f.startupMount()}
	if f.Program || f.Helper {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("program of the session: %w", err)
		}
		out = append(out, launch.Mount{Kind: launch.Bind, Source: self, Target: layout.Program, ReadOnly: true})
	}
	return out, f.writeStartup()
}

// startupFiles returns the outside directory of the startup script for a state
// directory.
func startupFiles(state string) string { return filepath.Join(state, layout.Library) }

// RefusalsFile returns the outside file that a session with [Options.Program] shows
// at [layout.Refusals].
func RefusalsFile(state string) string { return filepath.Join(state, layout.Refusals) }

// startupMount shows the script's directory: over the installed one, or by an
// overlay of its parent if it is not installed.
func (f sessionFiles) startupMount() launch.Mount {
	if info, err := os.Stat(layout.Library); err == nil && info.IsDir() {
		return launch.Mount{Kind: launch.Bind, Source: startupFiles(f.State), Target: layout.Library, ReadOnly: true, NoExec: true}
	}
	over := filepath.Dir(layout.Library)
	if _, err := os.Stat(over); errors.Is(err, fs.ErrNotExist) {
		over = filepath.Dir(over) // a minimal root has no /usr/lib
	}
	return launch.Mount{
		Kind:     launch.Overlay,
		Target:   over,
		ReadOnly: true,
		Options:  []string{"lowerdir=" + filepath.Join(f.State, over) + ":" + over},
	}
}

// writeStartup writes what startupMount shows: the script, the settings of git, the
// certificates, and an empty file over which this program is mounted.
func (f sessionFiles) writeStartup() error {
	dir := startupFiles(f.State)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("startup script: %w", err)
	}
	write := func(what, name string, data []byte) error {
		if err := os.WriteFile(filepath.Join(dir, path.Base(name)), data, 0o644); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}
	if err := write("startup script", layout.StartupScript, []byte(agentsh.BashStartup)); err != nil {
		return err
	}
	if err := write("settings of git", layout.GitConfig, f.files.GitConfig); err != nil {
		return err
	}
	if f.Program || f.Helper {
		if err := write("program of the session", layout.Program, nil); err != nil {
			return err
		}
	}
	if f.Program {
		if err := write("refusals of the session", layout.Refusals, nil); err != nil {
			return err
		}
	}
	if f.files.Certificates != nil {
		if err := write("certificates of the session", layout.CABundle, f.files.Certificates); err != nil {
			return err
		}
	}
	return os.Chmod(f.State, 0o711) // the user namespace's user looks the script up below it
}
