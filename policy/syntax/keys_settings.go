package syntax

import (
	"slices"
	"strings"
	"time"

	"agentsh/internal/mistake"
	"agentsh/internal/strictyaml"
	"agentsh/policy"
	"agentsh/policy/env"
	"agentsh/policy/glob"
)

var envKeys = []key[policy.EnvSettings]{
	{
		field{
			name:  "allow",
			doc:   "Globs of the variables that pass; without it all pass that are not on the built-in list.",
			shape: listOf(shape{}),
		},
		func(r *reader, n *strictyaml.Node, s *policy.EnvSettings) {
			s.HasAllow = true
			s.Filter.Allow, s.Allow = r.variables(n)
		},
	},
	{field{name: "deny", doc: "Globs of the variables that never pass, whatever allow says.", shape: listOf(shape{})},
		func(r *reader, n *strictyaml.Node, s *policy.EnvSettings) { s.Filter.Deny, s.Deny = r.variables(n) }},
	{field{name: "max_bytes", doc: "The most bytes of names and values together.", shape: shape{kind: shapeInt}},
		func(r *reader, n *strictyaml.Node, s *policy.EnvSettings) {
			s.Filter.MaxBytes, s.HasMaxBytes = r.positive(n, 1<<30)
		}},
	{field{name: "max_keys", doc: "The most variables.", shape: shape{kind: shapeInt}},
		func(r *reader, n *strictyaml.Node, s *policy.EnvSettings) {
			s.Filter.MaxKeys, s.HasMaxKeys = r.positive(n, 1<<20)
		}},
	{field{name: "block_iteration", doc: "Must be false: a command can always list its own variables.", shape: shape{kind: shapeBool}},
		func(r *reader, n *strictyaml.Node, _ *policy.EnvSettings) { r.mustBeFalse(n, "block_iteration") }},
}

// positive parses a number from 1 to high.
func (r *reader) positive(n *strictyaml.Node, high int64) (int, bool) {
	v, ok := r.Int(n, 1, high)
	return int(v), ok
}

// mustBeFalse rejects a switch for a feature that cannot be enforced.
func (r *reader) mustBeFalse(n *strictyaml.Node, name string) {
	if on, ok := r.Bool(n); ok && on {
		r.Fail(n, "remove it", "%s cannot be enforced: a process can always read its own environment", name)
	}
}

// variables parses a list of globs of variable names.
func (r *reader) variables(n *strictyaml.Node) ([]string, []*glob.Glob) {
	if n.Kind == strictyaml.List && len(n.Content) == 0 {
		return []string{}, nil
	}
	var texts []string
	var globs []*glob.Glob
	for _, l := range r.texts(n) {
		if r.mistaken(l.node, mistake.Variable(l.text)) {
			continue
		}
		if strings.Contains(l.text, "=") || l.text == "" {
			r.Fail(l.node, "", "%q is not the name of a variable", strictyaml.Shorten(l.text))
			continue
		}
		if g := r.pattern(l.node, glob.Text, l.text); g != nil {
			texts, globs = append(texts, g.String()), append(globs, g)
		}
	}
	return texts, globs
}

func readEnvPolicy(r *reader, n *strictyaml.Node, d *document) {
	d.env.Given = true
	readObject(r, n, "env_policy", envKeys, &d.env)
}

// injected is the long form of one env_inject value.
type injected struct {
	value   string
	enforce int
}

var enforceWords = []string{"nested", "start"}

var injectKeys = []key[injected]{
	{field{name: "value", doc: "The value.", required: true}, func(r *reader, n *strictyaml.Node, i *injected) { i.value, _ = r.Text(n) }},
	{
		field{
			name:  "enforce",
			doc:   "nested: put back at every execve below the command, as the short form does; start: set only when the command starts.",
			shape: shape{words: enforceWords},
		},
		func(r *reader, n *strictyaml.Node, i *injected) { i.enforce, _ = r.Word(n, "enforce", enforceWords) },
	},
}

func readEnvInject(r *reader, n *strictyaml.Node, d *document) {
	d.inject = map[string]policy.Injection{}
	r.dictionary(n, func(name, value *strictyaml.Node) {
		if !validName(name.Value) {
			r.Fail(name, "", "%q is not the name of a variable", strictyaml.Shorten(name.Value))
			return
		}
		if strings.HasPrefix(name.Value, "AGENTSH_") {
			r.Fail(name, "", "%s is reserved", name.Value)
			return
		}
		var in injected
		if value.Kind == strictyaml.Mapping {
			readObject(r, value, "an env_inject value", injectKeys, &in)
		} else if s, ok := r.Text(value); ok {
			in.value = s
		}
		if size := len(name.Value) + 1 + len(in.value); size > env.MaxVar {
			r.Fail(name, "", "%s is %d bytes with its name, the kernel passes at most %d to a process", name.Value, size, env.MaxVar)
			return
		}
		d.inject[name.Value] = policy.Injection{Value: in.value, Nested: in.enforce == 0}
	})
}

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
)

// limitKeys are the keys of resource_limits and of a command rule's limits.
var limitKeys = []key[policy.Limits]{
	limitKey("max_memory_mb", "Memory, in MiB.", 1<<30, func(l *policy.Limits, v int64) { l.MemoryBytes = v * mib }),
	{
		field{name: "memory_swap_max_mb", doc: "Swap space, in MiB; 0 for none.", shape: shape{kind: shapeInt}},
		func(r *reader, n *strictyaml.Node, l *policy.Limits) {
			if v, ok := r.Int(n, 0, 1<<30); ok {
				l.SwapLimited, l.SwapBytes = true, v*mib
			}
		},
	},
	limitKey(
		"cpu_quota_percent",
		"Processor time in percent of one core.",
		100_000,
		func(l *policy.Limits, v int64) { l.CPUPercent = int(v) },
	),
	limitKey("pids_max", "Processes and threads.", 1<<22, func(l *policy.Limits, v int64) { l.Pids = int(v) }),
	limitKey("open_files", "Open files of one process.", 1<<20, func(l *policy.Limits, v int64) { l.OpenFiles = int(v) }),
	limitKey("disk_write_mb", "Bytes written in all, in MiB.", 1<<30, func(l *policy.Limits, v int64) { l.DiskWriteBytes = v * mib }),
	limitKey("disk_read_bps_max", "Bytes read from disk per second.", 1<<50, func(l *policy.Limits, v int64) { l.DiskReadRate = v }),
	limitKey("disk_write_bps_max", "Bytes written to disk per second.", 1<<50, func(l *policy.Limits, v int64) { l.DiskWriteRate = v }),
	limitKey(
		"net_bandwidth_mbps",
		"Network bandwidth in megabits per second.",
		1<<20,
		func(l *policy.Limits, v int64) { l.NetworkMbps = int(v) },
	),
	timeKey("command_timeout", "How long one command may run.", func(l *policy.Limits, d time.Duration) { l.CommandTimeout = d }),
	timeKey("session_timeout", "How long the session may last.", func(l *policy.Limits, d time.Duration) { l.SessionTimeout = d }),
	timeKey("idle_timeout", "How long the session may be idle.", func(l *policy.Limits, d time.Duration) { l.IdleTimeout = d }),
}

// commandLimitKeys returns the limits that one command can have. Limits that
// only a session has are not included.
func commandLimitKeys() []key[policy.Limits] {
	return slices.DeleteFunc(slices.Clone(limitKeys), func(k key[policy.Limits]) bool {
		return k.name == "session_timeout" || k.name == "idle_timeout"
	})
}

func limitKey(name, doc string, high int64, set func(*policy.Limits, int64)) key[policy.Limits] {
	return key[policy.Limits]{
		field{name: name, doc: doc, shape: shape{kind: shapeInt}},
		func(r *reader, n *strictyaml.Node, l *policy.Limits) {
			if v, ok := r.Int(n, 1, high); ok {
				set(l, v)
			}
		},
	}
}

func timeKey(name, doc string, set func(*policy.Limits, time.Duration)) key[policy.Limits] {
	return key[policy.Limits]{
		field{name: name, doc: doc, shape: shape{kind: shapeDuration}},
		func(r *reader, n *strictyaml.Node, l *policy.Limits) {
			if d, ok := r.Duration(n); ok {
				set(l, d)
			}
		},
	}
}

var viaWords = []string{"tty", "channel", "command", "webhook"}

var approvalKeys = []key[policy.Approvals]{
	{
		field{name: "via", doc: "Where a person is asked.", shape: shape{words: viaWords}, required: true},
		func(r *reader, n *strictyaml.Node, a *policy.Approvals) {
			if i, ok := r.Word(n, "way to ask", viaWords); ok {
				a.Via = viaWords[i]
			}
		},
	},
	{
		field{name: "command", doc: "The program that asks, with its arguments, for via: command.", shape: listOf(shape{})},
		func(r *reader, n *strictyaml.Node, a *policy.Approvals) { a.Command = values(r.texts(n)) },
	},
	{
		field{name: "timeout", doc: "How long to wait for an answer before the request is denied.", shape: shape{kind: shapeDuration}},
		func(r *reader, n *strictyaml.Node, a *policy.Approvals) { a.Timeout, _ = r.Duration(n) },
	},
}

func readApprovals(r *reader, n *strictyaml.Node, d *document) {
	r.note(&d.settings, n, "approvals")
	readObject(r, n, "approvals", approvalKeys, &d.approvals)
	if (d.approvals.Via == "command") != (len(d.approvals.Command) > 0) && d.approvals.Via != "" {
		r.Fail(n, "", "via: command and command: [...] go together")
	}
}

// auditSettings records which keys were set. For each key the nearest file has
// precedence.
type auditSettings struct {
	policy.AuditSettings
	given uint32
}

// auditLogAllowed is the bit of log_allowed among the keys that were set.
const auditLogAllowed = 1 << 0

var auditKeys = []key[auditSettings]{
	auditFlag(
		"log_allowed",
		"Also log the programs that were allowed; true unless given.",
		0,
		func(a *policy.AuditSettings, on bool) { a.LogAllowed = on },
	),
	auditFlag("redact", "Record arguments and paths as digests.", 1, func(a *policy.AuditSettings, on bool) { a.Redact = on }),
	auditAlways("log_denied", "Denials are always logged: true is the only value."),
	auditAlways("log_approved", "Approvals are always logged: true is the only value."),
	auditFlag(
		"include_stdout",
		"Record what commands write to standard output.",
		2,
		func(a *policy.AuditSettings, on bool) { a.IncludeStdout = on },
	),
	auditFlag(
		"include_stderr",
		"Record what commands write to standard error.",
		3,
		func(a *policy.AuditSettings, on bool) { a.IncludeStderr = on },
	),
	auditFlag(
		"include_file_content",
		"Record the content of files that are written.",
		4,
		func(a *policy.AuditSettings, on bool) { a.IncludeFileContent = on },
	),
	{
		field{name: "retention_days", doc: "How many days events are kept.", shape: shape{kind: shapeInt}},
		func(r *reader, n *strictyaml.Node, a *auditSettings) {
			if v, ok := r.positive(n, 36500); ok {
				a.RetentionDays = v
				a.given |= 1 << 5
			}
		},
	},
}

func auditFlag(name, doc string, bit int, set func(*policy.AuditSettings, bool)) key[auditSettings] {
	return key[auditSettings]{
		field{name: name, doc: doc, shape: shape{kind: shapeBool}},
		func(r *reader, n *strictyaml.Node, a *auditSettings) {
			if on, ok := r.Bool(n); ok {
				set(&a.AuditSettings, on)
				a.given |= 1 << bit
			}
		},
	}
}

func auditAlways(name, doc string) key[auditSettings] {
	return key[auditSettings]{
		field{name: name, doc: doc, shape: shape{kind: shapeBool}},
		func(r *reader, n *strictyaml.Node, _ *auditSettings) {
			if on, ok := r.Bool(n); ok && !on {
				r.Fail(n, "remove it", "%s cannot be turned off", name)
			}
		},
	}
}

// readAudit records the keys that need support. A false value needs none, and
// denials and approvals are always logged.
func readAudit(r *reader, n *strictyaml.Node, d *document) {
	var asked []policy.Setting
	r.note(&asked, n, "audit")
	readObject(r, n, "audit", auditKeys, &d.audit)
	for i, s := range asked {
		if value := n.Content[2*i+1].Value; value != "false" && s.Key != "audit.log_denied" && s.Key != "audit.log_approved" {
			d.settings = append(d.settings, s)
		}
	}
}

var sshKeys = []key[policy.SSH]{
	sshKey("sessions", "Whether ssh, scp, sftp, rsync and git may run commands and transfer files.",
		func(s *policy.SSH, on *policy.Switch) { s.Sessions = on }),
	sshKey("forwarding", "Whether ssh may forward connections (-L and -D), by network_rules and unix_socket_rules.",
		func(s *policy.SSH, on *policy.Switch) { s.Forwarding = on }),
}

func sshKey(name, doc string, set func(*policy.SSH, *policy.Switch)) key[policy.SSH] {
	return key[policy.SSH]{
		field{name: name, doc: doc, shape: shape{kind: shapeBool}},
		func(r *reader, n *strictyaml.Node, s *policy.SSH) {
			if on, ok := r.Bool(n); ok {
				set(s, &policy.Switch{On: on, Pos: r.pos(n)})
			}
		},
	}
}

var transparentKeys = []key[document]{
	{
		field{name: "add", doc: "More programs whose first operand is the payload.", shape: listOf(shape{})},
		func(r *reader, n *strictyaml.Node, d *document) { d.add = r.bareNames(n) },
	},
	{
		field{name: "remove", doc: "Built-in programs whose payload is not evaluated.", shape: listOf(shape{})},
		func(r *reader, n *strictyaml.Node, d *document) { d.remove = r.bareNames(n) },
	},
}

// bareNames parses a list of program names without a slash.
func (r *reader) bareNames(n *strictyaml.Node) []string {
	var out []string
	for _, l := range r.texts(n) {
		if r.mistaken(l.node, mistake.Program(l.text, false)) {
			continue
		}
		if l.text == "" || strings.ContainsAny(l.text, "/*?[{") {
			r.Fail(l.node, "write the base name", "%q is not the name of a program", strictyaml.Shorten(l.text))
			continue
		}
		out = append(out, l.text)
	}
	return out
}

func readExecFrom(r *reader, n *strictyaml.Node, d *document) {
	for _, l := range r.texts(n) {
		if r.mistaken(l.node, mistake.Path(l.text)) {
			continue
		}
		g := r.pattern(l.node, glob.Path, strings.TrimSuffix(l.text, "/**")+"/**")
		if g == nil {
			continue
		}
		d.execFrom = append(d.execFrom, g)
	}
	d.settings = append(d.settings, policy.Setting{Key: "exec_from", Pos: r.pos(n)})
}
