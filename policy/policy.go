// Package policy decides requests of commands by rules.
//
// A [Policy] is made from a [Definition], usually by policy/syntax, which reads
// policy files. [Policy.Evaluate] decides one [Request]. The rules of the
// request's group are tried in order, and the first that matches decides. What
// no rule matches is denied unless [Defaults] say otherwise. The result is a
// [Decision] for the program and a [Diagnostic] for a person.
//
// Other methods return facts of a policy:
//
//   - [Policy.Roots], [Policy.Tree]: which directories a sandbox mounts
//   - [Policy.EnvFilter], [Policy.EnvInject], [Policy.Limits]: how commands start
//   - [Policy.DeniedPrograms]: which programs are recognised by content
//   - [Policy.Settings], [Policy.Unsupported]: what other parts must enforce
//
// [LoaderPayload], [Shebang] and [ShellCommands] read what a command is made of.
//
// The package is pure. It reads no files and makes no system call. A [Policy]
// does not change and is safe for concurrent use.
//
// Evaluate calls the rules of one group (commands.go, files.go, network.go,
// socket.go, signal.go). These call the matchers of their selectors (args.go,
// payload.go, webpath.go, netaddr.go). explain.go and hint.go describe a
// decision afterwards.
package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"slices"

	"agentsh/policy/env"
	"agentsh/policy/glob"
)

// Source is the content of one policy file.
type Source struct {
	Name string `json:"name"` // path shown in positions
	Data []byte `json:"data"`
}

// Definition is what a policy consists of. [New] makes a [Policy] from it.
type Definition struct {
	Name, Description string
	Sources           []Source          // the files, the main one first
	Vars              map[string]string // values of ${NAME} in patterns
	Rules             [GroupCount][]*Rule
	Given             [GroupCount]bool // the group has a key in a file, maybe without rules
	Defaults          Defaults
	Env               EnvSettings // env_policy
	Inject            map[string]Injection
	Limits            Limits
	Audit             AuditSettings
	Approvals         Approvals
	// Transparent are the names of programs whose payload, a command in their
	// arguments, is evaluated too. See [DefaultTransparent].
	Transparent map[string]bool
	ExecFrom    []*glob.Glob // nil: programs run from everywhere
	GitGuard    *Switch      // nil: not given
	Settings    []Setting    // keys that other parts of the product enforce
}

// Defaults are the effects of requests that no rule matches. A nil effect is
// not given, and denies.
type Defaults struct {
	Command    *Effect
	FileRead   *Effect // read, list and stat
	FileWrite  *Effect // every other file operation
	Network    *Effect
	UnixSocket *Effect
	Signal     *Effect
}

// Policy is a set of rules and settings. It is safe for concurrent use.
type Policy struct {
	def      Definition
	digest   string
	commands commandRules
	files    fileRules
	network  networkRules
	sockets  socketRules
	signals  signalRules
}

// New returns the policy of a definition. It keeps the definition and its
// rules: the caller does not change them afterwards.
func New(d Definition) *Policy {
	if d.Vars == nil {
		d.Vars = map[string]string{}
	}
	p := &Policy{def: d, digest: digest(d.Sources, d.Vars)}
	for _, rule := range d.Rules[GroupCommand] {
		if rule.Env != nil {
			rule.filter = mergeFilter(&d.Env, &rule.Command.Env)
		}
	}
	p.files = newFileRules(d.Rules[GroupFile], d.Defaults)
	p.commands = newCommandRules(&d, &p.files)
	p.network = newNetworkRules(d.Rules[GroupNetwork], d.Defaults)
	p.sockets = newSocketRules(d.Rules[GroupUnixSocket], d.Defaults)
	p.signals = signalRules{rules: d.Rules[GroupSignal], other: orDeny(d.Defaults.Signal)}
	return p
}

// orDeny returns a default, or Deny where it is not given.
func orDeny(e *Effect) Effect {
	if e == nil {
		return Deny
	}
	return *e
}

// digest hashes the sources and variables, each with its length.
func digest(sources []Source, vars map[string]string) string {
	h := sha256.New()
	for _, s := range sources {
		hashText(h, s.Name)
		hashText(h, string(s.Data))
	}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		hashText(h, name)
		hashText(h, vars[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

func hashText(h hash.Hash, s string) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(s)))
	h.Write(length[:])
	h.Write([]byte(s))
}

// Name returns the policy's name.
func (p *Policy) Name() string { return p.def.Name }

// Description returns what the policy says it is for.
func (p *Policy) Description() string { return p.def.Description }

// Digest returns the hex SHA-256 of the sources and variables. Two policies with
// the same digest decide alike.
func (p *Policy) Digest() string { return p.digest }

// Sources returns the files the policy was loaded from, the main one first.
func (p *Policy) Sources() []Source { return slices.Clone(p.def.Sources) }

// Vars returns the variables the policy was loaded with.
func (p *Policy) Vars() map[string]string { return maps.Clone(p.def.Vars) }

// Rules returns the rules of one group in the order they are tried. The caller
// does not change them.
func (p *Policy) Rules(g Group) []*Rule {
	if int(g) >= GroupCount {
		return nil
	}
	return p.def.Rules[g]
}

// Governs reports whether the policy has rules or a default for a group.
// Evaluate denies every request of a group that it does not govern.
func (p *Policy) Governs(g Group) bool {
	if int(g) >= GroupCount {
		return false
	}
	d := &p.def.Defaults
	given := p.def.Given[g]
	switch g {
	case GroupFile:
		return given || d.FileRead != nil || d.FileWrite != nil
	case GroupNetwork:
		return given || d.Network != nil
	case GroupUnixSocket:
		return given || d.UnixSocket != nil
	case GroupSignal:
		return given || d.Signal != nil
	default:
		return given || d.Command != nil
	}
}

// EnvFilter returns env_policy merged with a matched command rule, the stricter
// of both. r may be nil. The caller does not change the result.
func (p *Policy) EnvFilter(r *Rule) env.Filter {
	if r == nil || r.Env == nil {
		return p.def.Env.Filter
	}
	return r.filter
}

// EnvSettings returns env_policy as the files give it.
func (p *Policy) EnvSettings() EnvSettings { return p.def.Env }

// EnvInject returns the policy's env_inject.
func (p *Policy) EnvInject() map[string]string {
	out := make(map[string]string, len(p.def.Inject))
	for name, in := range p.def.Inject {
		out[name] = in.Value
	}
	return out
}

// EnvNested returns the sorted names of env_inject that are restored at every
// execve below a command.
func (p *Policy) EnvNested() []string {
	var out []string
	for name, in := range p.def.Inject {
		if in.Nested {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Limits returns resource_limits merged with a matched command rule, the
// stricter of both. r may be nil.
func (p *Policy) Limits(r *Rule) Limits {
	if r == nil || r.Limits == nil {
		return p.def.Limits
	}
	return p.def.Limits.stricter(r.Limits)
}

// Audit returns what the audit log records.
func (p *Policy) Audit() AuditSettings { return p.def.Audit }

// Approvals returns how a person is asked.
func (p *Policy) Approvals() Approvals { return p.def.Approvals }

// Transparent reports whether the payload of a wrapper is evaluated. name is
// what [WrapperName] returns.
func (p *Policy) Transparent(name string) bool { return p.def.Transparent[name] }

// ExecFrom returns the patterns of the only directories programs may run from,
// or nil when the policy does not limit them. Evaluate enforces them.
func (p *Policy) ExecFrom() []string {
	var out []string
	for _, g := range p.def.ExecFrom {
		out = append(out, g.String())
	}
	return out
}

// GitGuard reports whether repositories are guarded, and where the policy says so.
func (p *Policy) GitGuard() (on bool, at Position) {
	if p.def.GitGuard == nil {
		return false, Position{}
	}
	return p.def.GitGuard.On, p.def.GitGuard.Pos
}
