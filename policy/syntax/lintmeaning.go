package syntax

import (
	"net/netip"
	"slices"
	"strings"

	"agentsh/internal/lazy"
	"agentsh/policy"
)

// effects lists programs that are usually denied because of their effect, and
// programs that have the same effect without starting them. Each execve is
// evaluated, so a denied program stays denied when another starts it. Only
// effects without an execve remain.
var effects = []struct {
	denied, does []string
	instead      string
}{
	{
		[]string{"kill", "killall", "pkill"},
		[]string{"bash", "sh", "dash", "zsh", "ksh", "busybox", "python", "python3", "perl", "ruby", "node"},
		"signal_rules apply to every sender",
	},
	{
		[]string{"rm", "shred", "unlink", "rmdir"},
		[]string{"find", "python", "python3", "perl", "ruby", "node", "busybox", "git", "rsync", "mv", "truncate"},
		"file_rules apply to every program that deletes",
	},
	{
		[]string{"curl", "wget", "nc", "ncat", "netcat", "socat", "telnet", "ftp", "ssh", "scp"},
		[]string{"bash", "python", "python3", "perl", "ruby", "node", "busybox", "git", "openssl", "php"},
		"network_rules apply to every program that connects",
	},
	{
		[]string{"chmod", "chown", "dd", "cp", "mv", "tee", "ln"},
		[]string{"python", "python3", "perl", "ruby", "node", "busybox", "install", "rsync", "tar"},
		"file_rules apply to every program that changes files",
	},
}

// reach warns about denied programs whose effect an allowed program has. It
// also warns about wrappers whose payload the policy does not evaluate.
func (l *linter) reach() {
	for _, rule := range l.p.Rules(policy.GroupCommand) {
		if rule.Effect.Permits() || !unconditional(rule.Command) || wholeGroup(rule) {
			continue
		}
		for _, e := range effects {
			denied := l.named(rule, e.denied)
			if denied == "" {
				continue
			}
			if other := l.allowedAmong(e.does); other != "" {
				l.warn(rule, "reachable", e.instead, "%s is denied, but %s, which is allowed, does the same by itself", denied, other)
			}
		}
		if rule.Command.NameOnly {
			l.warn(rule, "by-name", "remove identity: name", "a copy of the program under another name is not denied")
		}
	}
	for _, in := range []string{policy.LoaderWrapper, policy.MultiCallWrapper} {
		if !l.p.Transparent(in) {
			at, _ := l.p.Key("transparent_commands")
			l.problems = append(l.problems, policy.Problem{
				Pos: at, Severity: policy.SeverityWarning, Code: "unseen-payload",
				Message: "transparent_commands removes " + in + ", whose payload is never seen at an execve of its own", Hint: "keep it",
			})
		}
	}
}

// named returns the first of names that a rule matches.
func (l *linter) named(rule *policy.Rule, names []string) string {
	for _, n := range names {
		if slices.ContainsFunc(rule.Command.Programs, func(e policy.ProgramName) bool { return e.Matches("/usr/bin/" + n) }) {
			return n
		}
	}
	return ""
}

// allowedAmong returns the first of names that the policy allows without
// conditions.
func (l *linter) allowedAmong(names []string) string {
	for _, n := range names {
		d, _ := l.p.Evaluate(&policy.CommandRequest{Program: policy.Program{Called: n, Path: "/usr/bin/" + n}, Argv: []string{n}})
		if d.Permits() {
			return n
		}
	}
	return ""
}

func zeroBits(p netip.Prefix) bool { return p.Bits() == 0 }

// meaning warns about settings that are applied more strictly than their text
// may suggest. It also warns about settings that have another meaning in files
// for another program.
func (l *linter) meaning() {
	asked := l.p.Approvals().Via == ""
	for g := range policy.GroupCount {
		for _, rule := range l.p.Rules(policy.Group(g)) {
			if rule.Effect == policy.Approve && asked {
				l.warn(rule, "nobody-asked", "add approvals", "decision: approve denies, since no approvals are set")
				asked = false
			}
			if slices.Contains(rule.Template, "Args") {
				l.warn(rule, "args-hidden", "", "{{.Args}} shows how many arguments there are, not their text, which may hold secrets")
			}
		}
	}
	for _, s := range l.p.Settings() {
		warn := func(code, message, hint string) {
			l.problems = append(l.problems, policy.Problem{Pos: s.Pos, Severity: policy.SeverityWarning, Code: code, Message: message, Hint: hint})
		}
		switch s.Key {
		case "signal_rules.fallback":
			warn("fallback", "fallback is never used: no session starts with a rule that cannot be enforced", "remove it")
		case "network_rules.protocols.udp":
			warn(
				"datagrams",
				"no session starts with it: datagrams do not leave a session",
				"permit protocols: [tcp]; a rule that denies udp is fine",
			)
		case "unix_socket_rules.operations.listen":
			warn("listen", "no session starts with it: a socket that was bound may listen", "write bind")
		}
	}
	for _, rule := range l.p.Rules(policy.GroupFile) {
		if word := rule.File.Alias; word != "" {
			stands, _ := policy.ParseFileOp(word)
			l.warn(
				rule,
				"operation-alias",
				"write "+stands.String(),
				"%s stands for %s; write is an operation of its own",
				word,
				stands,
			)
			break
		}
	}
	for _, rule := range l.p.Rules(policy.GroupNetwork) {
		m := rule.Network
		wide := m.Any || !m.HasDomains && len(m.CIDRs) == 0 || slices.ContainsFunc(m.CIDRs, zeroBits)
		if wide && rule.Effect != policy.Deny {
			l.warn(rule, "guarded", "name them in cidrs to permit them", "loopback, link-local and metadata addresses stay refused")
			break
		}
	}
	l.spelling()
	for _, rule := range l.p.Rules(policy.GroupCommand) {
		for _, e := range rule.Command.Programs {
			if text := e.Glob.String(); text != strings.ToLower(text) {
				l.warn(rule, "case", "", "%q is matched with its capitals: names are case-sensitive", text)
			}
		}
		if rule.Command.Env.HasAllow && l.p.EnvSettings().HasAllow {
			l.warn(rule, "env-narrows", "list them in env_policy.allow too", "env_allow narrows env_policy.allow, it adds nothing to it")
		}
	}
}

// twoLabels matches a pattern such as *example.com, which also matches the names
// of strangers.
var twoLabels = lazy.Regexp(`^\*([A-Za-z0-9][A-Za-z0-9-]*\.[A-Za-z]+)$`)

// spelling warns about values that match something else than they seem to.
func (l *linter) spelling() {
	for _, rule := range l.p.Rules(policy.GroupNetwork) {
		for _, g := range rule.Network.Domains {
			if m := twoLabels().FindStringSubmatch(g.String()); m != nil {
				l.warn(
					rule,
					"wide-domain",
					"write "+m[1]+` and "*.`+m[1]+`"`,
					"%q also matches names such as not%s, and no name below %s",
					g.String(),
					m[1],
					m[1],
				)
			}
		}
	}
	for _, rule := range l.p.Rules(policy.GroupCommand) {
		for i, w := range rule.Command.Args {
			words := strings.Fields(w.Text)
			text := i > 0 && strings.HasPrefix(rule.Command.Args[i-1].Text, "-") // the value of an option
			if len(words) > 1 && !w.Option && !text && !strings.ContainsAny(w.Text, `*?[{\`) {
				l.warn(rule, "one-argument", "write ["+strings.Join(words, ", ")+"]", "%q is one argument with a blank in it", w.Text)
			}
		}
	}
}
