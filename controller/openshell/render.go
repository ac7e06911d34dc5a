package openshell

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"agentsh/policy"
)

// Guarantee is something that a policy promises and OpenShell does not hold. A
// caller of [Render] may give it up by its word.
type Guarantee struct{ Word, Meaning string }

// Guarantees returns all guarantees that may be given up.
func Guarantees() []Guarantee {
	return []Guarantee{
		{"approvals", "decisions of a person: the rules are left out"},
		{"audit", "the audit log: a rule with audit is written as one that allows"},
		{"baseline_files", "files that OpenShell opens by itself in each sandbox with network policies"},
		{"binary_descendants", "a program in binaries speaks for itself alone: in OpenShell also for what it starts"},
		{"commands", "which programs run, and with which arguments"},
		{"env", "env_policy and env_inject"},
		{"exec_from", "the directories that programs run from: in OpenShell from each directory that is read"},
		{"file_metadata", "stat, chmod, chown, xattr, utime and truncate(2): in OpenShell owners and modes of files decide"},
		{"file_operations", "file operations finer than reading and writing: the tree gets what its reading and writing say"},
		{"file_parts", "rules about a part of a tree that has more rights around it, or about names: they are left out"},
		{"git_guard", "repositories that are safe for others"},
		{"loopback", "rules about loopback addresses: they are left out"},
		{"path_readings", "the further readings of an HTTP path: OpenShell compares one"},
		{"private_addresses", "a host name that resolves to a private address is refused: in OpenShell only for *.NAME"},
		{"redirect", "replacements of files: the rules are left out"},
		{"resource_limits", "limits of memory, processes and time"},
		{"signals", "which processes are signalled"},
		{"soft_delete", "the trash: the rules are left out"},
		{"unix_sockets", "which Unix sockets are used"},
	}
}

// Row says who holds a rule or a setting of a policy in OpenShell.
type Row struct {
	What string // the rule's name, or the setting
	Pos  policy.Position
	Held string // in words
}

// Rendered is a policy of this project as one of OpenShell.
type Rendered struct {
	Policy  *Policy
	Rows    []Row
	Without []string // the guarantees that it does not hold, by their words; sorted
}

// renderer collects what a policy becomes.
type renderer struct {
	policy   *policy.Policy
	without  []string
	out      Rendered
	problems policy.Problems
	lost     []string // guarantees of the problems, by their words
}

// Render writes a policy as one of OpenShell 0.1. What OpenShell does not hold is a
// problem with the rule's position, unless without has the word of the guarantee.
// For file paths and network destinations the result allows what the policy allows,
// apart from these guarantees.
func Render(p *policy.Policy, without []string) (*Rendered, policy.Problems) {
	r := &renderer{policy: p, without: without, out: Rendered{Policy: &Policy{}}}
	for _, w := range without {
		if !slices.Contains(Words(), w) {
			r.fail(policy.Top(r.policy), fmt.Sprintf("%q is no guarantee", w), "one of "+strings.Join(Words(), ", "))
		}
	}
	r.render()
	if len(r.problems) > 0 {
		return nil, r.problems.Sorted()
	}
	slices.Sort(r.out.Without)
	return &r.out, nil
}

// Needed returns the words of all guarantees that a policy must do without in OpenShell: those of without that
// it has, and what it has besides. Whole reports whether it is rendered then; otherwise rules must change too.
func Needed(p *policy.Policy, without []string) (words []string, whole bool) {
	without = slices.Clone(without)
	for {
		r := &renderer{policy: p, without: without, out: Rendered{Policy: &Policy{}}}
		r.render()
		if len(r.lost) == 0 { // a rule that is left out may have hidden another problem
			slices.Sort(r.out.Without)
			return r.out.Without, len(r.problems) == 0
		}
		without = append(without, r.lost...)
	}
}

// Words are the words of all guarantees.
func Words() []string {
	var out []string
	for _, g := range Guarantees() {
		out = append(out, g.Word)
	}
	return out
}

func (r *renderer) render() {
	r.settings()
	r.commands()
	r.files()
	r.network()
	r.baseline()
}

// lose reports whether the caller gives up a guarantee. If not, it records a
// problem.
func (r *renderer) lose(word, what string, at policy.Position, reason string) bool {
	if slices.Contains(r.without, word) {
		if !slices.Contains(r.out.Without, word) {
			r.out.Without = append(r.out.Without, word)
		}
		r.row(what, at, "not held: "+word)
		return true
	}
	if !slices.Contains(r.lost, word) {
		r.lost = append(r.lost, word)
	}
	hint := "take it out, or give up " + word
	if !slices.ContainsFunc(r.problems, func(x policy.Problem) bool { return x.Pos == at && x.Hint == hint }) {
		r.fail(at, what+": "+reason, hint) // one problem for all paths of a rule
	}
	return false
}

func (r *renderer) fail(at policy.Position, message, hint string) {
	x := policy.Problem{Pos: at, Message: message, Hint: hint}
	if !slices.Contains(r.problems, x) {
		r.problems = append(r.problems, x)
	}
}

// row adds a row unless an equal one is there.
func (r *renderer) row(what string, at policy.Position, held string) {
	if x := (Row{what, at, held}); !slices.Contains(r.out.Rows, x) {
		r.out.Rows = append(r.out.Rows, x)
	}
}

// settings are the keys that belong to no rule.
func (r *renderer) settings() {
	for _, s := range r.policy.Settings() {
		group, _, _ := strings.Cut(s.Key, ".")
		switch group {
		case "resource_limits":
			r.lose(group, s.Key, s.Pos, "OpenShell has no limits in a policy")
		case "exec_from":
			r.lose(group, s.Key, s.Pos, "in OpenShell programs run from each directory that is read")
		case "git_guard":
			r.lose(group, s.Key, s.Pos, "OpenShell does not look into files")
		case "signal_rules":
			r.lose("signals", s.Key, s.Pos, "OpenShell has no rules about signals")
		case "unix_socket_rules":
			r.lose("unix_sockets", s.Key, s.Pos, "OpenShell has no rules about Unix sockets")
		}
	}
	if r.policy.EnvSettings().Given {
		r.lose("env", "env_policy", r.key("env_policy"), "OpenShell does not filter variables")
	}
	if len(r.policy.EnvInject()) > 0 {
		r.lose("env", "env_inject", r.key("env_inject"), "OpenShell restores no variables")
	}
}

// key is the position of a key, or the beginning of the policy where no file has it.
func (r *renderer) key(name string) policy.Position {
	if at, ok := r.policy.Key(name); ok {
		return at
	}
	return policy.Top(r.policy)
}

// commands are held only if every command runs.
func (r *renderer) commands() {
	const reason = "OpenShell 0.1 does not judge commands"
	d := r.policy.Defaults().Command
	for _, rule := range r.policy.Rules(policy.GroupCommand) {
		m := rule.Command
		all := m.AllPrograms && m.Args == nil && len(m.Patterns) == 0 && m.Depth == (policy.DepthRange{Max: -1}) &&
			len(m.Parents)+len(m.Ancestors)+len(m.Dirs) == 0 && m.Terminal == 0 && rule.Env == nil && rule.Limits == nil
		if all && rule.Effect == policy.Allow {
			r.row(rule.Name, rule.Pos, "OpenShell: every program runs")
			return
		}
		r.lose("commands", rule.Name, rule.Pos, reason)
	}
	if d == nil || *d != policy.Allow {
		r.lose("commands", "the default of command_rules", r.key("defaults"), reason)
	}
}

// permitted returns the rules of a group that the rendering has. It leaves out the rules
// whose guarantees are given up.
func (r *renderer) permitted(g policy.Group) []*policy.Rule {
	var out []*policy.Rule
	for _, rule := range r.policy.Rules(g) {
		switch rule.Effect {
		case policy.Audit:
			if r.lose("audit", rule.Name, rule.Pos, "OpenShell has a log of its own, without the names of rules") {
				allowed := *rule
				allowed.Effect = policy.Allow
				out = append(out, &allowed)
			}
		case policy.Approve:
			r.lose("approvals", rule.Name, rule.Pos, "OpenShell asks nobody")
		case policy.Redirect:
			r.lose("redirect", rule.Name, rule.Pos, "OpenShell redirects nothing")
		case policy.SoftDelete:
			r.lose("soft_delete", rule.Name, rule.Pos, "OpenShell keeps no deleted files")
		default:
			out = append(out, rule)
		}
	}
	return out
}

// Files that OpenShell opens in each sandbox with network policies, if they exist:
// enrich_proto_baseline_paths in crates/openshell-sandbox/src/lib.rs. A sandbox with GPUs
// has more.
var (
	baselineRead  = []string{"/usr", "/lib", "/etc", "/app", "/var/log", "/proc", "/dev/urandom"}
	baselineWrite = []string{"/tmp"}
)

// baseline compares these files with what the policy allows.
func (r *renderer) baseline() {
	p := r.out.Policy
	if len(p.Network) == 0 {
		return
	}
	const reason = "OpenShell lets each sandbox with network policies %s %s"
	for _, path := range baselineRead {
		if level(p, path) < reads {
			r.lose("baseline_files", path, policy.Top(r.policy), fmt.Sprintf(reason, "read", path))
		}
	}
	for _, path := range baselineWrite {
		if level(p, path) < writes && !slices.Contains(p.ReadOnly, path) {
			r.lose("baseline_files", path, policy.Top(r.policy), fmt.Sprintf(reason, "write", path))
		}
	}
}

// sortRows orders rows by position.
func sortRows(rows []Row) {
	slices.SortStableFunc(rows, func(a, b Row) int {
		return cmp.Or(strings.Compare(a.Pos.File, b.Pos.File), a.Pos.Line-b.Pos.Line, strings.Compare(a.What, b.What))
	})
}
