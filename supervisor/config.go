package supervisor

import (
	"cmp"
	"log/slog"
	"maps"
	"os"
	"slices"

	"agentsh/internal/trash"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/audit"
	"agentsh/supervisor/egress"
	"agentsh/supervisor/netns"
	"agentsh/supervisor/probe"
)

// OperatorConfig is the operator's configuration. Package host reads it from a file.
type OperatorConfig struct {
	// Policy is the policy file used when a command line names none.
	Policy string
	// Audit is the audit log used when a command line names none.
	Audit string
	// Vars are further ${NAME} values for policies.
	Vars map[string]string
	// EnvInject is set in the environment of every command; a policy's own
	// env_inject wins key by key.
	EnvInject map[string]string
	// User is the name of the user that commands run as when the supervisor
	// runs as root.
	User string
	// Workspace is the directory that commands work in where a command line
	// names none; empty: the current one.
	Workspace string
	// Path is PATH of commands, and where their programs are looked up.
	Path string
	// Require is what must be proven before a session opens.
	Require []probe.Setting
	// Egress is how sessions reach what their policies allow; its credentials
	// are not the operator's to configure here.
	Egress netns.Outside
	// Degraded is what a session may lack where the machine has none.
	Degraded []probe.Setting
	// Container is what applies in a container of Docker or podman. See host.InContainer.
	Container ContainerConfig
	// ForbidEngine are engines that no session may use. See [Engines].
	ForbidEngine []probe.Setting
	// CacheSeconds is how old names and attributes may be in directories that
	// cannot be watched; 0: a second.
	CacheSeconds int
	// NoGitIdentity keeps the user's name and email from git in sessions.
	NoGitIdentity bool
	// Trash bounds what soft_delete keeps for all sessions of a user together.
	Trash trash.Limits
}

// ContainerConfig is the part of a configuration for containers.
type ContainerConfig struct {
	// Policy is the policy file used when a command line names none and the container
	// allows no namespaces. It takes effect with namespaces in Degraded.
	Policy string
	// Degraded is what a session may lack there.
	Degraded []probe.Setting
	// Here says that this is such a container: commands run as the owner of the workspace.
	Here bool
	// WholeTrees says that sessions here have no namespaces: no rule holds inside a workspace.
	WholeTrees bool
}

// DefaultOperator is the configuration without a file.
var DefaultOperator = OperatorConfig{
	User:  "sandbox",
	Trash: trash.DefaultLimits,
	Path:  "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin",
}

// WithDegraded is the configuration with further mechanisms of a command line.
func (c OperatorConfig) WithDegraded(names []string) OperatorConfig {
	c.Degraded = probe.WithFallbacks(c.Degraded, names)
	return c
}

// withSettings is a list of the operator with what a request adds.
func withSettings(operator []probe.Setting, requested []wire.Setting) []probe.Setting {
	out := slices.Clone(operator)
	for _, s := range requested {
		out = append(out, probe.Setting(s))
	}
	return out
}

// Request is a session that is asked for.
type Request struct {
	Boot    wire.Bootstrap // directories, store, network, fallbacks and credentials
	Policy  *policy.Policy
	Audit   *audit.Log
	Cwd     string // where commands start, inside; empty: the first governed directory
	Channel bool   // approvals can be answered over a channel
}

// SessionConfig is the configuration of a requested session. It is the only
// function that fills a [Config].
func SessionConfig(operator OperatorConfig, r Request) Config {
	inject := map[string]string{}
	maps.Copy(inject, operator.EnvInject)
	maps.Copy(inject, r.Boot.EnvInject)
	out := operator.Egress
	for _, c := range r.Boot.Credentials {
		out.Credentials = append(out.Credentials, egress.Credential(c))
	}
	c := Config{
		Policy: r.Policy,
		Files: Files{
			Governed: r.Boot.Governed, Hidden: r.Boot.Hidden, Store: r.Boot.StoreDir, Trash: operator.Trash, CacheSeconds: operator.CacheSeconds,
			Listed: r.Boot.Resume != nil,
		},
		Environment: Environment{Inject: inject, Dir: r.Boot.EnvDir, Home: r.Boot.Home, Path: cmp.Or(r.Boot.Path, operator.Path)},
		Network:     Network{Shared: r.Boot.Network || r.Boot.NetworkBy != "", By: r.Boot.NetworkBy, Vars: r.Boot.NetworkVars, Egress: out},
		Cwd:         r.Cwd,
		User:        operator.User,
		Require:     withSettings(operator.Require, r.Boot.Require),
		Forbidden:   operator.ForbidEngine,
		Degraded:    withSettings(operator.Degraded, r.Boot.Degraded),
		Program:     r.Boot.Program,
		Channel:     r.Channel,
		AsOwner:     operator.Container.Here,
		Audit:       r.Audit,
		Log:         slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if !operator.NoGitIdentity {
		c.Environment.Identity = r.Boot.Identity
	}
	if c.Cwd == "" && len(r.Boot.Governed) > 0 {
		c.Cwd = r.Boot.Governed[0].Path
	}
	return c
}
