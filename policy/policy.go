// Package policy loads policies and decides requests by them.
//
// A policy is a YAML file and the files it extends. [Load] reads them strictly,
// by one table of keys from which [Schema] is made too, and reports every
// problem at once with its place. [Policy.Evaluate] decides one request: rules of
// its group are tried in file order, the first that matches decides, and what no
// rule matches is denied unless the file's defaults say otherwise. [Lint] names
// what loads but is probably not meant.
//
// The rest are facts of a policy for those who hold it: [Policy.Roots] and
// [Policy.Tree] for mounts, [Policy.EnvFilter], [Policy.EnvInject] and
// [Policy.Limits] for starting commands, [Policy.DeniedPrograms] for telling
// programs by content, [Policy.Unheld] for refusing what cannot be held.
// [LoaderPayload], [Shebang] and [ShellCommands] are pure readers of what a
// command is made of.
//
// The package makes no system call: files are read by the caller, through
// [Options.ReadFile], and facts about programs come in a request.
package policy

import (
	"net/netip"
	"time"

	"agentsh/policy/env"
)

// Source is one policy file as it was read.
type Source struct {
	Name string `json:"name"` // path shown in positions
	Data []byte `json:"data"`
}

// Options are the inputs of [Load] that do not come from the policy file.
type Options struct {
	// Vars are the values of ${NAME} in patterns: WORKSPACE, PROJECT_ROOT,
	// GIT_ROOT, HOME, TMPDIR and the operator's own.
	Vars map[string]string
	// ReadFile returns a file named by extends, relative names being already
	// joined to the directory of the file that names them. Nil refuses extends.
	ReadFile func(name string) ([]byte, error)
	// OutsideWorkspace allows a PROJECT_ROOT that is not in WORKSPACE.
	OutsideWorkspace bool
}

// Position is a place in a policy file. Lines and columns count from 1.
type Position struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
}

// Effect is what a decision does. The zero value is Deny.
type Effect uint8

// The effects, with the word a policy file uses for each.
const (
	Deny       Effect = iota // deny
	Allow                    // allow
	Audit                    // audit: allow, always logged
	Approve                  // approve: wait for a human; no answer denies
	Redirect                 // redirect: run or write something else instead
	SoftDelete               // soft_delete: move to the trash
	Absorb                   // absorb: report success, do nothing (signals)
)

// Rule is one compiled rule, as decisions and diagnostics refer to it.
type Rule struct {
	Name           string
	Description    string
	Group          Group
	Pos            Position
	Effect         Effect
	Message        string        // the author's message as written, may be empty
	ApproveTimeout time.Duration // how long Approve waits; 0: as approvals say
	Redirect       *RedirectTo   // set when Effect is Redirect
	Env            *env.Filter   // command rules: env_allow, env_deny, env_max_*; nil when not given
	Limits         *Limits       // command rules: limits and timeout; nil when not given

	message message
	filter  env.Filter // Env merged with env_policy

	// What the rule selects: the one of its group is set.
	command *commandMatch
	file    *fileMatch
	network *networkMatch
	socket  *socketMatch
	signal  *signalMatch
}

// Decision is the outcome of one request.
type Decision struct {
	Effect Effect
	Rule   *Rule // nil: the group's default applied
}

// Permits reports whether the request may go ahead as it was made.
func (d Decision) Permits() bool { return d.Effect == Allow || d.Effect == Audit }

// Diagnostic explains a decision to a person. It holds no secrets: names,
// positions and the author's texts.
type Diagnostic struct {
	Rule    string   // rule name, or "default"
	Pos     Position // zero for a default
	Message string   // why, one sentence
	Hint    string   // what to change or do instead, may be empty
}

// Group is a kind of rule.
type Group uint8

// The rule groups.
const (
	GroupCommand Group = iota
	GroupFile
	GroupNetwork
	GroupUnixSocket
	GroupSignal
)

// Request is something a command wants to do: *CommandRequest, *FileRequest,
// *NetworkRequest, *UnixSocketRequest or *SignalRequest.
type Request interface{ group() Group }

// Program is one executable file of a command.
//
// The name a program is called by is chosen by whoever calls it, so it can
// make a rule deny but makes a rule permit only where it is trustworthy: the
// link it names stands in a directory the file rules let nobody change, or the
// caller of Evaluate lists it in Names.
type Program struct {
	Called string   // the name it was called by: the path given to execve, or a bare name
	Path   string   // resolved absolute path inside the sandbox; empty: not resolved
	Names  []string // absolute paths of links on the sandbox's own PATH that lead to this file
	Same   []string // paths of denied programs this file is identical to (inode or content)
	Args   []string // of Chain only: its argument vector, Args[0] included; nil: not known

	MultiCall bool // its content is that of a multi-call program, as busybox
}

// CommandRequest asks to run a program.
type CommandRequest struct {
	Program
	Argv        []string  // whole argument vector, Argv[0] included
	Chain       []Program // interpreters of a script, loaders' programs, wrapper payloads; outermost last
	Cwd         string    // absolute, inside the sandbox
	Depth       int       // 0: asked for by the operator; n: n execs below
	Parent      string    // path of the calling program; empty at depth 0
	Ancestors   []string  // paths, nearest first
	Interactive bool      // has a terminal
}

// FileOp is a set of file operations.
type FileOp uint32

// The file operations, in the words of file_rules.
const (
	OpRead FileOp = 1 << iota
	OpWrite
	OpCreate
	OpDelete
	OpRename
	OpList
	OpStat
	OpChmod
	OpChown
	OpLink
	OpSymlink
	OpMkdir
	OpRmdir
	OpMknod
	OpXattr
	OpUtime
	OpExecute
	OpAll FileOp = 1<<iota - 1
)

// FileRequest asks for one operation on one path. Both names of a rename or
// link are two requests.
type FileRequest struct {
	Path string // absolute, inside the sandbox, links resolved
	Op   FileOp // exactly one bit
}

// Intercepted as the Method of a NetworkRequest says that the connection is
// inspected: each HTTP request on it will be evaluated by itself.
const Intercepted = "*"

// NetworkRequest asks for a connection, a bind or a datagram. A request made
// before its host is resolved is made again with the address.
type NetworkRequest struct {
	Domain   string     // host name as normalised; empty when only an address is known
	Addr     netip.Addr // not valid before the name is resolved
	Port     int
	Protocol string // tcp, udp
	Method   string // HTTP method; empty: the connection is not inspected; or Intercepted
	Path     string // HTTP path of an inspected connection
	Binary   string // path of the program that connects
}

// Host is the host name of the request, or its address if it has no name.
func (q *NetworkRequest) Host() string {
	if q.Domain == "" && q.Addr.IsValid() {
		return q.Addr.String()
	}
	return q.Domain
}

// UnixSocketRequest asks to reach or create a Unix socket.
type UnixSocketRequest struct {
	Path string // resolved path, or @name for an abstract socket
	Op   string // connect, bind, listen, sendto
}

// SignalRequest asks to send a signal.
type SignalRequest struct {
	Signal int    // number
	Target string // self, children, descendants, siblings, session, parent, external, system
	PID    int    // inside the sandbox
	Name   string // base name of the target's program
	// SameUser: the target runs as the sender's user.
	SameUser bool
}

func (*CommandRequest) group() Group    { return GroupCommand }
func (*FileRequest) group() Group       { return GroupFile }
func (*NetworkRequest) group() Group    { return GroupNetwork }
func (*UnixSocketRequest) group() Group { return GroupUnixSocket }
func (*SignalRequest) group() Group     { return GroupSignal }
