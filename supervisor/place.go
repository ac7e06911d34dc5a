package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"agentsh"
	"agentsh/internal/wire"
	"agentsh/supervisor/launch"
)

// startupDir is where the packages install bash_startup.sh. It is always there
// inside, in the version of this build.
const startupDir = "/usr/lib/agentsh"

// caBundle is the file of authorities inside a session whose TLS is inspected.
const caBundle = startupDir + "/ca-bundle.pem"

// mounts are the steps that make a view: trees first, what lies inside others
// after them, the governed ones last because they answer only once served.
func (s *Session) mounts(v view) ([]launch.Mount, error) {
	var out []launch.Mount
	for _, b := range v.binds {
		out = append(out, launch.Mount{Kind: launch.Bind, Source: b.path, Target: b.path, ReadOnly: true, NoExec: b.noExec})
	}
	for _, l := range v.links {
		out = append(out, launch.Mount{Kind: launch.Symlink, Source: l.target, Target: l.path})
	}
	for _, o := range v.open {
		out = append(out, launch.Mount{Kind: launch.Bind, Source: o.backing, Target: o.path, ReadOnly: !o.write, NoExec: o.noExec})
	}
	out = append(out, launch.Mount{Kind: launch.Proc, Target: "/proc"}, launch.Mount{Kind: launch.Dev, Target: "/dev"})
	for _, dir := range v.scratch {
		mode := uint32(0o1777)
		if dir == s.cfg.Environment.Home {
			mode = 0o700
		}
		out = append(out, launch.Mount{Kind: launch.Tmpfs, Target: dir, Size: scratchBytes, Mode: mode})
	}
	for _, name := range v.masked {
		out = append(out, launch.Mount{Kind: launch.Mask, Target: name})
	}
	for _, name := range v.sockets {
		out = append(out, launch.Mount{Kind: launch.Bind, Source: name, Target: name, ReadOnly: true, NoExec: true, Optional: true})
	}
	own, err := s.ownFiles(v)
	if err != nil {
		return nil, err
	}
	out = append(out, own...)
	shells, err := realShells(v)
	if err != nil {
		return nil, err
	}
	out = append(out, shells...)
	for _, g := range v.governed {
		out = append(out, launch.Mount{Kind: launch.FUSE, Target: g.path, Tag: g.path, Single: !g.dir, Options: fuseOptions(s.who)})
	}
	s.forbidExec(out)
	return out, nil
}

// scratchBytes bounds one private directory; it is memory.
const scratchBytes = 4 << 30

// fuseOptions let the kernel check permissions of what the server shows, and
// let the sandbox's user in when it is not the one that mounts.
func fuseOptions(who identity) []string {
	options := []string{"default_permissions"}
	if !who.mapped {
		options = append(options, "allow_other")
	}
	return options
}

// ownFiles are the files a session brings along: the startup script, and the
// account of the user that commands run as.
func (s *Session) ownFiles(v view) ([]launch.Mount, error) {
	var out []launch.Mount
	shown := func(name string) bool {
		return slices.ContainsFunc(v.binds, func(b bind) bool { return below(name, b.path) })
	}
	if shown("/etc/passwd") && shown("/etc/group") {
		passwd, group := s.who.accounts(s.cfg.Environment.Home, baseShell)
		for name, data := range map[string][]byte{"/etc/passwd": passwd, "/etc/group": group} {
			if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
				continue // a minimal image: there is nothing to cover in a read-only tree
			}
			m, err := s.ownFile(name, data)
			if err != nil {
				return nil, err
			}
			out = append(out, m)
		}
	}
	hosts, err := s.hostsFile(shown)
	if err != nil {
		return nil, err
	}
	out = append(out, hosts...)
	if s.network != nil {
		m, err := s.resolverFile(v)
		if err != nil {
			return nil, err
		}
		out = append(out, m...)
	}
	if !shown(startupDir) {
		if s.cfg.Program {
			return nil, fmt.Errorf("%s cannot be shown: the policy shows nothing of %s", wire.OwnProgram, startupDir)
		}
		return out, nil
	}
	out = append(out, s.startupMount())
	if s.cfg.Program {
		m, err := s.programMount()
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, s.writeStartup()
}

// programMount shows this program inside, over an empty file that writeStartup
// makes.
func (s *Session) programMount() (launch.Mount, error) {
	self, err := os.Executable()
	if err != nil {
		return launch.Mount{}, fmt.Errorf("own program: %w", err)
	}
	return launch.Mount{Kind: launch.Bind, Source: self, Target: wire.OwnProgram, ReadOnly: true}, nil
}

// ownFile binds a file of the session over one of the machine.
func (s *Session) ownFile(name string, data []byte) (launch.Mount, error) {
	source := filepath.Join(s.state.dir, path.Base(name))
	if err := os.WriteFile(source, data, 0o644); err != nil {
		return launch.Mount{}, fmt.Errorf("session file %s: %w", name, err)
	}
	return launch.Mount{Kind: launch.Bind, Source: source, Target: name, ReadOnly: true, NoExec: true}, nil
}

// hostName is what gethostname(2) says inside.
const hostName = "sandbox"

// hostsFile gives hostName an address, as every machine's own name has one:
// programs look theirs up when they start. The machine's lines stay. A machine
// without the file gets none, as nothing can be made in a read-only tree.
func (s *Session) hostsFile(shown func(string) bool) ([]launch.Mount, error) {
	const name = "/etc/hosts"
	at, err := filepath.EvalSymlinks(name)
	if errors.Is(err, fs.ErrNotExist) || !shown(name) || !shown(at) {
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
	m, err := s.ownFile(name, fmt.Appendf(data, "127.0.0.1 %s\n", hostName))
	m.Target = at
	return []launch.Mount{m}, err
}

// resolverFile has the C library ask the session's name server. See
// resolv.conf(5). A machine without the file needs none: the C library then asks
// 127.0.0.1.
func (s *Session) resolverFile(v view) ([]launch.Mount, error) {
	const name = "/etc/resolv.conf"
	at, err := filepath.EvalSymlinks(name)
	if errors.Is(err, fs.ErrNotExist) || !slices.ContainsFunc(v.binds, func(b bind) bool { return below(name, b.path) }) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("session file %s: %w", name, err)
	}
	m, err := s.ownFile(name, s.network.ResolverFile())
	m.Target = at
	return []launch.Mount{m}, err
}

// writeStartup writes the startup script where startupMount takes it from, and
// beside it the authorities of a session whose TLS is inspected.
func (s *Session) writeStartup() error {
	dir := s.startupFiles()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("startup script: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bash_startup.sh"), []byte(agentsh.BashStartup), 0o644); err != nil {
		return fmt.Errorf("startup script: %w", err)
	}
	if s.cfg.Program {
		if err := os.WriteFile(filepath.Join(dir, path.Base(wire.OwnProgram)), nil, 0o644); err != nil {
			return fmt.Errorf("own program: %w", err)
		}
	}
	if s.network.Intercepts() {
		bundle, err := s.network.CABundle()
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, path.Base(caBundle)), bundle, 0o644)
		}
		if err != nil {
			return fmt.Errorf("authorities of the session: %w", err)
		}
	}
	return os.Chmod(s.state.dir, 0o711) // the user namespace's user looks the script up below it
}

// startupMount puts the script's directory in place: over the installed one, or
// beside what its parent holds, by an overlay of both.
func (s *Session) startupMount() launch.Mount {
	if info, err := os.Stat(startupDir); err == nil && info.IsDir() {
		return launch.Mount{Kind: launch.Bind, Source: s.startupFiles(), Target: startupDir, ReadOnly: true, NoExec: true}
	}
	over := filepath.Dir(startupDir)
	if _, err := os.Stat(over); errors.Is(err, fs.ErrNotExist) {
		over = filepath.Dir(over) // a minimal root has no /usr/lib
	}
	return launch.Mount{
		Kind:     launch.Overlay,
		Target:   over,
		ReadOnly: true,
		Options:  []string{"lowerdir=" + filepath.Join(s.state.dir, over) + ":" + over},
	}
}

// landlock is the floor beneath the mounts: the same view once more, held by
// another mechanism, and signals and abstract sockets kept inside.
func (s *Session) landlock(v view) *launch.Landlock {
	const all = launch.LandlockRead | launch.LandlockExec | launch.LandlockWrite
	if s.lost.has(lossLandlock) {
		return nil
	}
	l := &launch.Landlock{Handled: all | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV, Scope: true}
	if s.lost.has(lossScopes) {
		l.Handled, l.Scope = l.Handled&launch.LandlockRights(), false
	}
	grant := func(access uint64, paths ...string) {
		for _, p := range paths {
			l.Rules = append(l.Rules, launch.LandlockRule{Path: p, Access: access})
		}
	}
	for _, o := range v.open {
		grant(o.rights(), o.path)
	}
	if s.plain() {
		s.grantPlain(v, grant)
		s.execOnly(l)
		return l
	}
	grant(unix.LANDLOCK_ACCESS_FS_READ_DIR, "/")
	for _, b := range v.binds {
		access := uint64(launch.LandlockRead | launch.LandlockExec)
		if b.noExec {
			access = launch.LandlockRead
		}
		grant(access, b.path)
	}
	for _, g := range v.governed {
		if !g.closed {
			grant(all, g.path)
		}
	}
	grant(all, v.scratch...)
	grant(launch.LandlockRead, "/proc") // writing to /proc/PID/mem would change what was judged
	grant(all|unix.LANDLOCK_ACCESS_FS_IOCTL_DEV, "/dev")
	s.execOnly(l)
	return l
}

// readOnly are paths whose writing must fail before the first command runs.
func readOnly(v view) []string {
	out := []string{"/"}
	for _, b := range v.binds {
		if len(out) < 8 {
			out = append(out, b.path)
		}
	}
	return out
}
