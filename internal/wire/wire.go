// Package wire holds the messages between the command lines, the supervisor
// and the controller. Every message is JSON, at most [MaxMessage] bytes, and a
// connection starts with a [Hello] that names the protocol version.
package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"
)

// MaxMessage is the largest message, in bytes. Bulk data is not sent in messages.
const MaxMessage = 4 << 20

// Version is a protocol version. A peer with another major version is refused.
type Version struct {
	Major int `json:"major"`
	Minor int `json:"minor"`
}

// Current is the version of this build. Since 1.1 a supervisor proves [Bootstrap.Require],
// since 1.2 the words of an [ExecRequest] may hold any bytes, since 1.3 credentials can be
// renewed.
var Current = Version{Major: 1, Minor: 3}

// Hello is the first message of the supervisor on a connection.
type Hello struct {
	Version      Version  `json:"version"`
	Build        string   `json:"build"`
	BootID       string   `json:"boot_id"`
	Instance     string   `json:"instance"` // random, one per supervisor process
	PolicyDigest string   `json:"policy_digest"`
	Capabilities []string `json:"capabilities"`       // verified at start, for example "exec_notify"
	Engine       string   `json:"engine"`             // what stops the calls of commands
	Degraded     []string `json:"degraded"`           // mechanisms that the session runs without, sorted
	Advisory     string   `json:"advisory,omitempty"` // rules that nothing enforces in the session
	// Guarantees are the groups of rules, each with what enforces it in the session. Absent: a
	// supervisor that does not say it.
	Guarantees []Guarantee `json:"guarantees,omitempty"`
}

// Guarantee says whether a supervisor holds a group of rules in its session.
type Guarantee struct {
	Group string `json:"group"` // one of the groups of this package
	Held  bool   `json:"held"`
	How   string `json:"how"` // the mechanism; for one that is not held, what is left of it
}

// Groups of rules that a session or its place holds.
const (
	GroupCommands     = "commands"
	GroupFiles        = "files outside the workspace"
	GroupWorkspace    = "files in the workspace"
	GroupRepositories = "repositories"
	GroupSignals      = "signals"
	GroupNetwork      = "network"
	GroupCredentials  = "credentials"
	GroupUnixSockets  = "unix sockets"
	GroupLimits       = "limits"
	GroupEnv          = "env_inject"
	GroupEnvNested    = "env_inject, nested"
	GroupBuiltins     = "builtins of shells"
)

// PolicySource is one policy file with its content.
type PolicySource struct {
	Name string `json:"name"`
	Data []byte `json:"data"`
}

// Bootstrap describes the session that a new supervisor opens. It is sent over a
// descriptor, never in arguments or the environment.
type Bootstrap struct {
	Version         Version           `json:"version"`
	Policy          []PolicySource    `json:"policy"` // the main file first, then what it extends
	Vars            map[string]string `json:"vars"`
	EnvInject       map[string]string `json:"env_inject"` // from the operator's configuration; the policy's env_inject wins
	Governed        []Governed        `json:"governed"`
	EnvDir          string            `json:"env_dir"`                // .env.d inside the sandbox; empty: none
	Home            string            `json:"home"`                   // inside the sandbox
	Path            string            `json:"path,omitempty"`         // PATH of commands; empty: the configuration's
	AuditPath       string            `json:"audit_path"`             // outside the sandbox
	AuditKey        string            `json:"audit_key"`              // file of the key of the log's anchor; empty: AuditPath and ".key"
	StoreDir        string            `json:"store_dir,omitempty"`    // directory of the trash and the checkpoints, outside; empty: none
	ExportDir       string            `json:"export_dir,omitempty"`   // outside: gets the trash at OpEnd and is shown as [layout.Export]; empty: no OpEnd
	Hidden          []string          `json:"hidden,omitempty"`       // outside: files that commands never see, whatever rules say
	HostKey         []byte            `json:"host_key"`               // OpenSSH private key of the supervisor
	AuthorizedKey   []byte            `json:"authorized_key"`         // OpenSSH public key of the controller
	Network         bool              `json:"network"`                // true: share the caller's network, with a warning
	NetworkBy       string            `json:"network_by,omitempty"`   // who decides about the caller's network, which is shared then; empty: the policy
	NetworkVars     map[string]string `json:"network_vars,omitempty"` // of that network; [PlaceServe] takes them from its own environment
	Program         bool              `json:"program,omitempty"`      // the supervisor's own program is shown at [layout.Program]
	Credentials     []Credential      `json:"credentials,omitempty"`  // no other message contains their values, but [OpRenew] new ones
	Degraded        []Setting         `json:"degraded,omitempty"`     // mechanisms that the session may start without, beside the operator's
	Require         []Setting         `json:"require,omitempty"`      // what must be proven before it starts, beside what the operator requires
	LifetimeSeconds int               `json:"lifetime_seconds"`       // the sandbox ends after this time; 0: when its controller ends
	Origin          Origin            `json:"origin,omitzero"`        // where the policy came from
	Keep            *Keep             `json:"keep,omitempty"`         // nil: the session ends when its controller ends
	Identity        Identity          `json:"identity,omitzero"`      // of the operator, for git
	Resume          *Resume           `json:"resume,omitempty"`       // of a session whose controller is elsewhere
}

// Origin is what a command line said about the policy of its session.
type Origin struct {
	Policy string `json:"policy_file,omitempty"` // the file that was used, absolute
	Named  bool   `json:"named,omitempty"`       // the command line named it; false: it was found
	Config string `json:"config,omitempty"`      // the configuration that the command line named, absolute; empty: none
}

// Setting is a name that a harness or a command line has.
type Setting struct {
	Name string `json:"name"`
	At   string `json:"at"` // file:line:column, or the flag
}

// Keep has a session go on when its controller ends without ending the session.
type Keep struct {
	Dir     string `json:"dir"`     // outside: gets the socket for further controllers, and [Kept]
	Seconds int    `json:"seconds"` // from the end of the controller on
}

// Resume has a session outlive a broken stream to its controller.
type Resume struct {
	Token   []byte `json:"token"`   // of the controller's next streams
	Seconds int    `json:"seconds"` // without a stream, until the session ends
}

// Dead is the time without an answer after which a peer is dead. A stream may be broken
// meanwhile.
func (r *Resume) Dead() time.Duration { return time.Duration(r.Seconds)*time.Second + 30*time.Second }

// Kept describes a session that goes on without its controller.
type Kept struct {
	Until time.Time `json:"until"`
}

// Credential is a secret that commands see as a placeholder. The supervisor's
// proxy replaces the placeholder by the value, in requests to the endpoints only.
type Credential struct {
	Name        string   `json:"name"` // shown in events and refusals
	Placeholder string   `json:"placeholder"`
	Value       string   `json:"value"`
	Endpoints   []string `json:"endpoints"` // a name or *.name, with :port unless that is 443
	// Exactly one of these is set: the allowed position in a request.
	Header string `json:"header,omitempty"` // the only header
	Query  string `json:"query,omitempty"`  // the only query parameter
	Path   bool   `json:"path,omitempty"`   // the path
}

// CredentialValue is a new value of a credential.
type CredentialValue struct {
	Name  string `json:"name"` // of the [Credential]
	Value string `json:"value"`
}

// ShortestCredential is the smallest length of a credential's value, in bytes. A
// shorter value could not be distinguished from other text.
const ShortestCredential = 8

// Governed is a directory shown inside the sandbox under file policy.
type Governed struct {
	Backing string `json:"backing"` // outside
	Path    string `json:"path"`    // inside
}

// ExecRequest starts one command. Argv, Program, Cwd, Env and the values of Run may hold
// any bytes but NUL.
type ExecRequest struct {
	ID   string   `json:"request_id"`
	Argv []string `json:"argv"`
	// Program is the file to execute, absolute, inside; empty: the program argv[0].
	Program string `json:"program,omitempty"`
	// Otherwise are tried in order while the program before does not exist.
	Otherwise []ExecWords `json:"otherwise,omitempty"`

	Cwd string   `json:"cwd"`           // absolute, inside the sandbox; empty: the workspace
	Env []string `json:"env,omitempty"` // NAME=value
	// Run are the variables of the run. Only the controller sets them. Their names
	// start with AGENTSH_. They have the precedence of the supervisor's variables:
	// no file and no filter changes them.
	Run map[string]string `json:"run,omitempty"`
	// Setup is set for commands that make .env files: they run before the files are
	// read, without their variables.
	Setup        bool   `json:"setup,omitempty"`
	By           string `json:"by,omitempty"`    // recorded requester; empty: the run itself
	Via          string `json:"via,omitempty"`   // how a person asked, one of the values below; the policy must permit it
	Stdin        bool   `json:"stdin,omitempty"` // false: /dev/null
	TTY          *TTY   `json:"tty,omitempty"`   // nil: pipes
	DeadlineMS   int64  `json:"deadline_ms,omitempty"`
	OnDisconnect string `json:"on_disconnect,omitempty"` // kill, the default and only value
	Output       string `json:"output,omitempty"`        // block (default) or drop_middle
	// Reasons has the reasons of refusals written to the standard error of the
	// processes that the command starts.
	Reasons bool `json:"reasons,omitempty"`
}

// ExecWords are the words of a command: see [ExecRequest].
type ExecWords struct {
	Argv    Names `json:"argv"`
	Program Name  `json:"program,omitempty"`
}

// Values of [ExecRequest.Via]. Any other command has none.
const (
	ViaSSH     = "ssh"     // a session of ssh: a command, a shell or file transfer
	ViaForward = "forward" // a connection that ssh forwards
)

// TTY is a terminal request.
type TTY struct {
	Term string `json:"term"`
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Kinds of [Exit].
const (
	ExitExited      = "exited"
	ExitSignaled    = "signaled"
	ExitDeadline    = "deadline"
	ExitOOM         = "oom"
	ExitDenied      = "denied"
	ExitSpawnFailed = "spawn_failed"
	ExitLost        = "lost"
)

// Exit describes how a command ended. Code is valid for ExitExited and
// ExitSpawnFailed only.
type Exit struct {
	Kind    string  `json:"kind"`
	Code    int     `json:"code"`
	Signal  int     `json:"signal,omitempty"`
	Message string  `json:"message,omitempty"` // one sentence; denied, spawn_failed, oom and deadline have one
	Hint    string  `json:"hint,omitempty"`
	Rule    *RuleAt `json:"rule,omitempty"`  // denied: the rule
	Cause   Cause   `json:"cause,omitempty"` // why the session ended, if that ended the command
	Rusage  Rusage  `json:"rusage"`

	// NothingRefused is set by a client, from [TreeEmpty].
	NothingRefused bool `json:"-"`
}

// ExitCode returns the exit status that a command line reports for e: the command's
// own status, 124 after a deadline, 125 for an error of agentsh, 126 for a denied
// program, 127 for a missing one, or 128 plus the number of a signal.
func (e Exit) ExitCode() int {
	switch e.Kind {
	case ExitExited:
		return e.Code
	case ExitSignaled, ExitOOM:
		return 128 + e.Signal
	case ExitDeadline:
		return 124
	case ExitDenied:
		return 126
	case ExitSpawnFailed:
		return e.Code
	default:
		return 125
	}
}

// Said returns what a command line says about the end of the command name, and advice.
// Both may be empty. A denial is said with the other denials.
func (e Exit) Said(name string) (message, hint string) {
	switch {
	case e.Cause != "", e.Kind == ExitSpawnFailed, e.Kind == ExitLost:
		return e.Message, e.Hint
	case e.Kind == ExitDeadline:
		return name + ": ended by its timeout", ""
	case e.Kind == ExitOOM:
		return name + ": " + e.Message, e.Hint
	}
	return "", ""
}

// Rusage is the resource usage of a command and of the children it waited for.
// See getrusage(2).
type Rusage struct {
	UserMicros   int64 `json:"user_us"`
	SystemMicros int64 `json:"system_us"`
	MaxRSSBytes  int64 `json:"max_rss_bytes"`
}

// RuleAt is the position of a rule of a policy.
type RuleAt struct {
	Name   string `json:"name"`             // "default" where no rule matched
	File   string `json:"file,omitempty"`   // empty for a default
	Line   int    `json:"line,omitempty"`   // from 1
	Column int    `json:"column,omitempty"` // from 1
}

// Position returns "file:line:column", or an empty text for a default.
func (r RuleAt) Position() string {
	if r.Line == 0 {
		return r.File
	}
	return r.File + ":" + strconv.Itoa(r.Line) + ":" + strconv.Itoa(r.Column)
}

// String returns "name (file:line:column)", or the name alone for a default.
func (r RuleAt) String() string {
	if r.File == "" {
		return r.Name
	}
	return r.Name + " (" + r.Position() + ")"
}

// TreeEmpty is sent when the wait for a command's process tree ends. Leftover is
// empty if no process is left.
type TreeEmpty struct {
	Leftover []int `json:"leftover,omitempty"` // process ids inside the sandbox
	// NothingRefused says that the policy refused nothing in the session while the command ran.
	NothingRefused bool `json:"nothing_refused,omitempty"`
}

// Event types.
const (
	EventSession = "session" // begin, end
	EventCommand = "command" // begin, end of a top-level command
	EventExec    = "exec"    // a nested program
	EventFile    = "file"
	EventNet     = "net"
	EventSignal  = "signal"
	EventCall    = "call" // a system call that sessions refuse
	EventEnv     = "env"
	EventHost    = "host"  // a change of the workspace that a process outside the session made
	EventFault   = "fault" // an error of the supervisor; it denied
	// EventApproval is a question to a person. The begin event is the question, the
	// end event has the decision and By.
	EventApproval = "approval"
)

// OpUnreachable is the operation of the event that ends a connection which a rule permits and
// which could not be made: its host has no address, or no address answers.
const OpUnreachable = "unreachable"

// Event is one line of the audit log.
type Event struct {
	Seq       uint64    `json:"seq"`
	Time      time.Time `json:"time"`
	MonoNanos int64     `json:"mono_ns"`
	Session   string    `json:"session,omitempty"`
	Command   string    `json:"command,omitempty"` // request id of the top-level command
	Type      string    `json:"type"`
	Phase     string    `json:"phase,omitempty"` // begin, end
	Process   *Process  `json:"process,omitempty"`
	Argv      Names     `json:"argv,omitempty"`
	Path      string    `json:"path,omitempty"`      // program, file, socket
	Called    string    `json:"called,omitempty"`    // the path that a program was started by, where it is not Path
	Chain     Names     `json:"chain,omitempty"`     // interpreters of a script, and the program that a dynamic loader runs
	Target    string    `json:"target,omitempty"`    // second name of rename or link, host:port, signal target
	Op        string    `json:"op,omitempty"`        // file or socket operation, signal name, exec_switched, exec_unjudged
	Decision  string    `json:"decision,omitempty"`  // allow, deny, ...
	By        string    `json:"by,omitempty"`        // approval: who answered; command: the requester, if it was not the session's owner
	Mechanism string    `json:"mechanism,omitempty"` // the enforcing mechanism: seccomp, fuse, mount, launch, ...
	// HeldBy is for the begin of a session: the mechanisms that hold each guarantee.
	HeldBy   map[string]string `json:"held_by,omitempty"`
	GitGuard bool              `json:"git_guard,omitempty"` // begin of a session: its policy has git_guard
	Rule     *RuleAt           `json:"rule,omitempty"`
	Cause    Cause             `json:"cause,omitempty"` // end of a session: why
	Message  string            `json:"message,omitempty"`
	Hint     string            `json:"hint,omitempty"`
	Count    int               `json:"count,omitempty"` // repeats within a second that this event includes
	Exit     *Exit             `json:"exit,omitempty"`
	Output   *OutputEnd        `json:"output,omitempty"` // end of a command that ran: the bytes read from it, whether or not its caller received them
	Net      *Net              `json:"net,omitempty"`
	Env      []string          `json:"env,omitempty"` // names only, never values
	Prev     string            `json:"prev,omitempty"`
	Hash     string            `json:"hash,omitempty"`
}

// Process identifies a process. StartTime distinguishes it from a later process
// with the same PID.
type Process struct {
	PID       int    `json:"pid"`                  // thread group id, supervisor's view; 0: already gone
	Inside    int    `json:"pid_inside,omitempty"` // thread id in the session's own pid namespace
	StartTime uint64 `json:"start_time"`           // clock ticks since boot, proc(5) field 22
	Exe       string `json:"exe,omitempty"`
	Cwd       string `json:"cwd,omitempty"`
	Mark      uint64 `json:"mark,omitempty"` // mark of its command, inside the supervisor only; never in a log
}

// FileInfo is one file in a reply of the files channel.
type FileInfo struct {
	Name    Name      `json:"name"`
	Size    int64     `json:"size"`
	Mode    uint32    `json:"mode"` // permission bits
	Type    string    `json:"type"` // file, dir, symlink, other
	ModTime time.Time `json:"mtime"`
	Target  Name      `json:"target,omitempty"` // symlink
	SHA256  string    `json:"sha256,omitempty"` // write: of the written content
}

// ChangeKind is the net change of a file since the change record began.
type ChangeKind string

// The kinds of [Change].
const (
	Created  ChangeKind = "created"  // there was no file at Path
	Modified ChangeKind = "modified" // content or attributes differ
	Deleted  ChangeKind = "deleted"  // there is no file at Path any more
	Renamed  ChangeKind = "renamed"  // the file at Path was at From
)

// Change is one entry of the change record of a governed directory.
type Change struct {
	Path Name       `json:"path"` // relative to the governed directory
	Kind ChangeKind `json:"kind"`
	From Name       `json:"from,omitempty"` // only of Renamed
	// By says who made the change: empty, the session alone.
	By ChangedBy `json:"by,omitempty"`
}

// ChangedBy says who changed a file.
type ChangedBy string

// The values of [Change.By].
const (
	ByHost ChangedBy = "host" // a process outside the session
	ByBoth ChangedBy = "both" // the session and a process outside
)

// Mark is what a list for people adds to a name; empty: the session alone changed it.
func (b ChangedBy) Mark() string {
	if b == "" {
		return ""
	}
	return " (" + string(b) + ")"
}

// ManifestEntry is one file of an archive.
type ManifestEntry struct {
	Path   Name   `json:"path"`
	Type   string `json:"type"` // file, dir, symlink
	Mode   uint32 `json:"mode"`
	Size   int64  `json:"size"`
	SHA256 Digest `json:"sha256,omitzero"` // of a file's content
	Target Name   `json:"target,omitempty"`
}

// Digest is a SHA-256. Its text is in hex; that of the zero value is empty. It takes half
// the memory of that text, which counts in lists of many files.
type Digest [sha256.Size]byte

func (d Digest) String() string {
	if d.IsZero() {
		return ""
	}
	return hex.EncodeToString(d[:])
}

// IsZero reports whether there is no digest.
func (d Digest) IsZero() bool { return d == Digest{} }

// MarshalText implements [encoding.TextMarshaler].
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Digest) UnmarshalText(text []byte) error {
	*d = Digest{}
	if len(text) == 0 {
		return nil
	}
	if len(text) != hex.EncodedLen(len(d)) {
		return fmt.Errorf("a SHA-256 of %d characters, not %d", len(text), hex.EncodedLen(len(d)))
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// Manifest lists the entries of an archive. It is the last part of the archive:
// an archive without it was truncated.
type Manifest struct {
	Entries []ManifestEntry `json:"entries"`
	Deleted Names           `json:"deleted,omitempty"`
	Skipped []string        `json:"skipped,omitempty"` // for people: the name, quoted as in Go, and the reason
}
