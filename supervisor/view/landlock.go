package view

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"agentsh/internal/layout"
	"agentsh/policy"
	"agentsh/seccomp"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/notify"
	"agentsh/supervisor/probe/trial"
)

// landlockOnly is the confinement without namespaces and mounts, as far as a
// container's default profile allows it. Landlock confines files, the filter the
// network and the rest of the kernel. Notifications confine programs and
// signals. Marks tell the processes of sessions apart.
type landlockOnly struct{ Options }

// sharedMemory is the directory of semaphores and shared memory. See
// shm_overview(7).
const sharedMemory = "/dev/shm"

func (c *landlockOnly) Plan(p *policy.Policy, newDir func(string) (string, error)) (*Plan, error) {
	return (&planner{
		policy: p, workspace: c.Workspace, home: c.Home, newDir: newDir, whole: c.Missing.FileServer,
		parts:   true,
		noOpens: "in a session without namespaces " + notify.Emulated + " is the machine's",
	}).plan()
}

func (c *landlockOnly) Prepare(p *policy.Policy, plan *Plan) error {
	if err := c.check(plan); err != nil {
		return err
	}
	if all := p.Tree(sharedMemory, policy.OpAll); all.Uniform && all.Effect == policy.Allow {
		plan.Private = append(plan.Private, sharedMemory) // the machine's: with namespaces every session has one of its own
	}
	if err := c.makeHome(plan); err != nil {
		return err
	}
	if err := plan.reaches(c.User); err != nil {
		return err
	}
	return c.checkOwnFiles(plan)
}

// check rejects plans that need a mount, and kernels whose Landlock does not confine files.
func (c *landlockOnly) check(plan *Plan) error {
	const instead = "; give the session namespaces (doc/platforms/docker.md has the flags of a container), or a newer kernel"
	switch abi := launch.LandlockABI(); {
	case c.Missing.Landlock || abi == 0:
		return errors.New("neither namespaces nor Landlock are here: nothing would confine the files" + instead +
			" with landlock in lsm= of its command line")
	case c.Missing.NestedCommands && abi < trial.LandlockTruncate: // the filter of such a session may not be loaded
		return fmt.Errorf("neither namespaces nor an engine are here, and Landlock of ABI %d lets commands truncate files: "+
			"it takes ABI %d (Linux 6.2)"+instead, abi, trial.LandlockTruncate)
	}
	shells, err := realShells(plan)
	if err != nil {
		return err
	}
	if len(shells) > 0 {
		return errors.New(
			"the shim stands in for the shells, and without mounts commands would get it too: uninstall it ('agentsh shim uninstall')",
		)
	}
	for _, o := range plan.open {
		if o.path != o.backing {
			return fmt.Errorf("%s is %s outside, and without mounts it has no other name", o.path, o.backing)
		}
	}
	return nil
}

// makeHome sets the home directory of commands: the machine's if it exists,
// else one in the state directory.
func (c *landlockOnly) makeHome(plan *Plan) error {
	i := slices.Index(plan.Private, c.Home)
	if i < 0 {
		return nil
	}
	if _, err := os.Stat(c.Home); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	home := filepath.Join(c.State, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		return fmt.Errorf("home directory: %w", err)
	}
	if isRoot() {
		if err := os.Chown(home, c.User.UID, c.User.GID); err != nil {
			return fmt.Errorf("home directory: %w: root needs CAP_CHOWN and CAP_SETUID, as in containers by default "+
				"(--cap-add CHOWN --cap-add SETUID --cap-add SETGID), or start agentsh as a user (--user UID:GID)", err)
		}
	}
	plan.Home, plan.Private[i] = home, home
	return nil
}

// checkOwnFiles refuses a plan in which commands of the supervisor's own user
// could write to the files of agentsh.
func (c *landlockOnly) checkOwnFiles(plan *Plan) error {
	if isRoot() {
		return nil // commands run as another user
	}
	own := []string{c.State, c.Audit}
	for _, h := range c.Hidden {
		own = append(own, h.Dir)
	}
	refused := func(name, dir string) error {
		return fmt.Errorf(
			"%s, where agentsh keeps its own files, is in %s, which the policy lets commands write to: move it, or do not allow that",
			name,
			dir,
		)
	}
	for _, name := range own {
		for _, dir := range plan.Private {
			if Below(name, dir) && dir != plan.Home {
				return refused(name, dir)
			}
		}
		for _, o := range plan.open {
			if o.write && Below(name, o.path) {
				return refused(name, o.path)
			}
		}
	}
	return nil
}

func (c *landlockOnly) Launch(p *policy.Policy, plan *Plan, files Files) (launch.Config, error) {
	if c.Program && unix.Access(layout.Program, unix.X_OK) != nil {
		return launch.Config{}, fmt.Errorf("%s cannot be shown: the session has no mounts of its own: "+
			"install a package of agentsh there, or make a link: mkdir -p %s && ln -s \"$(command -v agentsh)\" %s",
			layout.Program, layout.Library, layout.Program)
	}
	if err := (sessionFiles{c.Options, plan, files}).writeStartup(); err != nil {
		return launch.Config{}, err
	}
	return launch.Config{
		User: c.User.launch(), Hostname: layout.HostName, NoNamespaces: true, Network: launch.Network{Shared: c.Network},
		Landlock: c.landlock(p, plan), ReadOnly: plan.readOnly(),
	}, nil
}

func (c *landlockOnly) SharesNetwork() bool { return true }

// Filter returns the filter options. It refuses the network if no rules govern
// it. It notifies scheduling calls for other threads. No namespace confines
// either. On an old kernel the filter refuses what Landlock does not.
func (c *landlockOnly) Filter(p *policy.Policy, governed bool) seccomp.PlanOptions {
	return seccomp.PlanOptions{
		Signals: c.Signals(p), NoInternet: !c.Network && !governed, Threads: true,
		Truncation: launch.LandlockABI() < trial.LandlockTruncate,
	}
}

// Signals notifies every signal, because no pid namespace confines signals.
func (c *landlockOnly) Signals(*policy.Policy) seccomp.Signals {
	return seccomp.Signals{Evaluated: seccomp.EverySignal()}
}

// Evaluate allows signals where the policy has no rules about them. The
// notification loop denies those that leave the session.
func (c *landlockOnly) Evaluate(p *policy.Policy) func(policy.Request) (policy.Decision, policy.Diagnostic) {
	if p.Governs(policy.GroupSignal) {
		return p.Evaluate
	}
	return func(r policy.Request) (policy.Decision, policy.Diagnostic) {
		if _, signal := r.(*policy.SignalRequest); signal {
			return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{}
		}
		return p.Evaluate(r)
	}
}

// Installed returns a path in the state directory, because nothing is mounted.
func (c *landlockOnly) Installed(name string) string { return filepath.Join(c.State, name) }

// Inject replaces the paths of the startup script and of the settings of git: they lie in
// the state directory.
func (c *landlockOnly) Inject(vars map[string]string) map[string]string {
	out := maps.Clone(vars)
	for key, value := range out {
		if value == layout.StartupScript || value == layout.GitConfig {
			out[key] = c.Installed(value)
		}
	}
	return out
}

func (c *landlockOnly) Root(int) string { return "/" }

func (c *landlockOnly) Observer(int) int { return os.Getpid() }

// Tracing returns the commands' user if the supervisor is root, because root
// may lack the capability to trace processes of another user.
func (c *landlockOnly) Tracing() Tracing {
	if !isRoot() {
		return Tracing{Shared: true}
	}
	return Tracing{Shared: true, As: &notify.Credentials{UID: c.User.UID, GID: c.User.GID}}
}

// machineDevices are the device files of a command. A session with namespaces
// has the same in its own /dev.
var machineDevices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts"}

// landlock grants the paths that the plan shows, except for hidden names.
func (c *landlockOnly) landlock(p *policy.Policy, plan *Plan) *launch.Landlock {
	l := newLandlock(c.Missing, plan)
	for _, b := range plan.binds {
		hidden := slices.DeleteFunc(slices.Clone(plan.masked), func(m string) bool { return !Below(m, b.path) })
		grant(l, b.rights(), without(b.path, hidden)...)
		if len(hidden) > 0 && !slices.ContainsFunc(hidden, isDir) {
			grant(l, unix.LANDLOCK_ACCESS_FS_READ_DIR, b.path) // a hidden file has nothing to list
		}
	}
	grant(l, allRights, plan.Private...)
	grant(l, launch.LandlockRead, "/proc") // writing to /proc/PID/mem would change the arguments of a checked execve
	grant(l, launch.LandlockRead|unix.LANDLOCK_ACCESS_FS_WRITE_FILE|unix.LANDLOCK_ACCESS_FS_IOCTL_DEV, machineDevices...)
	grant(l, launch.LandlockRead, startupFiles(c.State))
	execOnly(l, execTrees(p))
	return l
}

// maxEntries is the maximum number of directory entries that are granted
// separately.
const maxEntries = 4096

// without returns the current names that together make up a tree without the
// hidden names. A name that is created later beside a hidden name is not
// granted.
func without(dir string, hidden []string) []string {
	if len(hidden) == 0 {
		return []string{dir}
	}
	if slices.Contains(hidden, dir) {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > maxEntries {
		return nil // nothing of it is granted
	}
	var out []string
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink != 0 {
			continue // the rules for its target decide
		}
		name := filepath.Join(dir, e.Name())
		inside := slices.DeleteFunc(slices.Clone(hidden), func(h string) bool { return !Below(h, name) })
		out = append(out, without(name, inside)...)
	}
	return out
}

// isDir reports whether a name is a directory or cannot be examined.
func isDir(name string) bool {
	info, err := os.Lstat(name)
	return err != nil || info.IsDir()
}
