package host

import (
	"slices"

	"agentsh/internal/wire"
	"agentsh/seccomp"
	"agentsh/supervisor"
	"agentsh/supervisor/probe"
)

// Enforcement is what enforces a group of rules.
type Enforcement string

// The kinds of enforcement.
const (
	ByKernel     Enforcement = "kernel"     // what is not allowed does not exist or fails in the kernel
	BySupervisor Enforcement = "supervisor" // the kernel stops the caller until the supervisor has decided
	Advisory     Enforcement = "advisory"   // programs comply unless they mean harm
	NotEnforced  Enforcement = "not enforced"
)

// Who holds a group of rules, see [Group].
const (
	ByAgentsh = "agentsh"
	NotHeld   = "not held"
)

// holds reports whether no program can do otherwise.
func (e Enforcement) holds() bool { return e == ByKernel || e == BySupervisor }

// Group is one group of rules and what enforces it here.
type Group struct {
	Group         string      `json:"group"`
	EnforcedBy    Enforcement `json:"enforced_by"`
	HeldBy        string      `json:"held_by"` // "agentsh" or "not held"; another supervisor may hold it
	How           string      `json:"how"`
	Missing       []string    `json:"missing,omitempty"`        // primitives
	Fallbacks     []string    `json:"fallbacks,omitempty"`      // mechanisms of degraded with which sessions open without them
	WithFallbacks string      `json:"with_fallbacks,omitempty"` // what would enforce it then; empty: degraded has them already
	Taken         []string    `json:"taken,omitempty"`          // calls that another listener takes: rules about them need call_rules
	Failed        string      `json:"failed,omitempty"`         // what the scratch session did instead
	Refused       []string    `json:"refused,omitempty"`        // settings with which no session is opened
}

// group is what one group of rules needs.
type group struct {
	name     string
	by       Enforcement
	how      string
	needs    []string // primitives
	check    string   // of the scratch session; empty: none
	settings []string // of the policy
}

// limitSettings are the limits that a policy can set.
var limitSettings = []string{
	"resource_limits.pids_max", "resource_limits.open_files", "resource_limits.max_memory_mb",
	"resource_limits.memory_swap_max_mb", "resource_limits.cpu_quota_percent",
	"resource_limits.disk_write_mb", "resource_limits.disk_read_bps_max", "resource_limits.disk_write_bps_max",
	"resource_limits.command_timeout", "resource_limits.session_timeout", "resource_limits.idle_timeout",
}

// Groups of machines alone: a session has one network.
const (
	sharedNetwork = "network, shared"
	withoutProxy  = "network, without a proxy"
)

// Parts of what is said of a group.
const (
	scopesBeneath       = "; Landlock scopes beneath"
	limitsWithoutGroups = "hard resource limits from before the execve; control groups are not there, so the settings for them are refused"
)

// groupTable is every group of rules, with what it needs.
var groupTable = []group{
	{wire.GroupCommands, BySupervisor, "every execve waits for its decision and is verified before its first instruction",
		[]string{"engine", "ptrace", "proc_mem"}, "command", []string{"command_rules", "exec_from"}},
	{wire.GroupFiles, ByKernel, "a root directory of its own: what no rule allows does not exist there; Landlock beneath",
		[]string{"mount_namespace", "mount_api", "private_proc", "new_root", "landlock"}, "outside", []string{"file_rules"}},
	{wire.GroupWorkspace, BySupervisor, "a file server decides every operation",
		[]string{"mount_namespace", "fuse", "fuse_mapping"}, "file", []string{"file_rules"}},
	{wire.GroupRepositories, BySupervisor, "the file server evaluates the content that git reads in them",
		[]string{"mount_namespace", "fuse", "fuse_mapping"}, "file", []string{"git_guard"}},
	{wire.GroupSignals, ByKernel, "a pid namespace keeps them inside; those with rules by process are notified",
		[]string{"pid_namespace", "engine"}, "", []string{"signal_rules"}},
	{wire.GroupNetwork, ByKernel, "a network of its own: loopback, and the supervisor's proxy as the only way out",
		[]string{"net_namespace"}, "network", []string{"network_rules", "resource_limits.net_bandwidth_mbps"}},
	{
		withoutProxy,
		ByKernel,
		"TCP and DNS of programs that ignore proxy variables are redirected to it; other datagrams are dropped",
		[]string{"net_namespace", "net_redirect"},
		"",
		nil,
	},
	{
		sharedNetwork,
		BySupervisor,
		"Landlock refuses TCP connections, the filter all other sockets of the Internet; the supervisor connects to evaluated addresses",
		[]string{"landlock_net", "engine", "pidfd_getfd"},
		"",
		nil,
	},
	{
		wire.GroupUnixSockets,
		ByKernel,
		"only sockets of the machine that a rule names are in the root directory; the network namespace separates abstract ones",
		[]string{"mount_namespace", "net_namespace"},
		"",
		[]string{"unix_socket_rules"},
	},
	{wire.GroupCredentials, BySupervisor, "the proxy puts them into requests to their endpoints; no command ever has the values",
		nil, "", nil},
	{wire.GroupLimits, ByKernel, "hard resource limits and control groups from before the execve",
		[]string{"limits"}, "", limitSettings},
	{wire.GroupEnv, BySupervisor, "every environment is built in one place",
		nil, "", nil},
	{wire.GroupEnvNested, BySupervisor, "an execve without it gets it before its first instruction",
		[]string{"engine", "ptrace", "proc_mem"}, "env_nested", nil},
	{wire.GroupBuiltins, Advisory, "bash with BASH_ENV turns off kill and guards umask and ulimit; the groups above restrict what they do",
		nil, "", nil},
}

// reduced is what enforces a group in a session without a mechanism.
type reduced struct {
	mechanism string
	by        Enforcement
	how       string
}

// reducedTable has for each group what is left without a mechanism, the most
// serious first.
var reducedTable = map[string][]reduced{
	wire.GroupCommands: {
		{probe.NestedCommands, Advisory, "the first program of each command is judged; rules about programs that it starts are advisory"},
		{probe.ExecVerify, BySupervisor, "every execve waits for its decision; what another thread exchanges meanwhile is not seen"}},
	wire.GroupFiles: {
		{probe.Namespaces, ByKernel, "Landlock: what no rule allows cannot be opened; names, sizes and modes can be seen"},
		{probe.Landlock, ByKernel, "a root directory of its own: what no rule allows does not exist there"}},
	wire.GroupWorkspace: {
		{probe.Namespaces, ByKernel, "Landlock, for whole trees: rules that differ inside one are refused at start"},
		{probe.FileServer, ByKernel, "mounts, for whole trees: rules that differ inside one are refused at start"},
		{probe.MappedFiles, BySupervisor, "a file server decides every operation; no program can map or execute files there, and git fails"}},
	wire.GroupRepositories: {
		{probe.Namespaces, NotEnforced, "a policy with git_guard is refused at start"},
		{probe.FileServer, NotEnforced, "a policy with git_guard is refused at start"},
		{probe.MappedFiles, BySupervisor, "as with a file server, but git itself fails there: it maps its files"}},
	wire.GroupSignals: {
		{probe.NestedCommands, Advisory, "signal_rules are not evaluated; Landlock scopes keep signals inside where the kernel has them"},
		{probe.Namespaces, BySupervisor, "notification refuses signals to processes of others; so do Landlock scopes where the kernel has them"}},
	wire.GroupNetwork: {
		{probe.NestedCommands, Advisory, "Landlock refuses TCP where the kernel can (Linux 6.7), and nothing refuses other sockets"},
		{probe.Namespaces, ByKernel, "the filter refuses every socket but UNIX"}},
	wire.GroupUnixSockets: {
		{
			probe.Namespaces,
			NotEnforced,
			"by the permissions of the file system alone; Landlock scopes keep abstract ones inside where the kernel has them",
		}},
	wire.GroupEnvNested: {
		{probe.NestedCommands, Advisory, "programs get it from those that start them, unless these remove it"},
		{probe.ExecVerify, NotEnforced, "an execve without it goes on without it"}},
}

// scoped are the groups that Landlock's scopes enforce a second time.
var scoped = map[string]bool{wire.GroupSignals: true, wire.GroupUnixSockets: true}

// takenCalls are the calls that rules of a group have judged.
var takenCalls = map[string][]string{
	wire.GroupSignals: seccomp.SignalCalls(), wire.GroupUnixSockets: {"connect", "bind", "sendto"}, sharedNetwork: {"connect", "listen"},
}

// groups says for every group what enforces it, from the primitives that work,
// the outcome of the scratch session and the operator's degraded.
func groups(works map[string]bool, trial Trial, degraded []probe.Setting) []Group {
	var out []Group
	for _, g := range groupTable {
		r := Group{Group: g.name, EnforcedBy: g.by, How: g.how}
		needs := g.needs
		if len(reducedTable[g.name]) > 0 && !slices.Contains(needs, "engine") { // without one a session has no namespaces either
			needs = append(slices.Clone(needs), "engine")
		}
		for _, need := range needs {
			if !works[need] {
				r.Missing = append(r.Missing, need)
			}
		}
		if g.check != "" && trial.Opens {
			if err := trial.check(g.check); err != nil {
				r.Failed = err.Error()
			}
		}
		for _, key := range g.settings {
			if !supervisor.Supports(key, works["cgroup"]) {
				r.Refused = append(r.Refused, key)
			}
		}
		if g.name == wire.GroupLimits && !works["cgroup"] {
			r.How = limitsWithoutGroups
		}
		if len(r.Missing) > 0 {
			r.reduce(works, degraded)
		} else if scoped[g.name] && works["landlock_scopes"] {
			r.How += scopesBeneath
		}
		for _, call := range takenCalls[g.name] {
			if trial.Beside.Takes(call) {
				r.Taken = append(r.Taken, call)
			}
		}
		if r.EnforcedBy == Advisory { // the trial tried what nothing enforces
			r.Failed = ""
		}
		if r.Failed != "" {
			r.EnforcedBy = NotEnforced
		}
		if r.HeldBy = NotHeld; r.EnforcedBy.holds() {
			r.HeldBy = ByAgentsh
		}
		out = append(out, r)
	}
	return slices.Clip(out)
}

// reduce says what enforces a group with missing primitives: with the operator's
// degraded, or what would with further fallbacks.
func (g *Group) reduce(works map[string]bool, degraded []probe.Setting) {
	g.EnforcedBy = NotEnforced
	for _, primitive := range g.Missing {
		mechanism := probe.FallbackFor(primitive)
		if works["fuse"] && mechanism == probe.FileServer && probe.Named(probe.MappedFiles, degraded) {
			mechanism = probe.MappedFiles
		}
		if mechanism == "" {
			g.Fallbacks = nil
			return
		}
		if !slices.Contains(g.Fallbacks, mechanism) {
			g.Fallbacks = append(g.Fallbacks, mechanism)
		}
	}
	g.Fallbacks = probe.Shortest(g.Fallbacks)
	namespaces := probe.Needs(probe.Namespaces)
	for _, left := range reducedTable[g.Group] {
		applies := slices.Contains(g.Fallbacks, left.mechanism) ||
			left.mechanism == probe.NestedCommands && !works["engine"] ||
			left.mechanism == probe.Namespaces && (!works["engine"] || slices.ContainsFunc(namespaces, func(p string) bool { return !works[p] }))
		if !applies {
			continue
		}
		if slices.ContainsFunc(g.Fallbacks, func(m string) bool { return !probe.Allowed(m, degraded) }) {
			g.WithFallbacks = string(left.by) + ", " + left.how
			return
		}
		g.EnforcedBy, g.How = left.by, left.how
		return
	}
}
