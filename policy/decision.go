package policy

import (
	"strings"
	"time"

	"agentsh/internal/wire"
	"agentsh/policy/env"
	"agentsh/policy/glob"
)

// Effect is the effect of a decision. The zero value is Deny.
type Effect uint8

// The effects. Each comment starts with the value in policy files.
const (
	Deny       Effect = iota // deny
	Allow                    // allow
	Audit                    // audit: allow, always logged
	Approve                  // approve: wait for a person; no answer denies
	Redirect                 // redirect: run or write something else instead
	SoftDelete               // soft_delete: move to the trash
	Absorb                   // absorb: report success, do nothing (signals)
)

// Group is a rule group. Each kind of request has one.
type Group uint8

// The rule groups.
const (
	GroupCommand Group = iota
	GroupFile
	GroupNetwork
	GroupUnixSocket
	GroupSignal
)

// Rule is one compiled rule. It must not be changed after [New].
type Rule struct {
	Name           string
	Description    string
	Group          Group
	Pos            Position
	Effect         Effect
	Message        string        // the author's message as written, may be empty
	Template       Template      // Message, parsed
	ApproveTimeout time.Duration // how long Approve waits; 0: as Approvals say
	Redirect       *RedirectTo   // set when Effect is Redirect
	Env            *env.Filter   // command rules: env_allow, env_deny, env_max_*; nil when not given
	Limits         *Limits       // command rules: limits and timeout; nil when not given
	Accepted       []string      // codes of the warnings about the rule that its author accepts

	// Conditions of the rule. Only the field of the rule's group is set.
	Command *CommandSelector
	File    *FileSelector
	Network *NetworkSelector
	Socket  *SocketSelector
	Signal  *SignalSelector

	filter env.Filter // Env merged with env_policy
}

// RedirectTo is the replacement for a redirected request.
type RedirectTo struct {
	Command      string // a name on the sandbox's PATH, or an absolute path
	Args         []string
	ArgsAppend   []string
	Environment  map[string]string
	Path         string // file rules: the directory written to instead
	PreserveTree bool   // file rules: keep the original path below Path
	Signal       int    // signal rules: sent instead
}

// At returns the rule's name and position.
func (rule *Rule) At() *wire.RuleAt { return ruleAt(rule.Name, rule.Pos) }

// Decision is the result of evaluating one request.
type Decision struct {
	Effect Effect
	Rule   *Rule // nil: the group's default applied
}

// Permits reports whether the request may proceed unchanged.
func (d Decision) Permits() bool { return d.Effect.Permits() }

// Diagnostic explains a decision to a person. It contains no secrets: only
// names, positions and messages of rules.
type Diagnostic struct {
	Rule    string   // rule name, or "default"
	Pos     Position // zero for a default
	Message string   // why, one sentence
	Hint    string   // what to change or do instead, may be empty
}

// At returns the name and position of the rule, or of a default only its name.
func (d Diagnostic) At() *wire.RuleAt { return ruleAt(d.Rule, d.Pos) }

func ruleAt(name string, pos Position) *wire.RuleAt {
	return &wire.RuleAt{Name: name, File: pos.File, Line: pos.Line, Column: pos.Column}
}

var effectWords = [...]string{
	Deny: "deny", Allow: "allow", Audit: "audit", Approve: "approve",
	Redirect: "redirect", SoftDelete: "soft_delete", Absorb: "absorb",
}

// String returns the value in policy files, for example "soft_delete".
func (e Effect) String() string {
	if int(e) < len(effectWords) {
		return effectWords[e]
	}
	return "deny"
}

var groupWords = [...]string{
	GroupCommand: "command", GroupFile: "file", GroupNetwork: "network",
	GroupUnixSocket: "unix_socket", GroupSignal: "signal",
}

// String returns "command", "file", "network", "unix_socket" or "signal".
func (g Group) String() string {
	if int(g) < len(groupWords) {
		return groupWords[g]
	}
	return "unknown"
}

// GroupCount is the number of groups.
const GroupCount = len(groupWords)

// Permits reports whether the effect lets a request proceed unchanged: Allow
// and Audit.
func (e Effect) Permits() bool { return e == Allow || e == Audit }

// strictness orders effects for requests that have several names. The lowest
// value applies.
var strictness = [...]int{
	Deny: 0, Approve: 1, Absorb: 2, Redirect: 3, SoftDelete: 4, Audit: 5, Allow: 6,
}

// ProgramName is one entry of commands, parent, ancestor or binaries.
type ProgramName struct {
	Glob      *glob.Glob
	WholePath bool // matched on the whole path, not the base name
}

// Matches reports whether the entry matches the program at an absolute path.
func (e ProgramName) Matches(path string) bool {
	if path == "" {
		return false
	}
	if e.WholePath {
		return e.Glob.Match(path)
	}
	return e.Glob.Match(base(path))
}

// All reports whether the entry matches every program.
func (e ProgramName) All() bool {
	return !e.WholePath && e.Glob.String() == "*" || e.WholePath && e.Glob.Covers("/")
}

func matchesAny(list []ProgramName, path string) bool {
	for _, e := range list {
		if e.Matches(path) {
			return true
		}
	}
	return false
}

// base returns the part after the last slash.
func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
