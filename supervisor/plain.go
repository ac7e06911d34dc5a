package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/policy"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/notify"
)

// A plain session has no namespaces and no mounts: Landlock holds the files, the
// filter the network and the rest of the kernel, notification the programs and
// signals, and marks the processes. It is what a container's default profile
// leaves, and opens by the operator's word alone.

// plain reports whether the session has no namespaces.
func (s *Session) plain() bool { return s.lost.has(lossNamespaces) }

// rootName is the root directory that commands see, from outside.
func (s *Session) rootName() string {
	if s.plain() {
		return "/"
	}
	return fmt.Sprintf("/proc/%d/root", s.init.PID())
}

// viewer is a process that sees files as commands do.
func (s *Session) viewer() int {
	if s.plain() {
		return os.Getpid()
	}
	return s.init.PID()
}

// tracer is the user as whom programs are looked at: in a plain session root
// may lack the capability to look at another user's.
func (s *Session) tracer() *notify.Credential {
	if !s.plain() || !isRoot() {
		return nil
	}
	return &notify.Credential{UID: s.who.uid, GID: s.who.gid}
}

// evaluate is the policy's own judgement. A plain session asks about every
// signal; one that no rule speaks about stays inside and is allowed.
func (s *Session) evaluate(p *policy.Policy) func(policy.Request) (policy.Decision, policy.Diagnostic) {
	if !s.plain() || p.Governs(policy.GroupSignal) {
		return p.Evaluate
	}
	return func(r policy.Request) (policy.Decision, policy.Diagnostic) {
		if _, signal := r.(*policy.SignalRequest); signal {
			return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{}
		}
		return p.Evaluate(r)
	}
}

// traces checks that an exec can be verified, unless the operator does without.
func (s *Session) traces() error {
	const nobody = 1<<22 + 1 // above every process number: see proc_sys_kernel(5), pid_max
	if s.lost.has(lossVerify) {
		return nil
	}
	if err := ptrace(unix.PTRACE_SEIZE, nobody, 0); !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("verify programs by ptrace: %w", err)
	}
	return nil
}

// sharedMemory is where semaphores and shared memory have their names. See
// shm_overview(7).
const sharedMemory = "/dev/shm"

// minPlainABI is the Landlock that holds truncation too.
const minPlainABI = 3

// settlePlain makes of the plan what Landlock can hold, and refuses what it cannot.
func (s *Session) settlePlain(v *view) error {
	if abi := launch.LandlockABI(); s.lost.has(lossLandlock) || abi < minPlainABI {
		return fmt.Errorf(
			"neither namespaces nor Landlock of ABI %d (Linux 6.2) are here, this one has %d: nothing would hold the files",
			minPlainABI,
			abi,
		)
	}
	shells, err := realShells(*v)
	if err != nil {
		return err
	}
	if len(shells) > 0 {
		return errors.New(
			"the shim stands in for the shells, and without mounts commands would get it too: uninstall it ('agentsh shim uninstall')",
		)
	}
	for _, o := range v.open {
		if o.path != o.backing {
			return fmt.Errorf("%s is %s outside, and without mounts it has no other name", o.path, o.backing)
		}
	}
	if all := s.cfg.Policy.Tree(sharedMemory, policy.OpAll); all.Uniform && all.Effect == policy.Allow {
		v.scratch = append(v.scratch, sharedMemory) // the machine's own: a session with a /dev has its own always
	}
	if err := s.ownScratch(v); err != nil {
		return err
	}
	if err := s.reaches(*v); err != nil {
		return err
	}
	return errors.Join(s.apart(*v), s.writeStartup())
}

// ownScratch gives commands a home: that of the machine where it is there, else
// one of the session.
func (s *Session) ownScratch(v *view) error {
	i := slices.Index(v.scratch, s.cfg.Environment.Home)
	if i < 0 {
		return nil
	}
	if _, err := os.Stat(s.cfg.Environment.Home); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	home := filepath.Join(s.state.dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		return fmt.Errorf("home directory: %w", err)
	}
	if isRoot() {
		if err := os.Chown(home, s.who.uid, s.who.gid); err != nil {
			return fmt.Errorf("home directory: %w", err)
		}
	}
	s.cfg.Environment.Home, v.scratch[i] = home, home
	return nil
}

// apart checks that commands of the supervisor's own user cannot write where it
// keeps what it needs.
func (s *Session) apart(v view) error {
	if isRoot() {
		return nil // theirs is another user
	}
	own := append(registryDirs(), s.state.dir, s.cfg.Audit.Path())
	if s.keepDir != "" {
		own = append(own, s.keepDir)
	}
	for _, name := range own {
		for _, dir := range v.scratch {
			if below(name, dir) && dir != s.cfg.Environment.Home {
				return fmt.Errorf(
					"%s, where agentsh keeps its own files, is in %s, which the policy lets commands write to: move it, or do not allow that",
					name,
					dir,
				)
			}
		}
		for _, o := range v.open {
			if o.write && below(name, o.path) {
				return fmt.Errorf(
					"%s, where agentsh keeps its own files, is in %s, which the policy lets commands write to: move it, or do not allow that",
					name,
					o.path,
				)
			}
		}
	}
	return nil
}

// injected are injected variables with the startup script where it is.
func (s *Session) injected(vars map[string]string) map[string]string {
	const name = "/bash_startup.sh"
	if !s.plain() {
		return vars
	}
	out := maps.Clone(vars)
	for key, value := range out {
		if value == startupDir+name {
			out[key] = s.startupFiles() + name
		}
	}
	return out
}

// startupFiles is where the session keeps the startup script outside.
func (s *Session) startupFiles() string {
	return filepath.Join(s.state.dir, startupDir)
}

// plainDevices are the devices of a command, as in a /dev of its own.
var plainDevices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts"}

// maxCarved bounds the files that are granted one by one.
const maxCarved = 4096

// grantPlain grants what the plan shows, and around what it does not.
func (s *Session) grantPlain(v view, grant func(uint64, ...string)) {
	const all = launch.LandlockRead | launch.LandlockExec | launch.LandlockWrite
	for _, b := range v.binds {
		access := uint64(launch.LandlockRead | launch.LandlockExec)
		if b.noExec {
			access = launch.LandlockRead
		}
		hidden := slices.DeleteFunc(slices.Clone(v.masked), func(m string) bool { return !below(m, b.path) })
		for _, name := range carve(b.path, hidden) {
			grant(access, name)
		}
		if len(hidden) > 0 && !slices.ContainsFunc(hidden, isDir) {
			grant(unix.LANDLOCK_ACCESS_FS_READ_DIR, b.path) // a hidden file has nothing to list
		}
	}
	grant(all, v.scratch...)
	grant(launch.LandlockRead, "/proc") // writing to /proc/PID/mem would change what was judged
	grant(launch.LandlockRead|unix.LANDLOCK_ACCESS_FS_WRITE_FILE|unix.LANDLOCK_ACCESS_FS_IOCTL_DEV, plainDevices...)
	grant(launch.LandlockRead, s.startupFiles())
}

// carve are the names that together are a tree without the hidden ones, as it is
// now: what appears later beside a hidden name is not granted.
func carve(dir string, hidden []string) []string {
	if len(hidden) == 0 {
		return []string{dir}
	}
	if slices.Contains(hidden, dir) {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > maxCarved {
		return nil // nothing of it is granted
	}
	var out []string
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink != 0 {
			continue // it is judged where it points to
		}
		name := filepath.Join(dir, e.Name())
		inside := slices.DeleteFunc(slices.Clone(hidden), func(h string) bool { return !below(h, name) })
		out = append(out, carve(name, inside)...)
	}
	return out
}

func isDir(name string) bool {
	info, err := os.Lstat(name)
	return err != nil || info.IsDir()
}

// degradations are the words of the configuration and those of a request.
func degradations(configured []Degradation, words []string) []Degradation {
	out := slices.Clone(configured)
	for _, word := range words {
		out = append(out, Degradation{strings.TrimSpace(word), "--degraded"})
	}
	return out
}

// WithDegraded is the configuration with further words of a command line.
func (c OperatorConfig) WithDegraded(words []string) OperatorConfig {
	c.Degraded = degradations(c.Degraded, words)
	return c
}
