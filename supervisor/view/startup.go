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

// staged is where the new root has the files of the session, until /proc is mounted there.
// They are bound from it before. So they need no disk, and have no other name.
const staged = "/proc"

// replace binds a file of the session over one of the machine.
func (f sessionFiles) replace(name, target string, data []byte) []launch.Mount {
	source := path.Join(staged, path.Base(name))
	return []launch.Mount{
		{Kind: launch.File, Target: source, Data: data, Mode: 0o644},
		{Kind: launch.Rebind, Source: source, Target: target, ReadOnly: true, NoExec: true},
	}
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
		out = append(out, f.replace(name, name, data)...)
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
	return f.replace(name, at, fmt.Appendf(data, "127.0.0.1 %s\n", layout.HostName)), nil
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
	return f.replace(name, at, f.files.Resolver), nil
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
	if !f.Program && !f.Helper {
		return f.startupStaged(), nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("program of the session: %w", err)
	}
	out := []launch.Mount{
		f.startupMount(launch.Bind, startupFiles(f.State), f.State),
		{Kind: launch.Bind, Source: self, Target: layout.Program, ReadOnly: true},
	}
	return out, f.writeStartup()
}

// startupFiles returns the outside directory of the startup script for a state
// directory.
func startupFiles(state string) string { return filepath.Join(state, layout.Library) }

// RefusalsFile returns the outside file that a session with [Options.Program] shows
// at [layout.Refusals].
func RefusalsFile(state string) string { return filepath.Join(state, layout.Refusals) }

// startupStaged makes what startupMount shows in the new root, and shows it.
func (f sessionFiles) startupStaged() []launch.Mount {
	dir := path.Join(staged, layout.Library)
	out := []launch.Mount{{Kind: launch.Dir, Target: dir, Mode: 0o755}}
	for _, file := range f.startupContents() {
		out = append(out, launch.Mount{Kind: launch.File, Target: path.Join(dir, path.Base(file.name)), Data: file.data, Mode: 0o644})
	}
	return append(out, f.startupMount(launch.Rebind, dir, launch.InRoot+staged))
}

// startupMount shows the script's directory, which is source: over the installed one, or by
// an overlay of its parent if it is not installed. root has the parents of source.
func (f sessionFiles) startupMount(kind launch.Kind, source, root string) launch.Mount {
	if info, err := os.Stat(layout.Library); err == nil && info.IsDir() {
		return launch.Mount{Kind: kind, Source: source, Target: layout.Library, ReadOnly: true, NoExec: true}
	}
	over := filepath.Dir(layout.Library)
	if _, err := os.Stat(over); errors.Is(err, fs.ErrNotExist) {
		over = filepath.Dir(over) // a minimal root has no /usr/lib
	}
	return launch.Mount{
		Kind:     launch.Overlay,
		Target:   over,
		ReadOnly: true,
		// xino: what sessions remember of its directories counts by their inode numbers
		Options: []string{"lowerdir=" + filepath.Join(root, over) + ":" + over, "xino=on"},
	}
}

// startupFile is one of the files beside the startup script.
type startupFile struct {
	what, name string
	data       []byte
}

// startupContents are the script, the settings of git, the certificates, and empty files over
// which this program and what it reads are mounted.
func (f sessionFiles) startupContents() []startupFile {
	out := []startupFile{
		{"startup script", layout.StartupScript, []byte(agentsh.BashStartup)},
		{"settings of git", layout.GitConfig, f.files.GitConfig},
	}
	if f.Program || f.Helper {
		out = append(out, startupFile{"program of the session", layout.Program, nil})
	}
	if f.Program {
		out = append(out, startupFile{"refusals of the session", layout.Refusals, nil})
	}
	if f.files.Certificates != nil {
		out = append(out, startupFile{"certificates of the session", layout.CABundle, f.files.Certificates})
	}
	return out
}

// writeStartup writes startupContents to the state directory: for a session without mounts of
// its own, and for one with [RefusalsFile], which changes while it is shown.
func (f sessionFiles) writeStartup() error {
	dir := startupFiles(f.State)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("startup script: %w", err)
	}
	for _, file := range f.startupContents() {
		if err := os.WriteFile(filepath.Join(dir, path.Base(file.name)), file.data, 0o644); err != nil {
			return fmt.Errorf("%s: %w", file.what, err)
		}
	}
	return os.Chmod(f.State, 0o711) // the user namespace's user looks the script up below it
}
