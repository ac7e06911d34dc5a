package probe

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"agentsh/internal/layout"
	"agentsh/internal/strictyaml"
)

// The mechanisms that degraded may name: those that a session can open without.
const (
	LandlockScopes = "landlock_scopes"
	Landlock       = "landlock"
	WaitKillable   = "wait_killable"
	ExecVerify     = "exec_verify"
	FileServer     = "file_server"
	MappedFiles    = "mapped_files"
	Cgroup         = "cgroup"
	Namespaces     = "namespaces"
	CallRules      = "call_rules"
	NestedCommands = "nested_commands"
)

// AnyMechanism in degraded allows every mechanism to be missing. Require is the floor.
const AnyMechanism = "any"

// fallback is how sessions run without a mechanism.
type fallback struct {
	primitives  []string // the mechanism is missing where one of them does not work
	consequence string   // what is not enforced then
}

// fallbacks are by mechanism. doc/detect.md explains them.
var fallbacks = map[string]fallback{
	LandlockScopes: {[]string{"landlock_scopes"},
		"abstract sockets of the machine can be reached, and files are restricted by the rights this Landlock has"},
	Landlock: {[]string{"landlock"},
		"files are restricted by mounts alone; there are no Landlock scopes either"},
	WaitKillable: {[]string{"wait_killable"},
		"a signal interrupts a call that waits for its decision, and the call is evaluated again: programs with frequent signals are slower"},
	ExecVerify: {[]string{"ptrace"},
		"a program is evaluated only before its execve, and another thread can exchange its path and arguments meanwhile; env_inject is not " +
			"put back at nested programs"},
	FileServer: {[]string{"fuse", primitiveMapping},
		"the workspace is mounted as it is: no decision for each operation, no change record, and files belong to the commands' user"},
	MappedFiles: {[]string{primitiveMapping},
		"a file server decides on the workspace all the same, but programs cannot map its files: none starts there, and git fails in it"},
	Cgroup: {[]string{"cgroup"},
		"limits on memory, swap and processor are not enforced; pids_max counts the processes of the user"},
	// Which calls another listener takes is known when a session opens: see [Taken].
	CallRules: {nil,
		"signal_rules, unix_socket_rules and rules about a shared network are not evaluated where the listener of another supervisor takes " +
			"the calls; those calls fail for every command"},
	NestedCommands: {[]string{primitiveEngine},
		"only the first program of each command is judged: rules about programs that it starts are advisory, and so are env_inject at those, " +
			"signal_rules, unix_socket_rules and the network; files are restricted by Landlock alone; a process that hides may outlive its session"},
	Namespaces: {
		[]string{"user_namespace", "mount_namespace", "pid_namespace", "net_namespace", "other_namespaces", "mount_api", "private_proc",
			"new_root", "session_root"},
		"files are restricted by Landlock alone, so that names, sizes and modes of all files can be seen, and modes and times of the user's " +
			"own files changed; processes of the machine can be seen; where agentsh is not root, terminals of the user can be read and written; " +
			"sockets in the file system are restricted by their permissions alone; " +
			"there is no network, not even loopback, unless it is shared",
	},
}

// primitiveMapping is that programs can map files of a FUSE mount.
const primitiveMapping = "fuse_mapping"

// includedIn names for a mechanism the one without which it cannot work either.
var includedIn = map[string]string{
	FileServer: Namespaces, LandlockScopes: Landlock, Namespaces: NestedCommands, ExecVerify: NestedCommands, WaitKillable: NestedCommands,
}

// Mechanisms are the names that degraded may have, sorted.
func Mechanisms() []string { return slices.Sorted(maps.Keys(fallbacks)) }

// Consequence is what is not enforced in a session without a mechanism.
func Consequence(mechanism string) string { return fallbacks[mechanism].consequence }

// WithFallbacks returns the settings of degraded with further names of a command
// line.
func WithFallbacks(degraded []Setting, names []string) []Setting {
	out := slices.Clone(degraded)
	for _, name := range names {
		out = append(out, Setting{strings.TrimSpace(name), "--degraded"})
	}
	return out
}

// Allowed reports whether degraded has a mechanism, or one that includes it.
func Allowed(mechanism string, degraded []Setting) bool {
	for ; mechanism != ""; mechanism = includedIn[mechanism] {
		if slices.ContainsFunc(degraded, func(d Setting) bool { return d.Name == mechanism || d.Name == AnyMechanism }) {
			return true
		}
	}
	return false
}

// Named reports whether degraded has a mechanism by its name.
func Named(mechanism string, degraded []Setting) bool {
	return slices.ContainsFunc(degraded, func(d Setting) bool { return d.Name == mechanism })
}

// Shortest are the mechanisms without those that others among them include.
func Shortest(mechanisms []string) []string {
	return slices.DeleteFunc(slices.Clone(mechanisms), func(m string) bool { return slices.Contains(mechanisms, includedIn[m]) })
}

// FallbackFor is the mechanism that degraded must have for a session to open
// without a primitive; empty: there is none.
func FallbackFor(primitive string) string {
	for _, mechanism := range Mechanisms() {
		if slices.Contains(fallbacks[mechanism].needs(), primitive) {
			return mechanism
		}
	}
	return ""
}

// Needs are the primitives of a mechanism for this process.
func Needs(mechanism string) []string { return fallbacks[mechanism].needs() }

// needs leaves out the user namespace for root, whose sessions have none.
func (f fallback) needs() []string {
	return slices.DeleteFunc(slices.Clone(f.primitives), func(name string) bool { return name == "user_namespace" && os.Geteuid() == 0 })
}

// missing tries the mechanism; nil: it works.
func (f fallback) missing() error {
	for _, name := range f.needs() {
		if err := Try(name); err != nil {
			return err
		}
	}
	return nil
}

// Missing are the mechanisms that a session runs without, each with the reason.
type Missing map[string]error

// Has reports whether a mechanism is missing.
func (m Missing) Has(mechanism string) bool { return m[mechanism] != nil }

// Names are the missing mechanisms, sorted.
func (m Missing) Names() []string { return slices.Sorted(maps.Keys(m)) }

// Advisory says which rules nothing enforces in such a session; empty: there are none.
func (m Missing) Advisory() string {
	if !m.Has(NestedCommands) {
		return ""
	}
	return "rules about programs that a command starts are advisory: nothing stops them"
}

// String says for the audit log what a session runs without.
func (m Missing) String() string {
	var out []string
	for _, name := range m.Names() {
		out = append(out, fmt.Sprintf("without %s (%v): %s", name, m[name], fallbacks[name].consequence))
	}
	return strings.Join(out, "; ")
}

// Survey tries the mechanisms that degraded allows to be missing and returns
// those that are. A mechanism that works is used, and one is not missing where others
// hold its guarantees in such a session: see [Session.holds]. The error has
// [ErrUndecided] in its chain where a trial had no result: the mechanism may be there.
func Survey(degraded []Setting, s Session) (Missing, error) {
	missing := Missing{}
	for _, d := range expand(degraded) {
		f, known := fallbacks[d.Name]
		if !known {
			return nil, fmt.Errorf("%s: degraded has no mechanism %q (%s)", d.At, d.Name, strictyaml.DidYouMean(d.Name, Mechanisms()))
		}
		err := f.missing()
		if errors.Is(err, ErrUndecided) || errors.Is(err, ErrSilent) {
			return nil, fmt.Errorf("%s: degraded %s: %w", d.At, d.Name, err)
		}
		if err != nil {
			missing[d.Name] = err
		}
	}
	if missing.Has(Landlock) && !missing.Has(LandlockScopes) {
		missing[LandlockScopes] = missing[Landlock]
	}
	if why := missing[NestedCommands]; why != nil {
		missing[Namespaces], missing[ExecVerify] = why, why
		delete(missing, WaitKillable)
	}
	if Named(MappedFiles, degraded) && missing.Has(FileServer) && Try("fuse") == nil {
		delete(missing, FileServer)
	}
	if missing.Has(Namespaces) && !missing.Has(FileServer) {
		missing[FileServer] = errors.New("a session without mounts cannot mount it")
	}
	if missing.Has(FileServer) {
		delete(missing, MappedFiles)
	}
	maps.DeleteFunc(missing, func(mechanism string, _ error) bool { return s.holds(mechanism, missing) })
	return missing, nil
}

// expand replaces [AnyMechanism] by all mechanisms but [MappedFiles]: without it sessions
// have no file server, and everything else works in them.
func expand(degraded []Setting) []Setting {
	at := slices.IndexFunc(degraded, func(d Setting) bool { return d.Name == AnyMechanism })
	if at < 0 {
		return degraded
	}
	out := slices.DeleteFunc(slices.Clone(degraded), func(d Setting) bool { return d.Name == AnyMechanism })
	for _, name := range Mechanisms() {
		if name != MappedFiles {
			out = append(out, Setting{name, degraded[at].At})
		}
	}
	return out
}

// Explain adds to the error of a session that could not be opened which further
// fallbacks would open it, and what would not be enforced then.
func (m Missing) Explain(err error, s Session) error {
	if errors.Is(err, ErrSilent) {
		return err // no fallback avoids it, and the trials would wait for it as well
	}
	lines := []string{err.Error()}
	for _, name := range indispensable {
		if err := Try(name); err != nil && Try(primitiveEngine) == nil {
			lines = append(lines, err.Error()+"\n  every decision needs it: no fallback opens a session here")
		}
	}
	if len(lines) == 1 {
		lines = append(lines, m.further(s)...)
	}
	if len(lines) == 1 {
		return err
	}
	return &explained{err, strings.Join(lines, "\n")}
}

// indispensable are the primitives without which no session opens.
var indispensable = []string{"proc_mem"}

// further has a line for each fallback that this machine needs beyond those in
// m.
func (m Missing) further(s Session) []string {
	missing := Missing{}
	for _, name := range Mechanisms() {
		if m.Has(name) || name == Cgroup { // sessions without limits open without cgroups
			continue
		}
		if name == MappedFiles && (m.Has(FileServer) || Try("fuse") != nil) {
			continue // it is of use to a file server alone
		}
		if err := fallbacks[name].missing(); err != nil {
			missing[name] = err
		}
	}
	all := maps.Clone(missing)
	maps.Copy(all, m)
	if all.Has(Landlock) && (all.Has(Namespaces) || all.Has(NestedCommands)) {
		return all.withoutFiles()
	}
	var lines, names []string
	for _, name := range missing.Names() {
		if missing[includedIn[name]] == nil && !s.holds(name, all) {
			lines = append(lines, fmt.Sprintf("%v\n%s", missing[name], Remedy(name)))
			names = append(names, name)
		}
	}
	return append(lines, together(names)...)
}

// withoutFiles says why no fallback helps where neither mounts nor Landlock restrict files.
func (m Missing) withoutFiles() []string {
	var lines []string
	for _, name := range []string{Landlock, Namespaces, NestedCommands} {
		if m.Has(name) {
			lines = append(lines, m[name].Error())
		}
	}
	return append(lines, "  files are restricted by mounts or by Landlock, and a session here has neither: no fallback opens one")
}

// together is the line of a refusal that names several fallbacks: one setting has all.
func together(names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return name == MappedFiles && slices.Contains(names, FileServer) })
	if len(names) < 2 {
		return nil
	}
	return []string{fmt.Sprintf("  all of them: degraded: [%s] in %s, or --degraded %s", strings.Join(names, ", "), layout.Config,
		strings.Join(names, ","))}
}

// Without says in one line how the operator allows sessions without a mechanism, and what
// is not enforced then.
func Without(mechanism string) string {
	return fmt.Sprintf("to go on without it: degraded: [%[1]s] in %[2]s, or --degraded %[1]s; then %[3]s",
		mechanism, layout.Config, fallbacks[mechanism].consequence)
}

// Remedy says how the operator allows sessions without a mechanism, and what is not
// enforced then.
func Remedy(mechanism string) string {
	return fmt.Sprintf("  degraded: [%[1]s] in %[2]s, or --degraded %[1]s, opens a session without it; then %[3]s",
		mechanism, layout.Config, fallbacks[mechanism].consequence)
}

// Needing adds to an error which fallback avoids it.
func Needing(mechanism string, err error) error {
	return &explained{err, fmt.Sprintf("%v\n%s", err, Remedy(mechanism))}
}

// explained is an error with the fallbacks that would avoid it.
type explained struct {
	err  error
	text string
}

func (e *explained) Error() string { return e.text }

func (e *explained) Unwrap() error { return e.err }
