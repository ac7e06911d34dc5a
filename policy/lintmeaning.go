package policy

import (
	"net/netip"
	"slices"
	"strings"
)

// effects lists programs that are denied for what they do, and programs that
// do the same without starting them. Each execve is judged, so what another
// program starts is still denied; what it does by itself is not.
var effects = []struct {
	denied, does []string
	instead      string
}{
	{
		[]string{"kill", "killall", "pkill"},
		[]string{"bash", "sh", "dash", "zsh", "ksh", "busybox", "python", "python3", "perl", "ruby", "node"},
		"signal_rules hold whoever sends the signal",
	},
	{
		[]string{"rm", "shred", "unlink", "rmdir"},
		[]string{"find", "python", "python3", "perl", "ruby", "node", "busybox", "git", "rsync", "mv", "truncate"},
		"file_rules hold whoever deletes",
	},
	{
		[]string{"curl", "wget", "nc", "ncat", "netcat", "socat", "telnet", "ftp", "ssh", "scp"},
		[]string{"bash", "python", "python3", "perl", "ruby", "node", "busybox", "git", "openssl", "php"},
		"network_rules hold whoever connects",
	},
	{
		[]string{"chmod", "chown", "dd", "cp", "mv", "tee", "ln"},
		[]string{"python", "python3", "perl", "ruby", "node", "busybox", "install", "rsync", "tar"},
		"file_rules hold whoever changes files",
	},
}

// reach warns of denied programs whose effect an allowed program has, and of
// wrappers whose payload was chosen not to be looked at.
func (l *linter) reach() {
	for _, rule := range l.p.groups[GroupCommand].rules {
		if rule.Effect.permits() || !rule.command.unconditional() || rule.wholeGroup() {
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
		if rule.command.byName {
			l.warn(rule, "by-name", "remove identity: name", "a copy of the program under another name is not denied")
		}
	}
	for _, in := range []string{loaderName, boxName} {
		if !l.p.transparent[in] {
			l.problems = append(l.problems, Problem{
				Pos: Position{l.p.sources[0].Name, 1, 1}, Severity: SeverityWarning, Code: "unseen-payload",
				Message: "transparent_commands removes " + in + ", whose payload is never seen at an execve of its own", Hint: "keep it",
			})
		}
	}
}

// named returns the first of names that a rule names.
func (l *linter) named(rule *Rule, names []string) string {
	for _, n := range names {
		if matchesAny(rule.command.entries, "/usr/bin/"+n) {
			return n
		}
	}
	return ""
}

// allowedAmong returns the first of names that the policy permits without
// conditions.
func (l *linter) allowedAmong(names []string) string {
	for _, n := range names {
		d, _ := l.p.Evaluate(&CommandRequest{Program: Program{Called: n, Path: "/usr/bin/" + n}, Argv: []string{n}})
		if d.Permits() {
			return n
		}
	}
	return ""
}

func zeroBits(p netip.Prefix) bool { return p.Bits() == 0 }

// meaning warns of settings that are read more strictly than their words may
// suggest, or than files written for another program with these keys expect.
func (l *linter) meaning() {
	asked := l.p.approvals.Via == ""
	for g := range groupCount {
		for _, rule := range l.p.groups[g].rules {
			if rule.Effect == Approve && asked {
				l.warn(rule, "nobody-asked", "add approvals", "decision: approve denies, since no approvals are set")
				asked = false
			}
			if slices.Contains(rule.message, "Args") {
				l.warn(rule, "args-hidden", "", "{{.Args}} shows how many arguments there are, not their text, which may hold secrets")
			}
		}
	}
	for _, s := range l.p.settings {
		warn := func(code, message, hint string) {
			l.problems = append(l.problems, Problem{Pos: s.Pos, Severity: SeverityWarning, Code: code, Message: message, Hint: hint})
		}
		switch s.Key {
		case "signal_rules.fallback":
			warn("fallback", "fallback is never used: a rule that cannot be held stops the start", "remove it")
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
	for _, rule := range l.p.groups[GroupFile].rules {
		if word := rule.file.alias; word != "" {
			l.warn(
				rule,
				"operation-alias",
				"write "+opAliases[word].String(),
				"%s stands for %s; writing is judged by itself",
				word,
				opAliases[word],
			)
			break
		}
	}
	for _, rule := range l.p.groups[GroupNetwork].rules {
		m := rule.network
		wide := m.any || !m.hosts && len(m.cidrs) == 0 || slices.ContainsFunc(m.cidrs, zeroBits)
		if wide && rule.Effect != Deny {
			l.warn(rule, "guarded", "name them in cidrs to permit them", "loopback, link-local and metadata addresses stay refused")
			break
		}
	}
	for _, rule := range l.p.groups[GroupCommand].rules {
		for _, e := range rule.command.entries {
			if text := e.glob.String(); text != strings.ToLower(text) {
				l.warn(rule, "case", "", "%q is matched with its capitals: names are case-sensitive", text)
			}
		}
		if rule.command.env.allowed && l.p.env.allowed {
			l.warn(rule, "env-narrows", "list them in env_policy.allow too", "env_allow narrows env_policy.allow, it adds nothing to it")
		}
	}
}
