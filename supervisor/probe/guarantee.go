package probe

import (
	"strings"

	"agentsh/supervisor/probe/trial"
)

// The guarantees that require may have beside mechanisms. Which mechanism holds one
// depends on the machine and the session.
const (
	guaranteeSignals = "signals"
	guaranteeSockets = "abstract_sockets"
	guaranteeFiles   = "files"
)

// HasScopes reports whether sessions get Landlock's scopes.
func (m Missing) HasScopes() bool {
	return !m.Has(Landlock) && !m.Has(LandlockScopes) && trial.LandlockABI() >= trial.LandlockScopes
}

// holds reports whether other mechanisms hold in such a session what a missing one would.
//
// Landlock's scopes keep signals and abstract sockets inside. A pid namespace has no
// number for a process outside, and the kernel compares the namespace of a process
// descriptor with the sender's: pid_namespaces(7), pidfd_send_signal(2). Abstract
// sockets belong to a network namespace: unix(7).
func (s Session) holds(mechanism string, missing Missing) bool {
	switch mechanism {
	case LandlockScopes:
		return !missing.Has(Namespaces) && !s.SharedNetwork
	case WaitKillable: // a tracer holds calls whatever signals come
		return !s.Untraced && !missing.Has(ExecVerify) && Try("seccomp_trace") == nil
	}
	return false
}

// Replaced are the mechanisms that are missing here and whose guarantees others hold.
func (s Session) Replaced(missing Missing) []string {
	if !missing.HasScopes() && s.holds(LandlockScopes, missing) {
		return []string{LandlockScopes}
	}
	return nil
}

// Holders names for each guarantee of a session the mechanisms that hold it, as
// primitives, the strongest first. A guarantee that nothing holds is absent.
func (s Session) Holders(missing Missing) map[string]string {
	out := map[string]string{}
	hold := func(guarantee, mechanism string, holds bool) {
		if holds {
			out[guarantee] = strings.TrimPrefix(out[guarantee]+" "+mechanism, " ")
		}
	}
	namespaces := !missing.Has(Namespaces)
	hold(guaranteeFiles, "mount_namespace", namespaces)
	hold(guaranteeFiles, "landlock", !missing.Has(Landlock))
	hold(guaranteeSignals, "pid_namespace", namespaces)
	hold(guaranteeSignals, primitiveEngine, !namespaces && !missing.Has(NestedCommands))
	hold(guaranteeSignals, "landlock_scopes", missing.HasScopes())
	hold(guaranteeSockets, "net_namespace", namespaces && !s.SharedNetwork)
	hold(guaranteeSockets, "landlock_scopes", missing.HasScopes())
	hold("net_namespace", "net_namespace", namespaces && !s.SharedNetwork)
	hold("file_governed", "fuse", s.Governed && !missing.Has(FileServer))
	hold("exec_verify", "ptrace", !missing.Has(ExecVerify))
	hold("env_inject_nested", "ptrace", !missing.Has(ExecVerify))
	return out
}
