package policy

import (
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"agentsh/policy/env"
	"agentsh/policy/glob"
)

// document is one file as it was read.
type document struct {
	name, description string
	extends           []located
	rules             [groupCount][]*Rule
	given             [groupCount]bool
	defaults          [defaultCount]*Effect
	env               envSettings
	inject            map[string]Injection
	limits            Limits
	audit             auditSettings
	approvals         Approvals
	add, remove       []string // transparent_commands
	execFrom          []*glob.Glob
	gitGuard          *switched
	settings          []Setting
}

// switched is a key that is true or false.
type switched struct {
	on  bool
	pos Position
}

// envSettings are env_policy, or the env_* keys of a rule.
type envSettings struct {
	filter        env.Filter
	allow, deny   []*glob.Glob
	bytes, keys   bool // given
	allowed, used bool // allow is given, anything is given
}

// Injection is one variable of env_inject.
type Injection struct {
	Value string
	// Nested says that the variable is put back at every execve below the
	// command, not only set when it starts.
	Nested bool
}

// Approvals say how a person is asked. The zero value asks nobody, so that
// approve denies.
type Approvals struct {
	Via     string        // tty, channel, command; empty: not given
	Command []string      // the program asked when Via is command
	Timeout time.Duration // 0: not given
}

// Setting is a key of the file that another part of the product carries out.
// A part that does not know a key it is given must refuse it: see
// [Policy.Unheld].
type Setting struct {
	Key string // for example "resource_limits.pids_max" or "signal_rules"
	Pos Position
}

const notBuilt = "not built yet, so the file is refused rather than the rules ignored"

// policyKeys is the table of the top-level keys.
var policyKeys []key[document]

func init() {
	policyKeys = []key[document]{
		{field{name: "version", doc: "The version of the policy language: 1.", shape: shape{kind: shapeInt}, required: true}, readVersion},
		{field{name: "name", doc: "Names the policy in events and reports.", required: true}, readPolicyName},
		{field{name: "description", doc: "Says what the policy is for."}, func(r *reader, n *yaml.Node, d *document) { d.description, _ = r.text(n) }},
		{field{name: "extends", doc: "Files whose rules are tried after the rules of this one, paths relative to it.", shape: listOf(shape{})}, func(r *reader, n *yaml.Node, d *document) { d.extends = r.oneOrMore(n) }},
		{field{name: "defaults", doc: "What happens to requests no rule matches; without it they are denied.", shape: objectOf(func() []field { return fieldsOf(defaultKeys()) })},
			func(r *reader, n *yaml.Node, d *document) { readObject(r, n, "defaults", defaultKeys(), d) }},
		groupKey("command_rules", "Which programs may run, with which arguments.", commandKeys, readCommandRules),
		groupKey("file_rules", "Which operations are allowed on which paths.", fileKeys, readFileRules),
		groupKey("network_rules", "Which hosts, addresses and ports may be reached.", networkKeys, readNetworkRules),
		groupKey("unix_socket_rules", "Which Unix sockets may be reached or created.", socketKeys, readSocketRules),
		groupKey("signal_rules", "Which signals may be sent to which processes.", signalKeys, readSignalRules),
		{field{name: "env_policy", doc: "Which variables of a request reach a command.", shape: objectOf(func() []field { return fieldsOf(envKeys) })}, readEnvPolicy},
		{field{name: "env_inject", doc: "Variables the operator sets for every command; they pass no filter.", shape: shape{kind: shapeMap, item: &shape{others: []shape{objectOf(func() []field { return fieldsOf(injectKeys) })}}}}, readEnvInject},
		{field{name: "resource_limits", doc: "Limits of each command and of the session.", shape: objectOf(func() []field { return fieldsOf(limitKeys) })},
			func(r *reader, n *yaml.Node, d *document) {
				r.note(&d.settings, n, "resource_limits")
				readObject(r, n, "resource_limits", limitKeys, &d.limits)
			}},
		{field{name: "approvals", doc: "How a person is asked for decision: approve.", shape: objectOf(func() []field { return fieldsOf(approvalKeys) })}, readApprovals},
		{field{name: "audit", doc: "What the audit log holds.", shape: objectOf(func() []field { return fieldsOf(auditKeys) })}, readAudit},
		{field{name: "transparent_commands", doc: "Programs whose payload, another command in their arguments, is judged too.", shape: objectOf(func() []field { return fieldsOf(transparentKeys) })},
			func(r *reader, n *yaml.Node, d *document) {
				readObject(r, n, "transparent_commands", transparentKeys, d)
			}},
		{field{name: "exec_from", doc: "The only directories programs may be run from.", shape: listOf(shape{})}, readExecFrom},
		{field{name: "git_guard", doc: "Whether repositories in the workspace are kept from holding settings, hooks and links that run programs or lead outside when somebody uses git there later.", shape: shape{kind: shapeBool}}, readGitGuard},
		refused("require", "belongs in the configuration file, where it holds for every policy"),
		refused("dns_redirects", notBuilt),
		refused("connect_redirects", notBuilt),
		refused("http_services", notBuilt),
		refused("db_services", notBuilt),
		refused("db_rules", notBuilt),
		refused("mcp_rules", notBuilt),
		refused("package_rules", notBuilt),
		refused("process_contexts", notBuilt),
		refused("registry_rules", "is about Windows and means nothing here"),
	}
}

func listOf(item shape) shape              { return shape{kind: shapeList, item: &item} }
func objectOf(fields func() []field) shape { return shape{kind: shapeObject, fields: fields} }
func oneOrList(item shape) shape           { s := item; s.others = []shape{listOf(item)}; return s }
func refused(name, why string) key[document] {
	return key[document]{field: field{name: name, refused: why}}
}

func groupKey(name, doc string, keys func() []key[draft], read func(*reader, *yaml.Node, *document)) key[document] {
	s := listOf(objectOf(func() []field { return fieldsOf(keys()) }))
	return key[document]{field{name: name, doc: doc, shape: s}, read}
}

// note records a key that another part of the product carries out.
func (r *reader) note(list *[]Setting, n *yaml.Node, prefix string) {
	if n.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		*list = append(*list, Setting{Key: prefix + "." + n.Content[i].Value, Pos: r.pos(n.Content[i])})
	}
}

func readVersion(r *reader, n *yaml.Node, _ *document) {
	if n.Kind != yaml.ScalarNode || n.Value != "1" || n.Tag != "!!int" {
		r.fail(n, "write version: 1", "version %q is not known", shorten(n.Value))
	}
}

func readGitGuard(r *reader, n *yaml.Node, d *document) {
	if on, ok := r.flag(n); ok {
		d.gitGuard = &switched{on, r.pos(n)}
	}
}

func readPolicyName(r *reader, n *yaml.Node, d *document) {
	s, ok := r.text(n)
	if ok && (s == "" || len(s) > 128 || strings.ContainsAny(s, "\n\r\t")) {
		r.fail(n, "", "a policy name is 1 to 128 characters on one line")
	}
	d.name = s
}

// The defaults: one per group, the file group having one for the operations
// that look and one for those that change.
const (
	defaultCommand = iota
	defaultFileRead
	defaultFileWrite
	defaultNetwork
	defaultUnixSocket
	defaultSignal
	defaultCount
)

// fileReads are the operations defaults.file_read governs.
const fileReads = OpRead | OpList | OpStat

func defaultKeys() []key[document] {
	effects := []Effect{Deny, Allow, Audit, Approve}
	words := []string{"deny", "allow", "audit", "approve"}
	one := func(name, doc string, which ...int) key[document] {
		return key[document]{field{name: name, doc: doc, shape: shape{words: words}}, func(r *reader, n *yaml.Node, d *document) {
			i, ok := r.word(n, "default", words)
			if !ok {
				return
			}
			for _, w := range which {
				if d.defaults[w] != nil && len(which) > 1 {
					continue // file_read and file_write say more than file
				}
				d.defaults[w] = &effects[i]
			}
		}}
	}
	return []key[document]{
		one("command", "Programs no rule matches.", defaultCommand),
		one("file_read", "Reading, listing and looking at paths no rule matches.", defaultFileRead),
		one("file_write", "Every other operation on paths no rule matches.", defaultFileWrite),
		one("file", "Both file_read and file_write where these are not given.", defaultFileRead, defaultFileWrite),
		one("network", "Destinations no rule matches.", defaultNetwork),
		one("unix_socket", "Unix sockets no rule matches.", defaultUnixSocket),
		one("signal", "Signals no rule matches.", defaultSignal),
	}
}
