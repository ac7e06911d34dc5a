package supervisor

import (
	"slices"
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
	"resource_limits.net_bandwidth_mbps", "resource_limits.command_timeout", "resource_limits.session_timeout", "resource_limits.idle_timeout",
}

// groupTable is every group of rules, with what it needs.
var groupTable = []group{
	{"commands", BySupervisor, "every execve waits for its verdict and is verified before its first instruction",
		[]string{"seccomp_notify", "ptrace", "proc_mem"}, "command", []string{"command_rules", "exec_from"}},
	{"files outside the workspace", ByKernel, "a root of its own: what no rule allows is not there; Landlock beneath",
		[]string{"mount_namespace", "mount_api", "landlock"}, "outside", []string{"file_rules"}},
	{"files in the workspace", BySupervisor, "a file server decides every operation",
		[]string{"mount_namespace", "fuse"}, "file", []string{"file_rules"}},
	{"signals", ByKernel, "a pid namespace and Landlock scopes keep them inside; signal_rules are judged by notification",
		[]string{"pid_namespace", "landlock_scopes", "seccomp_notify"}, "", []string{"signal_rules"}},
	{"network", ByKernel, "a network of its own without a way out",
		[]string{"net_namespace"}, "network", []string{"network_rules"}},
	{"unix sockets", ByKernel, "sockets of the machine are not in the session's root; Landlock scopes keep abstract ones inside",
		[]string{"mount_namespace", "landlock_scopes"}, "", []string{"unix_socket_rules"}},
	{"limits", ByKernel, "hard resource limits and control groups from before the execve",
		[]string{"limits"}, "", limitSettings},
	{"env_inject", BySupervisor, "every environment is built in one place",
		nil, "", nil},
	{"env_inject, nested", BySupervisor, "an execve without it is given it before its first instruction",
		[]string{"seccomp_notify", "ptrace", "proc_mem"}, "env_nested", nil},
	{"builtins of shells", Advisory, "bash turns off kill, ulimit and umask where it reads BASH_ENV; what they do is held by the groups above",
		nil, "", nil},
}

// groups tells for every group what holds it, from what works and what the
// scratch session showed.
func groups(works map[string]bool, trial Trial) []Held {
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
		if len(h.Missing) > 0 || h.Failed != "" {
			h.By = NotHeld
		}
		out = append(out, h)
	}
	return slices.Clip(out)
}
