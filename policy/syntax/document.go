package syntax

import (
	"strings"

	"agentsh/internal/strictyaml"
	"agentsh/policy"
	"agentsh/policy/glob"
)

// document is one parsed file.
type document struct {
	name, description string
	extends           []located
	rules             [policy.GroupCount][]*policy.Rule
	given             [policy.GroupCount]bool
	defaults          policy.Defaults
	env               policy.EnvSettings
	inject            map[string]policy.Injection
	limits            policy.Limits
	audit             auditSettings
	approvals         policy.Approvals
	add, remove       []string // transparent_commands
	execFrom          []*glob.Glob
	gitGuard          *policy.Switch
	ssh               policy.SSH
	settings          []policy.Setting
}

const notBuilt = "not built yet, so the file is refused rather than the rules ignored"

// policyKeys is the table of the top-level keys.
var policyKeys []key[document]

// The tables of groups refer to each other through schemas. They are therefore
// built in init.
func init() {
	policyKeys = append(supportedKeys(), []key[document]{
		groupKey("command_rules", "Which programs may run, with which arguments.", commandKeys, unlessFilesAlone(readCommandRules)),
		groupKey("file_rules", "Which operations are allowed on which paths.", fileKeys, readFileRules),
		groupKey("network_rules", "Which hosts, addresses and ports may be reached.", networkKeys, unlessFilesAlone(readNetworkRules)),
		groupKey("unix_socket_rules", "Which Unix sockets may be reached or created.", socketKeys, unlessFilesAlone(readSocketRules)),
		groupKey("signal_rules", "Which signals may be sent to which processes.", signalKeys, unlessFilesAlone(readSignalRules)),
		refused("require", "belongs in the configuration file, where it applies to every policy"),
		refused("dns_redirects", notBuilt),
		refused("connect_redirects", notBuilt),
		refused("http_services", notBuilt),
		refused("db_services", notBuilt),
		refused("db_rules", notBuilt),
		refused("mcp_rules", notBuilt),
		refused("package_rules", notBuilt),
		refused("process_contexts", notBuilt),
		refused("registry_rules", "is about Windows and means nothing here"),
	}...)
}

// unlessFilesAlone reads the rules of a group other than files: see [Options.FilesAlone].
func unlessFilesAlone(read func(*reader, *strictyaml.Node, *document)) func(*reader, *strictyaml.Node, *document) {
	return func(r *reader, n *strictyaml.Node, d *document) {
		if !r.filesAlone {
			read(r, n, d)
		}
	}
}

func supportedKeys() []key[document] { return append(generalKeys(), ruleSettingKeys()...) }

// generalKeys are those of the policy as a whole.
func generalKeys() []key[document] {
	return []key[document]{
		{field{name: "version", doc: "The version of the policy language: 1.", shape: shape{kind: shapeInt}, required: true}, readVersion},
		{field{name: "name", doc: "Names the policy in events and reports.", required: true}, readPolicyName},
		{
			field{name: "description", doc: "Says what the policy is for."},
			func(r *reader, n *strictyaml.Node, d *document) { d.description, _ = r.Text(n) },
		},
		{
			field{name: "extends", doc: "Files whose rules are tried after the rules of this one, paths relative to it.", shape: listOf(shape{})},
			func(r *reader, n *strictyaml.Node, d *document) { d.extends = r.oneOrMore(n) },
		},
		{
			field{
				name:  "defaults",
				doc:   "What happens to requests no rule matches; without it they are denied.",
				shape: objectOf(func() []field { return fieldsOf(defaultKeys()) }),
			},
			func(r *reader, n *strictyaml.Node, d *document) { readObject(r, n, "defaults", defaultKeys(), d) },
		},
		{
			field{
				name:  "env_policy",
				doc:   "Which variables of a request reach a command.",
				shape: objectOf(func() []field { return fieldsOf(envKeys) }),
			},
			readEnvPolicy,
		},
		{
			field{
				name:  "env_inject",
				doc:   "Variables the operator sets for every command; they pass no filter.",
				shape: shape{kind: shapeMap, item: &shape{others: []shape{objectOf(func() []field { return fieldsOf(injectKeys) })}}},
			},
			readEnvInject,
		},
		{
			field{
				name:  "resource_limits",
				doc:   "Limits of each command and of the session.",
				shape: objectOf(func() []field { return fieldsOf(limitKeys) }),
			},
			func(r *reader, n *strictyaml.Node, d *document) {
				r.note(&d.settings, n, "resource_limits")
				readObject(r, n, "resource_limits", limitKeys, &d.limits)
			},
		},
		{
			field{
				name:  "approvals",
				doc:   "How a person is asked for decision: approve.",
				shape: objectOf(func() []field { return fieldsOf(approvalKeys) }),
			},
			readApprovals,
		},
		{field{name: "audit", doc: "What the audit log records.", shape: objectOf(func() []field { return fieldsOf(auditKeys) })}, readAudit},
	}
}

// ruleSettingKeys are those of commands and repositories beside the lists of rules.
func ruleSettingKeys() []key[document] {
	return []key[document]{
		{
			field{
				name:  "transparent_commands",
				doc:   "Programs whose payload, another command in their arguments, is evaluated too.",
				shape: objectOf(func() []field { return fieldsOf(transparentKeys) }),
			},
			func(r *reader, n *strictyaml.Node, d *document) {
				readObject(r, n, "transparent_commands", transparentKeys, d)
			},
		},
		{field{name: "exec_from", doc: "The only directories programs may be run from.", shape: listOf(shape{})}, readExecFrom},
		{
			field{
				name: "git_guard",
				doc: "Whether repositories in the workspace are kept from holding settings, hooks and links that run programs or lead outside " +
					"when somebody uses git there later.",
				shape: shape{kind: shapeBool},
			},
			readGitGuard,
		},
		{
			field{
				name:  "ssh",
				doc:   "What people may do in a session by ssh; without it nothing.",
				shape: objectOf(func() []field { return fieldsOf(sshKeys) }),
			},
			func(r *reader, n *strictyaml.Node, d *document) { readObject(r, n, "ssh", sshKeys, &d.ssh) },
		},
	}
}

func listOf(item shape) shape              { return shape{kind: shapeList, item: &item} }
func objectOf(fields func() []field) shape { return shape{kind: shapeObject, fields: fields} }
func oneOrList(item shape) shape           { s := item; s.others = []shape{listOf(item)}; return s }
func refused(name, why string) key[document] {
	return key[document]{field: field{name: name, refused: why}}
}

func groupKey(name, doc string, keys func() []key[draft], read func(*reader, *strictyaml.Node, *document)) key[document] {
	s := listOf(objectOf(func() []field { return fieldsOf(keys()) }))
	return key[document]{field{name: name, doc: doc, shape: s}, read}
}

// note records the keys of a mapping that the caller of package policy
// enforces.
func (r *reader) note(list *[]policy.Setting, n *strictyaml.Node, prefix string) {
	if n.Kind != strictyaml.Mapping {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		*list = append(*list, policy.Setting{Key: prefix + "." + n.Content[i].Value, Pos: r.pos(n.Content[i])})
	}
}

func readVersion(r *reader, n *strictyaml.Node, _ *document) {
	if n.Kind != strictyaml.Scalar || n.Value != "1" || strictyaml.TypeOf(n) != strictyaml.Int {
		r.Fail(n, "write version: 1", "version %q is not known", strictyaml.Shorten(n.Value))
	}
}

func readGitGuard(r *reader, n *strictyaml.Node, d *document) {
	if on, ok := r.Bool(n); ok {
		d.gitGuard = &policy.Switch{On: on, Pos: r.pos(n)}
	}
}

func readPolicyName(r *reader, n *strictyaml.Node, d *document) {
	s, ok := r.Text(n)
	if ok && (s == "" || len(s) > 128 || strings.ContainsAny(s, "\n\r\t")) {
		r.Fail(n, "", "a policy name is 1 to 128 characters on one line")
	}
	d.name = s
}

func defaultKeys() []key[document] {
	effects := []policy.Effect{policy.Deny, policy.Allow, policy.Audit, policy.Approve}
	words := []string{"deny", "allow", "audit", "approve"}
	one := func(name, doc string, which func(*policy.Defaults) []**policy.Effect) key[document] {
		return key[document]{field{name: name, doc: doc, shape: shape{words: words}}, func(r *reader, n *strictyaml.Node, d *document) {
			i, ok := r.Word(n, "default", words)
			if !ok {
				return
			}
			places := which(&d.defaults)
			for _, e := range places {
				if *e != nil && len(places) > 1 {
					continue // file_read and file_write are more specific than file
				}
				*e = &effects[i]
			}
		}}
	}
	return []key[document]{
		one("command", "Programs no rule matches.", func(d *policy.Defaults) []**policy.Effect { return []**policy.Effect{&d.Command} }),
		one(
			"file_read",
			"Reading, listing and stat of paths no rule matches.",
			func(d *policy.Defaults) []**policy.Effect { return []**policy.Effect{&d.FileRead} },
		),
		one(
			"file_write",
			"Every other operation on paths no rule matches.",
			func(d *policy.Defaults) []**policy.Effect { return []**policy.Effect{&d.FileWrite} },
		),
		one("file", "Both file_read and file_write where these are not given.",
			func(d *policy.Defaults) []**policy.Effect { return []**policy.Effect{&d.FileRead, &d.FileWrite} }),
		one("network", "Destinations no rule matches.", func(d *policy.Defaults) []**policy.Effect { return []**policy.Effect{&d.Network} }),
		one(
			"unix_socket",
			"Unix sockets no rule matches.",
			func(d *policy.Defaults) []**policy.Effect { return []**policy.Effect{&d.UnixSocket} },
		),
		one("signal", "Signals no rule matches.", func(d *policy.Defaults) []**policy.Effect { return []**policy.Effect{&d.Signal} }),
	}
}
