package harness

import (
	"regexp"

	"agentsh/internal/lazy"
)

// kind is the type of a field's value.
type kind uint8

const (
	kindText    kind = iota
	kindInt          // whole number
	kindNumber       // number with a fraction
	kindBool         // true or false
	kindList         // list of texts
	kindMap          // text to text
	kindStruct       // mapping with the keys in fields
	kindStructs      // list of mappings with the keys in fields
	kindRefs         // list of texts or mappings with the keys in fields
	kindForge        // forge name to the layered fields
	kindOverlay      // list of the layered fields behind a guard
)

// mergeRule says how two layers of a field are merged.
type mergeRule uint8

const (
	mergeDefault mergeRule = iota // scalars: the stronger; maps and structs: per key; lists: appended
	mergeReplace                  // lists: the stronger replaces the whole list
)

// pathKind is the type of file that a path must name.
type pathKind uint8

const (
	notPath  pathKind = iota
	pathFile          // a regular file
	pathDir           // a directory
	pathHost          // any file of the host
)

// field is one key of the schema. The table drives strict loading, merging, the
// JSON Schema, the reference, and the test that every key is consumed.
type field struct {
	name     string
	kind     kind
	doc      string // one sentence for the JSON Schema
	merge    mergeRule
	private  bool // a base does not pass it on
	layered  bool // allowed in forge and overlay blocks
	required bool // must be set after merging, or in each mapping of a list
	path     pathKind
	format   format             // of a text, list entry or map value
	keys     format             // of the keys of a map
	limits   limits             // of a number
	expands  bool               // ${NAME} is replaced by [Harness.Expand]
	off      string             // the value that switches it off
	identity func(*tree) string // keyed lists: the key of an entry
	fields   []field
}

// format restricts a text to some values, or to those that match a pattern.
type format struct {
	values  []string
	pattern func() *regexp.Regexp
	refused map[string]string // values that a reader may expect, each with why it is none
	means   string            // description of the pattern
	bare    bool              // of keys: a map may be a list of them, and the value of each is ${KEY}
}

// limits bound a number; max 0: no upper bound.
type limits struct{ min, max int }

var (
	identRE    = lazy.Regexp(`^[A-Za-z_][A-Za-z0-9_]*$`)
	roleRE     = lazy.Regexp(`^[a-z][a-z0-9_-]*$`)
	slugRE     = lazy.Regexp(`^[a-zA-Z0-9][a-zA-Z0-9_-]*$`)
	modelRE    = lazy.Regexp(`^[a-zA-Z0-9_.@:/-]+$`)
	nameRE     = lazy.Regexp(`^[a-zA-Z0-9_-]+$`)
	levelRE    = lazy.Regexp(`^[a-z][a-z0-9_-]*$`)
	stageRE    = lazy.Regexp(`^(pre_script|runtime|post_script|default)$`)
	hostnameRE = lazy.Regexp(`^(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?$`)
	endpointRE = lazy.Regexp(`^((\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)
	toolRE     = lazy.Regexp(`^[A-Za-z0-9_./][A-Za-z0-9_./-]{0,127}$`)
	headerRE   = lazy.Regexp("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	userRE     = lazy.Regexp(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)
	sourceRE   = lazy.Regexp(`^(/[^\n\r]*|[A-Za-z0-9][A-Za-z0-9_.-]*)$`)
	objectRE   = lazy.Regexp(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	resourceRE = lazy.Regexp(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$`)
	absoluteRE = lazy.Regexp(`^/[^\n\r]+$`)
	noNewline  = lazy.Regexp(`^[^\n\r]*$`)
)

// toolText says what the name of a tool is.
const toolText = "at most 128 letters, digits and _ - . /"

// objectText says what a name in Kubernetes is.
const objectText = "small letters, digits, - and ."

// The names of degraded and require, as the supervisor has them. A test compares them.
var (
	fallbackNames = []string{"any", "call_rules", "cgroup", "exec_verify", "landlock", "landlock_scopes", "mapped_files",
		"namespaces", "nested_commands", "wait_killable"}

	requirementNames = []string{"abstract_sockets", "cgroup", "engine_listener", "engine_trace", "env_inject_nested", "exec_verify",
		"file_governed", "files", "fuse_passthrough", "host_edits", "landlock", "landlock_scopes", "mount_namespace", "net_namespace",
		"pid_namespace", "signals"}
)

// runNeeds are the mechanisms that no sandbox of a run goes without.
var runNeeds = map[string]string{
	"file_server": needsFileServer,
}

const needsFileServer = "the sandbox of a run is a directory that a file server shows as /sandbox; where there are no mounts either, " +
	"write namespaces or nested_commands"

// maxScriptTimeout is the longest time of a script, in seconds: a week.
const maxScriptTimeout = 7 * 24 * 60 * 60

const identText = "letters, digits and _, not starting with a digit"

// envFields are the keys of env. The keys of the maps are checked as names of
// variables, with the reserved ones, in [checkNames].
var envFields = []field{
	{name: "runner", kind: kindMap, expands: true, doc: "Variables of the pre and post scripts and the validation loop, on the host only."},
	{name: "sandbox", kind: kindMap, expands: true, doc: "Variables delivered into the sandbox in generated.env."},
	{name: "both", kind: kindMap, expands: true, doc: "Variables written once for runner and sandbox."},
}

var hostFileFields = []field{
	{name: "src", kind: kindText, required: true, path: pathHost, expands: true, doc: "File on the host; ${NAME} is replaced."},
	{name: "dest", kind: kindText, required: true, doc: "Absolute path in the sandbox, under /sandbox or /tmp."},
	{name: "expand", kind: kindBool, doc: "Replace ${NAME} in the content."},
	{name: "optional", kind: kindBool, doc: "Skip the file when the host does not have it."},
}

var validationFields = []field{
	{name: "script", kind: kindText, path: pathFile, doc: "Validator, run on the host; exit 0 passes."},
	{name: "schema", kind: kindText, path: pathHost, expands: true, doc: "JSON Schema given to the validator; ${NAME} is replaced."},
	{name: "max_iterations", kind: kindInt, limits: limits{max: 100}, doc: "Most runs of the agent in one run."},
	{name: "timeout_seconds", kind: kindInt, limits: limits{max: maxScriptTimeout},
		doc: "Seconds one run of the validator may take; 0: 30 minutes."},
	{name: "feedback_mode", kind: kindText, format: format{values: []string{"append", "none"}},
		doc: "Whether the validator's text goes back to the agent."},
	{name: "preflight_check", kind: kindText, doc: "Shell command that must succeed on the host before the run."},
}

var containerFields = []field{
	{name: "harness", kind: kindBool, doc: "Run the agent itself in the sandbox; false: on this host, with the tools of the sandbox."},
	{name: "backend", kind: kindText, format: format{pattern: nameRE, means: "letters, digits, _ and -"}, doc: "Kind of sandbox."},
	{name: "env_passthrough", kind: kindList, format: format{pattern: identRE, means: identText},
		doc: "Host variables that reach the agent's program, and nothing else with harness: false."},
	{name: "confine_agent", kind: kindText, format: format{values: []string{ConfineAlways, ConfineIfPossible, ConfineNever}},
		doc: "With harness: false: whether the agent's program has a session of its own; if_possible is the default."},
	{name: "model_hosts", kind: kindList,
		format: format{pattern: endpointRE, means: "a host name, *.host or an address, with :port unless it is 443"},
		doc:    "With harness: false: further hosts that the agent's program reaches."},
	{name: "user", kind: kindText, format: format{pattern: userRE, means: "UID, UID:GID or a name"},
		doc: "User of the container; the image's, or 1000:1000 for one of root."},
	{name: "memory_mb", kind: kindInt, limits: limits{min: 16, max: 1 << 30}, doc: "Memory of the container, in MiB."},
	{name: "cpus", kind: kindNumber, limits: limits{max: 4096}, doc: "Processors of the container; 0.5 is half of one."},
	{name: "pids", kind: kindInt, limits: limits{min: 16, max: 1 << 22}, doc: "Processes and threads of the container."},
	{name: "disk_mb", kind: kindInt, limits: limits{min: 64, max: 1 << 30}, doc: "Disk of the container's own files, in MiB."},
	{name: "network", kind: kindText, format: format{pattern: nameRE, means: "letters, digits, _ and -"},
		doc: "Network of the container: none, or one of the engine."},
	{name: "mounts", kind: kindStructs, identity: cleanTarget, doc: "Directories of the engine's machine, or volumes, in the container.",
		fields: []field{
			{name: "source", kind: kindText, required: true, format: format{pattern: sourceRE, means: "an absolute path, or the name of a volume"},
				doc: "Absolute path on the machine of the engine, or name of a volume."},
			{name: "target", kind: kindText, required: true, format: format{pattern: absoluteRE, means: "an absolute path"},
				doc: "Absolute path in the sandbox."},
			{name: "writable", kind: kindBool, doc: "Commands may write to it, as far as the policy allows."},
		}},
}

var kubernetesFields = []field{
	{name: "agentsh_image", kind: kindText, format: format{pattern: noNewline, means: "one line"},
		doc: "Image with the agentsh program; without one agentctl sends its own, which needs /bin/sh in the sandbox's image."},
	{name: "image_pull_policy", kind: kindText, format: format{values: []string{"Always", "IfNotPresent", "Never"}},
		doc: "When a node gets the images; IfNotPresent."},
	{name: "image_pull_secrets", kind: kindList, format: format{pattern: objectRE, means: objectText},
		doc: "Secrets of the namespace with logins of registries."},
	{name: "service_account", kind: kindText, format: format{pattern: objectRE, means: objectText},
		doc: "Service account of the pod, whose token is not in it; default."},
	{name: "runtime_class", kind: kindText, format: format{pattern: objectRE, means: objectText}, doc: "Runtime class of the pod."},
	{name: "priority_class", kind: kindText, format: format{pattern: objectRE, means: objectText}, doc: "Priority class of the pod."},
	{name: "node_selector", kind: kindMap, doc: "Labels that the node must have."},
	{name: "tolerations", kind: kindStructs, doc: "Taints of nodes that the pod tolerates.", fields: []field{
		{name: "key", kind: kindText, doc: "Key of the taint; all without one."},
		{name: "operator", kind: kindText, format: format{values: []string{"Equal", "Exists"}}, doc: "How the value is compared; Equal."},
		{name: "value", kind: kindText, doc: "Value of the taint."},
		{name: "effect", kind: kindText, format: format{values: []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}},
			doc: "Effect of the taint; all without one."},
		{name: "seconds", kind: kindInt, limits: limits{max: 86400}, doc: "How long NoExecute is tolerated."},
	}},
	{name: "requests", kind: kindStruct, doc: "What the scheduler reserves; the limits of container without it.", fields: []field{
		{name: "memory_mb", kind: kindInt, limits: limits{min: 16, max: 1 << 30}, doc: "Memory, in MiB."},
		{name: "cpus", kind: kindNumber, limits: limits{max: 4096}, doc: "Processors."},
	}},
	{name: "fuse_device", kind: kindText, format: format{pattern: resourceRE, means: "a resource such as example.com/fuse"},
		doc: "Resource of the device plugin that gives /dev/fuse."},
	{name: "seccomp", kind: kindText, format: format{pattern: noNewline, means: "one line"},
		doc: "Seccomp profile below the kubelet's directory, RuntimeDefault or Unconfined; that of packaging/kubernetes."},
	{name: "apparmor", kind: kindText, format: format{pattern: noNewline, means: "one line"},
		doc: "AppArmor profile of the nodes, RuntimeDefault or Unconfined; that of the runtime without it."},
	{name: "user_namespace", kind: kindBool, doc: "A user namespace and an unmasked /proc for the pod; on unless written false."},
	{name: "network_policy", kind: kindBool, doc: "A NetworkPolicy that leaves only the ways out of the policy; on unless written false."},
	{name: "dns_namespace", kind: kindText, format: format{pattern: objectRE, means: objectText},
		doc: "Namespace of the cluster's name servers; kube-system."},
	{name: "labels", kind: kindMap, doc: "Further labels of the pod."},
	{name: "annotations", kind: kindMap, doc: "Further annotations of the pod."},
	{name: "agent_sandbox", kind: kindBool, off: "false", doc: "Make the pod by a Sandbox of agent-sandbox."},
	{name: "warm_pool", kind: kindText, format: format{pattern: objectRE, means: objectText},
		doc: "SandboxWarmPool of agent-sandbox that gives the pod, by a SandboxClaim."},
	{name: "start_seconds", kind: kindInt, limits: limits{max: 86400}, doc: "Seconds until the pod runs; 300."},
	{name: "max_seconds", kind: kindInt, limits: limits{min: 60, max: 1 << 30},
		doc: "Seconds after which the cluster ends the pod; no limit."},
}

var securityFields = []field{
	{name: "enabled", kind: kindBool, doc: "Scan at all; on unless written false."},
	{name: "fail_mode", kind: kindText, format: format{values: []string{"closed", FailOpen}},
		doc: "Whether a critical finding stops the run."},
	{name: "host_scanners", kind: kindStruct, doc: "Scanners that run before anything is uploaded.", fields: []field{
		{name: "unicode_normalizer", kind: kindBool, doc: "Find hidden and misleading characters."},
		{name: "context_injection", kind: kindBool, doc: "Find instructions hidden in context files."},
		{name: "ssrf_validator", kind: kindBool, doc: "Find URLs of internal services."},
		{name: "secret_redactor", kind: kindBool, doc: "Find secrets."},
		{name: "llm_guard", kind: kindStruct, doc: "Model-based scanner.", fields: []field{
			{name: "enabled", kind: kindBool, doc: "Use the model-based scanner; on unless written false where llm_guard stands."},
			{name: "threshold", kind: kindNumber, limits: limits{max: 1}, doc: "Score from which a finding counts, 0 to 1."},
			{name: "match_type", kind: kindText, format: format{values: []string{MatchSentence, "full"}}, doc: "What is scored at a time."},
			{name: "url", kind: kindText, doc: "Model API with /chat/completions, as https://api.example.com/v1."},
			{name: "model", kind: kindText, doc: "Model at url."},
			{name: "credential", kind: kindText, doc: "PROVIDER.NAME: the provider's credential for url, whose endpoints must name it."},
			{name: "timeout_seconds", kind: kindInt, limits: limits{max: 600}, doc: "Longest wait for one answer of url; 60."},
		}},
	}},
	{name: "sandbox_hooks", kind: kindStruct, doc: "Hooks around the agent's tools.", fields: []field{
		{name: "tirith", kind: kindStruct, doc: "Scan of shell commands.", fields: []field{
			{name: "enabled", kind: kindBool, off: "false", doc: "Scan shell commands."},
			{name: "fail_on", kind: kindText, format: format{values: []string{"critical", "high", "medium"}}, doc: "Least severity that blocks."},
		}},
		{name: "ssrf_pretool", kind: kindBool, off: "false", doc: "Refuse URLs of internal services."},
		{name: "secret_redact_posttool", kind: kindBool, off: "false", doc: "Hide secrets in tool output."},
		{name: "unicode_posttool", kind: kindBool, off: "false", doc: "Normalise tool output."},
		{name: "context_suppress_posttool", kind: kindBool, off: "false", doc: "Drop instructions from tool output."},
		{name: "canary_pretool", kind: kindBool, off: "false", doc: "Find the canary in tool input."},
		{name: "canary_posttool", kind: kindBool, off: "false", doc: "Find the canary in tool output."},
		{name: "tool_allowlist_pretool", kind: kindStruct, doc: "Allow only listed tools.", fields: []field{
			{name: "enabled", kind: kindBool, off: "false", doc: "Allow only listed tools."},
		}},
	}},
	{name: "escalation", kind: kindStruct, doc: "What follows a critical finding.", fields: []field{
		{name: "on_critical", kind: kindText, format: format{values: []string{"halt", OnCriticalReview}},
			doc: "Stop, or stop and ask for a review."},
		{name: "review_label", kind: kindText, doc: "Label that asks for a review."},
	}},
	{name: "trace", kind: kindStruct, doc: "Identifier that joins findings of one run.", fields: []field{
		{name: "enabled", kind: kindBool, doc: "Write the identifier."},
	}},
}

var skillFields = []field{
	{name: "path", kind: kindText, required: true, path: pathDir, doc: "Directory of the skill."},
	{name: "overrides", kind: kindMap, doc: "Files of the skill replaced by local files; null leaves one out."},
}

var pluginFields = []field{
	{name: "path", kind: kindText, required: true, path: pathDir, doc: "Directory of the plugin."},
	{name: "env", kind: kindMap, keys: format{pattern: identRE, means: identText}, doc: "Variables exported before the runtime starts."},
	{name: "pi", kind: kindStruct, doc: "Options of the pi runtime.", fields: []field{
		{name: "args", kind: kindList, doc: "Flags the plugin registers."},
	}},
}

var serverFields = []field{
	{name: "name", kind: kindText, required: true, format: format{pattern: nameRE, means: "letters, digits, _ and -"},
		doc: "Name by which the agent knows the server."},
	{name: "command", kind: kindList, required: true, doc: "Program of the server in the sandbox, with its arguments."},
	{name: "tools", kind: kindStruct, doc: "Which of its tools the agent may use.", fields: []field{
		{name: "allow", kind: kindList, format: format{pattern: toolRE, means: toolText}, doc: "Only these tools; all of them without it."},
		{name: "deny", kind: kindList, format: format{pattern: toolRE, means: toolText}, doc: "Not these tools, also if they are allowed."},
	}},
	{name: "pins", kind: kindText, path: pathHost, doc: "File of 'agentctl mcp-pins' with the definitions that tools must have."},
}

// fields is the schema of a harness file, in the order it is rendered.
var fields = []field{
	{name: "version", kind: kindInt, private: true, limits: limits{min: 1, max: 1}, doc: "Version of this language; 1."},
	{name: "schema_version", kind: kindInt, private: true, limits: limits{min: 1, max: 1}, doc: "The same as version."},
	{name: "base", kind: kindText, private: true, doc: "Harness this one builds on, relative to the file that names it."},
	{
		name:     "agent",
		kind:     kindText,
		required: true,
		path:     pathFile,
		doc:      "Markdown definition of the agent; its base name is the agent's name.",
	},
	{name: "description", kind: kindText, doc: "One line for people."},
	{name: "doc", kind: kindText, doc: "Where the agent is documented; for people."},
	{
		name:     "role",
		kind:     kindText,
		required: true,
		format:   format{pattern: roleRE, means: "small letters, digits, _ and -, starting with a letter"},
		doc:      "What the agent does.",
	},
	{
		name:   "slug",
		kind:   kindText,
		format: format{pattern: slugRE, means: "letters, digits, _ and -, starting with a letter or digit"},
		doc:    "Short name for people and forges.",
	},
	{
		name:   "runtime",
		kind:   kindText,
		format: format{pattern: nameRE, means: "letters, digits, _ and -"},
		doc:    "Agent program: claude (default), codex, gemini, opencode, command.",
	},
	{
		name:  "command",
		kind:  kindList,
		merge: mergeReplace,
		doc:   "Program of the runtime and its first arguments; required for the runtime command.",
	},
	{name: "image", kind: kindText, format: format{pattern: noNewline, means: "one line"}, doc: "Container image of the sandbox."},
	{name: "policy", kind: kindText, layered: true, path: pathFile, doc: "Policy the supervisor enforces."},
	{name: "model", kind: kindText, format: format{pattern: modelRE, means: "letters, digits and _ . @ : / -"},
		doc: "Model the runtime uses."},
	{name: "effort", kind: kindText, format: format{values: []string{"low", "medium", "high", "xhigh", "max"}},
		doc: "Reasoning effort the runtime asks for."},
	{name: "readonly_repo", kind: kindBool, off: "false", doc: "The agent may not change the repository."},
	{name: "degraded", kind: kindList, format: format{values: fallbackNames, refused: runNeeds},
		doc: "Mechanisms that the sandbox may run without."},
	{name: "require", kind: kindList, format: format{values: requirementNames},
		doc: "Guarantees and mechanisms that must be proven before the sandbox starts."},
	{name: "providers", kind: kindList, layered: true, doc: "Credential sources, by name or path."},
	{name: "openshell", kind: kindStruct, layered: true, doc: "What only the openshell backend reads.", fields: []field{
		{name: "profiles", kind: kindList, doc: "Provider profiles."},
	}},
	{name: "skills", kind: kindRefs, layered: true, identity: baseName, doc: "Directories with a SKILL.md.", fields: skillFields},
	{name: "plugins", kind: kindRefs, identity: baseName, doc: "Plugin directories.", fields: pluginFields},
	{name: "mcp_servers", kind: kindStructs, identity: serverName, doc: "MCP servers that the agent starts in the sandbox.",
		fields: serverFields},
	{
		name:     "host_files",
		kind:     kindStructs,
		layered:  true,
		identity: cleanDest,
		doc:      "Files of the host delivered into the sandbox.",
		fields:   hostFileFields,
	},
	{name: "env", kind: kindStruct, layered: true, doc: "Variables of the run.", fields: envFields},
	{name: "runner_env", kind: kindMap, layered: true, expands: true, doc: "Deprecated: env.runner."},
	{name: "pre_script", kind: kindText, layered: true, path: pathFile, doc: "Script run on the host before the sandbox exists."},
	{name: "post_script", kind: kindText, layered: true, path: pathFile, doc: "Script run on the host after the agent."},
	{name: "pre_script_timeout_seconds", kind: kindInt, layered: true, limits: limits{max: maxScriptTimeout},
		doc: "Seconds pre_script may take; 0: 30 minutes."},
	{name: "post_script_timeout_seconds", kind: kindInt, layered: true, limits: limits{max: maxScriptTimeout},
		doc: "Seconds post_script may take; 0: 30 minutes."},
	{name: "script_directory", kind: kindText, format: format{values: []string{"repository", InRun}},
		doc: "Where scripts start: the target repository, or a directory with the iterations; found by what they read."},
	{name: "agent_input", kind: kindText, path: pathDir, doc: "Directory copied to /sandbox/workspace/agent-input."},
	{name: "preflight_check", kind: kindText, doc: "Shell command that must succeed on the host before the run."},
	{name: "validation_loop", kind: kindStruct, layered: true, doc: "How output is validated.", fields: validationFields},
	{name: "timeout_minutes", kind: kindInt, limits: limits{max: 60 * 24 * 7}, doc: "Minutes one iteration may take; 0: the default."},
	{name: "sandbox_timeout_seconds", kind: kindInt, limits: limits{max: 86400},
		doc: "Seconds the sandbox may take to be ready; 0: the default."},
	{name: "backend", kind: kindText, private: true, format: format{values: []string{"local", "exec", "ssh", "socket", "docker", "podman",
		"kubernetes", "vm", "blaxel", "openshell"}},
		doc: "Where the sandbox is; --backend has precedence."},
	{name: "connect", kind: kindText, private: true,
		doc: "Address of the place for backend: ssh://USER@HOST, exec:PROGRAM ARGUMENT..., of a socket, an engine, a workspace or a gateway."},
	{name: "connect_key", kind: kindText, private: true, path: pathHost,
		doc: "File with the key of the place, for backend: socket, or with the API key, for backend: blaxel."},
	{name: "container", kind: kindStruct, doc: "The container of the sandbox, for backends with one.", fields: containerFields},
	{name: "kubernetes", kind: kindStruct, doc: "The pod of the sandbox, for backend: kubernetes.", fields: kubernetesFields},
	{name: "security", kind: kindStruct, doc: "Scanners and hooks.", fields: securityFields},
	{name: "trigger", kind: kindText, doc: "Expression over events that starts the agent."},
	{name: "steer", kind: kindStruct, doc: "Updates that reach a running agent.", fields: []field{
		{name: "enabled", kind: kindBool, off: "false", doc: "Let updates in."},
		{name: "max_steers", kind: kindInt, limits: limits{max: 1000}, doc: "Updates one run takes."},
		{name: "poll_interval_seconds", kind: kindInt, limits: limits{max: 600}, doc: "Seconds between looks for an update."},
	}},
	{name: "api_servers", kind: kindStructs, doc: "Servers of the host that the sandbox may call.", fields: []field{
		{name: "name", kind: kindText, required: true, format: format{pattern: nameRE, means: "letters, digits, _ and -"},
			doc: "Name of the server."},
		{name: "script", kind: kindText, required: true, path: pathFile, doc: "Program of the server."},
		{name: "port", kind: kindInt, required: true, limits: limits{min: 1, max: 65535}, doc: "Port the sandbox connects to."},
		{name: "env", kind: kindMap, expands: true, keys: format{pattern: identRE, means: identText}, doc: "Variables of the server."},
	}},
	{
		name:   "privilege_levels",
		kind:   kindMap,
		format: format{pattern: levelRE, means: "small letters, digits, _ and -"},
		keys:   format{pattern: stageRE, means: "pre_script, runtime, post_script or default"},
		doc:    "Privilege of the token of each stage.",
	},
	{name: "allowed_remote_resources", kind: kindList, private: true, doc: "URL prefixes resources may be fetched from."},
	{name: "allow_runtime_fetch", kind: kindBool, private: true, off: "false", doc: "The agent may fetch resources."},
	{name: "max_runtime_fetches", kind: kindInt, private: true, limits: limits{min: 1, max: 1000}, doc: "Most resources the agent may fetch."},
	{name: "forge", kind: kindForge, private: true, doc: "What differs per forge."},
	{name: "overlays", kind: kindOverlay, private: true, doc: "What differs where a guard holds."},
}

// maxLifetime is the longest lifetime of a credential, in seconds: a year.
const maxLifetime = 366 * 24 * 3600

// find is the field named name, or nil.
func find(fields []field, name string) *field {
	for i := range fields {
		if fields[i].name == name {
			return &fields[i]
		}
	}
	return nil
}

// layered are the fields that a forge or overlay block may set.
var layered = func() []field {
	var out []field
	for _, f := range fields {
		if f.layered {
			out = append(out, f)
		}
	}
	return out
}()

// overlayFields are the keys of an overlay.
var overlayFields = append(
	[]field{{name: "when", kind: kindText, required: true, doc: "Guard; the overlay is merged where it holds."}},
	layered...)

// providerFields is the schema of a provider file.
var providerFields = []field{
	{name: "version", kind: kindInt, limits: limits{min: 1, max: 1}, doc: "Version of this language; 1."},
	{name: "name", kind: kindText, required: true, format: format{pattern: nameRE, means: "letters, digits, _ and -"},
		doc: "Name that harnesses use."},
	{
		name:     "type",
		kind:     kindText,
		required: true,
		format:   format{pattern: nameRE, means: "letters, digits, _ and -"},
		doc:      "Kind of provider, as the gateway knows it.",
	},
	{name: "description", kind: kindText, doc: "One line for people."},
	{name: "credentials", kind: kindMap, keys: format{pattern: identRE, means: identText, bare: true}, expands: true,
		doc: "Secrets; each value is ${NAME} of the host, or command. In a list of names the variable has the same name."},
	{name: "command", kind: kindList, doc: "Program of the host that prints the credentials whose value is command, with its arguments."},
	{name: "lifetime_seconds", kind: kindInt, limits: limits{min: 1, max: maxLifetime},
		doc: "Time after which the program is started again for new values, where it does not print one."},
	{name: "timeout_seconds", kind: kindInt, limits: limits{min: 1, max: 600}, doc: "Longest time of the program; 30."},
	{name: "config", kind: kindMap, keys: format{pattern: identRE, means: identText}, expands: true, doc: "Settings that are no secrets."},
	{
		name:   "endpoints",
		kind:   kindList,
		format: format{pattern: hostnameRE, means: "a host name, *.host or host:port"},
		doc:    "Hosts where the credential may be used.",
	},
	{name: "header", kind: kindText, format: format{pattern: headerRE, means: "the name of an HTTP header"},
		doc: "HTTP header that carries the credential."},
	{name: "query", kind: kindText, format: format{pattern: identRE, means: identText}, doc: "Query parameter that carries the credential."},
	{name: "path", kind: kindBool, doc: "The credential stands in the path of requests."},
}
