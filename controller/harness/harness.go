// Package harness loads the YAML files that describe an agent.
//
// [Load] reads a file and its bases, checks every layer strictly against one
// table, merges the layers and reports all problems at once, each with its
// position. [Harness.Expand] replaces ${NAME} references. [Harness.Refusals]
// lists the settings that no step of a run reads. [Expanded.Files] returns the
// files that a run delivers into the sandbox.
package harness

import (
	"path/filepath"
	"strings"

	"agentsh/controller/openshell"
)

// Value is one setting with the position where it is set.
type Value[T any] struct {
	V  T
	At Origin
}

// IsSet reports whether a layer sets the value. An explicit zero counts as set.
func (v Value[T]) IsSet() bool { return !v.At.IsZero() }

// Or is the value, or def if no layer sets it.
func (v Value[T]) Or(def T) T {
	if v.IsSet() {
		return v.V
	}
	return def
}

// The values of a harness.
type (
	// Text is a string setting.
	Text = Value[string]
	// Texts is a list of strings, each with its position.
	Texts = []Text
	// Map is a map of strings, each with its position.
	Map = map[string]Text
)

// Harness describes one agent: the file merged with all its layers. It does not
// change after Load, so several goroutines may read it.
type Harness struct {
	File  string // the file name passed to Load
	Root  string // absolute directory to which paths are relative, symbolic links resolved
	Forge string // the forge whose blocks were merged; empty: none

	Version         Value[int]          `harness:"version"`
	SchemaVersion   Value[int]          `harness:"schema_version"`
	Agent           Text                `harness:"agent"`
	Description     Text                `harness:"description"`
	Doc             Text                `harness:"doc"`
	Role            Text                `harness:"role"`
	Slug            Text                `harness:"slug"`
	Runtime         Text                `harness:"runtime"`
	Command         Texts               `harness:"command"`
	Image           Text                `harness:"image"`
	Policy          Text                `harness:"policy"`
	Model           Text                `harness:"model"`
	Effort          Text                `harness:"effort"`
	Skills          []Skill             `harness:"skills"`
	Plugins         []Plugin            `harness:"plugins"`
	Providers       Texts               `harness:"providers"`
	MCPServers      []MCPServer         `harness:"mcp_servers"`
	HostFiles       []HostFile          `harness:"host_files"`
	Env             Env                 `harness:"env"`
	PreScript       Text                `harness:"pre_script"`
	PostScript      Text                `harness:"post_script"`
	PreTimeout      Value[int]          `harness:"pre_script_timeout_seconds"`
	PostTimeout     Value[int]          `harness:"post_script_timeout_seconds"`
	AgentInput      Text                `harness:"agent_input"`
	ScriptDirectory Text                `harness:"script_directory"`
	ValidationLoop  ValidationLoop      `harness:"validation_loop"`
	TimeoutMinutes  Value[int]          `harness:"timeout_minutes"`
	SandboxTimeout  Value[int]          `harness:"sandbox_timeout_seconds"` // seconds
	ReadonlyRepo    Value[bool]         `harness:"readonly_repo"`
	Backend         Text                `harness:"backend"`
	Connect         Text                `harness:"connect"`
	ConnectKey      Text                `harness:"connect_key"`
	Degraded        Texts               `harness:"degraded"` // mechanisms that the sandbox may run without
	Require         Texts               `harness:"require"`  // what must be proven in it
	Container       Container           `harness:"container"`
	Kubernetes      Kubernetes          `harness:"kubernetes"`
	Security        Security            `harness:"security"`
	OpenShell       OpenShell           `harness:"openshell"`
	Trigger         Text                `harness:"trigger"`
	Steer           Steer               `harness:"steer"`
	APIServers      []APIServer         `harness:"api_servers"`
	PrivilegeLevels Map                 `harness:"privilege_levels"`
	RemoteResources Texts               `harness:"allowed_remote_resources"`
	RuntimeFetch    Value[bool]         `harness:"allow_runtime_fetch"`
	MaxFetches      Value[int]          `harness:"max_runtime_fetches"`
	PreflightCheck  Text                `harness:"preflight_check"`
	Definitions     map[string]Provider // the providers named by Providers, by name
	Profiles        []openshell.Profile // the provider profiles of OpenShell.Profiles, and those of the providers' types
	EnvFileVars     Texts               // the variables of those .env files in HostFiles whose content is known, by name

	envFiles  Map  // EnvFileVars with their values, references empty
	requested bool // see [Options.Requested]
	merged    *tree
	skipped   Problems // blocks that were not merged because their guard cannot be evaluated
}

// Env are the variables of a run.
type Env struct {
	Runner  Map `harness:"runner"`  // host scripts only
	Sandbox Map `harness:"sandbox"` // delivered into the sandbox
}

// HostFile is a file of the host delivered into the sandbox.
type HostFile struct {
	Src      Text        `harness:"src"`  // relative to the root, or absolute
	Dest     Text        `harness:"dest"` // absolute, clean, inside the sandbox
	Expand   Value[bool] `harness:"expand"`
	Optional Value[bool] `harness:"optional"`
}

// Skill is a directory with a SKILL.md.
type Skill struct {
	Path      Text `harness:"path"`
	Overrides Map  `harness:"overrides"` // path inside the skill, to a local file; empty: the file is left out
}

// Name is the last element of the directory's path.
func (s Skill) Name() string { return filepath.Base(s.Path.V) }

// Plugin is a directory that a runtime loads as a plugin.
type Plugin struct {
	Path Text  `harness:"path"`
	Env  Map   `harness:"env"`
	Args Texts `harness:"pi.args"`
}

// Name is the last element of the directory's path.
func (p Plugin) Name() string { return filepath.Base(p.Path.V) }

// MCPServer is an MCP server that the agent starts in the sandbox, behind a filter.
type MCPServer struct {
	Name    Text  `harness:"name"`
	Command Texts `harness:"command"`
	Allow   Texts `harness:"tools.allow"`
	Deny    Texts `harness:"tools.deny"`
	Pins    Text  `harness:"pins"` // a file; empty: nothing is pinned
}

// ValidationLoop configures the validation of output on the host.
type ValidationLoop struct {
	Script         Text       `harness:"script"`
	Schema         Text       `harness:"schema"`
	MaxIterations  Value[int] `harness:"max_iterations"`
	Timeout        Value[int] `harness:"timeout_seconds"`
	FeedbackMode   Text       `harness:"feedback_mode"`
	PreflightCheck Text       `harness:"preflight_check"`
}

// Container configures the container of a sandbox.
type Container struct {
	Harness        Value[bool]    `harness:"harness"`
	Backend        Text           `harness:"backend"`
	EnvPassthrough Texts          `harness:"env_passthrough"`
	ConfineAgent   Text           `harness:"confine_agent"`
	ModelHosts     Texts          `harness:"model_hosts"`
	User           Text           `harness:"user"`
	MemoryMB       Value[int]     `harness:"memory_mb"`
	CPUs           Value[float64] `harness:"cpus"`
	PIDs           Value[int]     `harness:"pids"`
	DiskMB         Value[int]     `harness:"disk_mb"`
	Network        Text           `harness:"network"`
	Mounts         []Mount        `harness:"mounts"`
}

// Values of confine_agent.
const (
	ConfineAlways     = "always"
	ConfineIfPossible = "if_possible"
	ConfineNever      = "never"
)

// Mount is a directory of the engine's machine, or a volume, in a container.
type Mount struct {
	Source   Text        `harness:"source"`
	Target   Text        `harness:"target"`
	Writable Value[bool] `harness:"writable"`
}

// Kubernetes configures the pod of a sandbox.
type Kubernetes struct {
	AgentshImage   Text           `harness:"agentsh_image"`
	PullPolicy     Text           `harness:"image_pull_policy"`
	PullSecrets    Texts          `harness:"image_pull_secrets"`
	ServiceAccount Text           `harness:"service_account"`
	RuntimeClass   Text           `harness:"runtime_class"`
	PriorityClass  Text           `harness:"priority_class"`
	NodeSelector   Map            `harness:"node_selector"`
	Tolerations    []Toleration   `harness:"tolerations"`
	RequestMemory  Value[int]     `harness:"requests.memory_mb"`
	RequestCPUs    Value[float64] `harness:"requests.cpus"`
	FUSEDevice     Text           `harness:"fuse_device"`
	Seccomp        Text           `harness:"seccomp"`
	AppArmor       Text           `harness:"apparmor"`
	UserNamespace  Value[bool]    `harness:"user_namespace"`
	NetworkPolicy  Value[bool]    `harness:"network_policy"`
	DNSNamespace   Text           `harness:"dns_namespace"`
	Labels         Map            `harness:"labels"`
	Annotations    Map            `harness:"annotations"`
	AgentSandbox   Value[bool]    `harness:"agent_sandbox"`
	WarmPool       Text           `harness:"warm_pool"`
	StartSeconds   Value[int]     `harness:"start_seconds"`
	MaxSeconds     Value[int]     `harness:"max_seconds"`
}

// Toleration is a taint of nodes that a pod tolerates.
type Toleration struct {
	Key      Text       `harness:"key"`
	Operator Text       `harness:"operator"`
	Value    Text       `harness:"value"`
	Effect   Text       `harness:"effect"`
	Seconds  Value[int] `harness:"seconds"`
}

// Security configures scanners and hooks.
type Security struct {
	Enabled      Value[bool]  `harness:"enabled"`
	FailMode     Text         `harness:"fail_mode"`
	HostScanners HostScanners `harness:"host_scanners"`
	SandboxHooks SandboxHooks `harness:"sandbox_hooks"`
	Escalation   Escalation   `harness:"escalation"`
	Trace        Switch       `harness:"trace"`
}

// HostScanners switches the scanners that run before anything is uploaded.
type HostScanners struct {
	Unicode          Value[bool] `harness:"unicode_normalizer"`
	ContextInjection Value[bool] `harness:"context_injection"`
	SSRF             Value[bool] `harness:"ssrf_validator"`
	Secrets          Value[bool] `harness:"secret_redactor"`
	LLMGuard         LLMGuard    `harness:"llm_guard"`
}

// InRun is the value of script_directory for the directory of a run.
const InRun = "run"

// Values of settings in the security block.
const (
	FailOpen         = "open"     // fail_mode: critical findings stop nothing
	MatchSentence    = "sentence" // match_type: each sentence is scored by itself
	OnCriticalReview = "review"   // on_critical: a person is asked to look at the run
)

// LLMGuard configures the model-based scanner.
type LLMGuard struct {
	Enabled   Value[bool]    `harness:"enabled"`
	Threshold Value[float64] `harness:"threshold"` // 0 to 1
	MatchType Text           `harness:"match_type"`

	URL        Text       `harness:"url"` // of a model API; empty: the operator's program
	Model      Text       `harness:"model"`
	Credential Text       `harness:"credential"` // PROVIDER.NAME; empty: none
	Timeout    Value[int] `harness:"timeout_seconds"`
}

// On reports whether the scanner is enabled. Any of its settings enables it,
// unless enabled is false.
func (g LLMGuard) On() bool { return g.Enabled.Or(!g.At().IsZero()) }

// At is the position of the first of its settings.
func (g LLMGuard) At() Origin {
	for _, at := range []Origin{g.Enabled.At, g.Threshold.At, g.MatchType.At, g.URL.At, g.Model.At, g.Credential.At} {
		if !at.IsZero() {
			return at
		}
	}
	return g.Timeout.At
}

// SandboxHooks switches the hooks around an agent's tools.
type SandboxHooks struct {
	Tirith          Tirith      `harness:"tirith"`
	SSRF            Value[bool] `harness:"ssrf_pretool"`
	SecretRedact    Value[bool] `harness:"secret_redact_posttool"`
	Unicode         Value[bool] `harness:"unicode_posttool"`
	ContextSuppress Value[bool] `harness:"context_suppress_posttool"`
	CanaryPre       Value[bool] `harness:"canary_pretool"`
	CanaryPost      Value[bool] `harness:"canary_posttool"`
	ToolAllowlist   Switch      `harness:"tool_allowlist_pretool"`
}

// Tirith configures the scanner of shell commands.
type Tirith struct {
	Enabled Value[bool] `harness:"enabled"`
	FailOn  Text        `harness:"fail_on"`
}

// Switch is a block whose only key is enabled.
type Switch struct {
	Enabled Value[bool] `harness:"enabled"`
}

// Escalation configures the reaction to critical findings.
type Escalation struct {
	OnCritical  Text `harness:"on_critical"`
	ReviewLabel Text `harness:"review_label"`
}

// OpenShell are the settings that only the openshell backend reads.
type OpenShell struct {
	Profiles Texts `harness:"profiles"`
}

// Steer configures updates for a running agent.
type Steer struct {
	Enabled      Value[bool] `harness:"enabled"`
	MaxSteers    Value[int]  `harness:"max_steers"`
	PollInterval Value[int]  `harness:"poll_interval_seconds"` // seconds
}

// APIServer is a server of the host that the sandbox may call.
type APIServer struct {
	Name   Text       `harness:"name"`
	Script Text       `harness:"script"`
	Port   Value[int] `harness:"port"`
	Env    Map        `harness:"env"`
}

// AgentName is the base name of the agent definition without its extension.
func (h *Harness) AgentName() string {
	return strings.TrimSuffix(filepath.Base(h.Agent.V), ".md")
}

// Outside reports whether the agent's program runs on the host, with the tools of the sandbox.
func (h *Harness) Outside() bool { return !h.Container.Harness.Or(true) }

// Path makes a path of the harness absolute. Relative paths are relative to the
// root. The empty path stays empty.
func (h *Harness) Path(p Text) string {
	if p.V == "" || filepath.IsAbs(p.V) {
		return p.V
	}
	return filepath.Join(h.Root, p.V)
}

// Options are the inputs of [Load] besides the file.
type Options struct {
	Forge  string   // forge whose blocks are merged; empty: none
	Forges []string // names of forges besides github, gitlab, forgejo and jira
	// Root is the directory to which paths are relative, and which no base may
	// leave. Empty: the directory of the file, or its parent if that directory is
	// named harness.
	Root string
	// Requested has env_policy of the policy decide about the variables of the sandbox, as about those of a request: they are
	// those of a command line or of a specification, not of a harness.
	Requested bool
	Event     map[string]any // event in the guards of overlays
	Cache     string         // directory of fetched bases; empty: none is fetched
	// Cluster is that of this host, for [Harness.Fill]. Loading does not use it.
	Cluster Cluster
}

// Load reads the harness at path with all its layers. If one of the problems is
// an error, the harness is nil.
func Load(path string, o Options) (*Harness, Problems) { return NewLoader(o).Load(path) }
