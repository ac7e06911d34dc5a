package supervisor

import (
	"slices"

	"agentsh/supervisor/probe"
)

// Holding is what holds a group of rules.
type Holding string

// The ways in which rules hold.
const (
	ByKernel     Holding = "kernel"     // what is not allowed does not exist or fails in the kernel
	BySupervisor Holding = "supervisor" // the kernel stops the caller until the supervisor has judged
	Advisory     Holding = "advisory"   // programs that mean no harm keep to it
	NotHeld      Holding = "not held"
)

// Held is one group of rules and what holds it here.
type Held struct {
	Group   string   `json:"group"`
	By      Holding  `json:"held_by"`
	How     string   `json:"how"`
	Missing []string `json:"missing,omitempty"` // primitives
	Words   []string `json:"words,omitempty"`   // of degraded, with which sessions open all the same
	With    string   `json:"with,omitempty"`    // what would hold it with those words, where they are not given
	Failed  string   `json:"failed,omitempty"`  // what the scratch session showed instead
	Refused []string `json:"refused,omitempty"` // settings with which no session is opened
}

// group is what one group of rules needs.
type group struct {
	name     string
	by       Holding
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

// groupTable is every group of rules, with what it needs.
var groupTable = []group{
	{"commands", BySupervisor, "every execve waits for its verdict and is verified before its first instruction",
		[]string{"seccomp_notify", "ptrace", "proc_mem"}, "command", []string{"command_rules", "exec_from"}},
	{"files outside the workspace", ByKernel, "a root of its own: what no rule allows is not there; Landlock beneath",
		[]string{"mount_namespace", "mount_api", "private_proc", "landlock"}, "outside", []string{"file_rules"}},
	{"files in the workspace", BySupervisor, "a file server decides every operation",
		[]string{"mount_namespace", "fuse"}, "file", []string{"file_rules"}},
	{"repositories", BySupervisor, "the file server judges by content what git reads in them",
		[]string{"mount_namespace", "fuse"}, "file", []string{"git_guard"}},
	{"signals", ByKernel, "a pid namespace and Landlock scopes keep them inside; those that rules decide on by process are notified",
		[]string{"pid_namespace", "landlock_scopes", "seccomp_notify"}, "", []string{"signal_rules"}},
	{"network", ByKernel, "a network of its own: loopback, and the supervisor's proxy as the only way out",
		[]string{"net_namespace"}, "network", []string{"network_rules", "resource_limits.net_bandwidth_mbps"}},
	{
		"network, without a proxy",
		ByKernel,
		"TCP and DNS of programs that ignore proxy variables are redirected to it; other datagrams are dropped",
		[]string{"net_namespace", "net_redirect"},
		"",
		nil,
	},
	{
		"network, shared",
		BySupervisor,
		"Landlock refuses TCP connections, the filter all other sockets of the Internet; the supervisor connects what it has judged",
		[]string{"landlock_net", "seccomp_notify", "pidfd_getfd"},
		"",
		nil,
	},
	{
		"unix sockets",
		ByKernel,
		"only sockets of the machine that a rule names are in the session's root; Landlock scopes keep abstract ones inside",
		[]string{"mount_namespace", "landlock_scopes"},
		"",
		[]string{"unix_socket_rules"},
	},
	{"limits", ByKernel, "hard resource limits and control groups from before the execve",
		[]string{"limits"}, "", limitSettings},
	{"env_inject", BySupervisor, "every environment is built in one place",
		nil, "", nil},
	{"env_inject, nested", BySupervisor, "an execve without it is given it before its first instruction",
		[]string{"seccomp_notify", "ptrace", "proc_mem"}, "env_nested", nil},
	{"builtins of shells", Advisory, "bash turns off kill, ulimit and umask where it reads BASH_ENV; what they do is held by the groups above",
		nil, "", nil},
}

// lesser is what holds a group in a session that does without something.
type lesser struct {
	word string
	by   Holding
	how  string
}

// lesserTable tells for each group what is left by each word, the greatest loss
// first.
var lesserTable = map[string][]lesser{
	"commands": {{probe.ExecVerify, BySupervisor, "every execve waits for its verdict; what another thread exchanges meanwhile is not seen"}},
	"files outside the workspace": {
		{probe.Namespaces, ByKernel, "Landlock: what no rule allows cannot be opened; names, sizes and modes can be seen"},
		{probe.Landlock, ByKernel, "a root of its own: what no rule allows is not there"}},
	"files in the workspace": {
		{probe.Namespaces, ByKernel, "Landlock, for whole trees: rules that differ inside one are refused at start"},
		{probe.FileServer, ByKernel, "mounts, for whole trees: rules that differ inside one are refused at start"}},
	"repositories": {
		{probe.Namespaces, NotHeld, "a policy with git_guard is refused at start"},
		{probe.FileServer, NotHeld, "a policy with git_guard is refused at start"}},
	"signals": {
		{probe.Namespaces, BySupervisor, "notification refuses signals to processes of others; so do Landlock scopes where the kernel has them"},
		{probe.Landlock, ByKernel, "a pid namespace keeps them inside; signal_rules are judged by notification"},
		{probe.LandlockScopes, ByKernel, "a pid namespace keeps them inside; signal_rules are judged by notification"}},
	"network": {{probe.Namespaces, ByKernel, "the filter refuses every socket but UNIX"}},
	"unix sockets": {
		{
			probe.Namespaces,
			NotHeld,
			"by the permissions of the file system alone; Landlock scopes keep abstract ones inside where the kernel has them",
		},
		{probe.Landlock, ByKernel, "sockets of the machine are not in the root directory; the network namespace separates abstract ones"},
		{probe.LandlockScopes, ByKernel, "sockets of the machine are not in the root directory; the network namespace separates abstract ones"}},
	"env_inject, nested": {{probe.ExecVerify, NotHeld, "an execve without it goes on without it"}},
}

// groups tells for every group what holds it, from what works, what the scratch
// session showed and what the operator lets sessions do without.
func groups(works map[string]bool, trial Trial, degraded []probe.Setting) []Held {
	var out []Held
	for _, g := range groupTable {
		h := Held{Group: g.name, By: g.by, How: g.how}
		for _, need := range g.needs {
			if !works[need] {
				h.Missing = append(h.Missing, need)
			}
		}
		if g.check != "" && trial.Opens {
			if err := trial.check(g.check); err != nil {
				h.Failed = err.Error()
			}
		}
		for _, key := range g.settings {
			if !held(key, works["cgroup"]) {
				h.Refused = append(h.Refused, key)
			}
		}
		if len(h.Missing) > 0 {
			h.degrade(g.name, works, degraded)
		}
		if h.Failed != "" {
			h.By = NotHeld
		}
		out = append(out, h)
	}
	return slices.Clip(out)
}

// degrade tells what is left of a group that lacks something: with the words
// that the operator gave, or what would be with words that nobody gave.
func (h *Held) degrade(name string, works map[string]bool, degraded []probe.Setting) {
	h.By = NotHeld
	for _, primitive := range h.Missing {
		if word := probe.FallbackFor(primitive); !slices.Contains(h.Words, word) {
			h.Words = append(h.Words, word)
		}
	}
	if slices.Contains(h.Words, "") {
		h.Words = nil // no word helps
		return
	}
	h.Words = probe.Shortest(h.Words)
	namespaces := probe.Needs(probe.Namespaces)
	for _, left := range lesserTable[name] {
		lacking := slices.Contains(h.Words, left.word) ||
			left.word == probe.Namespaces && slices.ContainsFunc(namespaces, func(p string) bool { return !works[p] })
		if !lacking {
			continue
		}
		if slices.ContainsFunc(h.Words, func(w string) bool { return !probe.Allowed(w, degraded) }) {
			h.With = string(left.by) + ", " + left.how
			return
		}
		h.By, h.How = left.by, left.how
		return
	}
}
