package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"agentsh/policy"
)

// addSockets shows the sockets of the machine that a policy lets commands
// connect to, and covers those in trees that are shown otherwise. A policy
// without unix_socket_rules shows none beside what lies in those trees.
func (v *view) addSockets(p *policy.Policy) error {
	if !p.Governs(policy.GroupUnixSocket) {
		return nil
	}
	sockets, err := machineSockets()
	if err != nil {
		return err
	}
	for _, name := range sockets {
		d, _ := p.Evaluate(&policy.UnixSocketRequest{Path: name, Op: "connect"})
		shown := slices.ContainsFunc(v.binds, func(b bind) bool { return below(name, b.path) })
		private := below(name, v.scratch...) || slices.ContainsFunc(v.governed, func(g governed) bool { return below(name, g.path) })
		switch {
		case private: // other files of these names
		case d.Permits() && !shown:
			v.sockets = append(v.sockets, name)
		case !d.Permits() && shown:
			v.masked = append(v.masked, name)
		}
	}
	return nil
}

// machineSockets are the Unix sockets that have a path on the machine, links
// resolved. See proc_net(5), unix.
func machineSockets() ([]string, error) {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil, fmt.Errorf("list unix sockets: %w", err)
	}
	defer f.Close()
	var names []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		_, name, ok := strings.Cut(lines.Text(), " /")
		if !ok {
			continue
		}
		resolved, err := filepath.EvalSymlinks(path.Clean("/" + name))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue // removed, or out of reach of the commands' user too
		}
		if err != nil {
			return nil, fmt.Errorf("unix socket /%s: %w", name, err)
		}
		if info, err := os.Lstat(resolved); err == nil && info.Mode()&fs.ModeSocket != 0 {
			names = append(names, resolved)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list unix sockets: %w", err)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
