package wire

import "time"

// Kinds of [Question].
const (
	AskExec   = "exec"
	AskFile   = "file"
	AskNet    = "net"
	AskSignal = "signal"
)

// Largest parts of a [Question], in bytes. What is longer cannot be shown to a
// person as a whole, and is denied.
const (
	MaxSubject  = 4 << 10
	MaxQuestion = 32 << 10
)

// Question is one thing that a person decides. An allow covers exactly what it
// says: whoever asks holds what happens to it.
type Question struct {
	Session string   `json:"session"`
	Command string   `json:"command"` // request id of the top-level command
	Kind    string   `json:"kind"`
	Subject string   `json:"subject"`        // exec: the program's path; file: "write /path"; net: "tcp host:port"
	Argv    []string `json:"argv,omitempty"` // exec
	Cwd     string   `json:"cwd,omitempty"`  // exec
	// Files are those of an exec whose content decides what runs: the program or
	// script, its interpreters, the program of the dynamic loader.
	Files   []QuestionFile `json:"files,omitempty"`
	Process *Process       `json:"process,omitempty"`
	Rule    *RuleAt        `json:"rule,omitempty"`
	Message string         `json:"message,omitempty"` // the rule author's
	// TimeoutMS is how long an answer is waited for; 0: as approvals say.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
}

// QuestionFile is a file that an answer covers with its content.
type QuestionFile struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256,omitempty"` // empty: no command can change it
}

// Answer is what became of a question. The zero value denies.
type Answer struct {
	Allow  bool   `json:"allow"`
	By     string `json:"by,omitempty"`     // who answered; empty: nobody
	Reason string `json:"reason,omitempty"` // why it is denied when nobody answered
}

// Pending is a question that waits for its answer.
type Pending struct {
	ID string `json:"id"`
	Question
	Asked time.Time `json:"asked"`
	Ends  time.Time `json:"ends"` // denied then
}

// ApprovalAnswer is somebody's answer to the question of an id.
type ApprovalAnswer struct {
	ID    string `json:"id"`
	Allow bool   `json:"allow"`
	By    string `json:"by"`
}

// Operations of [SessionRequest].
const (
	OpApprovals = "approvals" // what waits
	OpFollow    = "follow"    // what waits, now and after each change
	OpAnswer    = "answer"
	OpReload    = "reload"
	OpNet       = "net" // the connections that are open
)

// SessionRequest asks something of a session as a whole. Exactly the part that
// belongs to Op is read.
type SessionRequest struct {
	Op     string          `json:"op"`
	Answer *ApprovalAnswer `json:"answer,omitempty"`
	Reload *Reload         `json:"reload,omitempty"`
}

// SessionReply answers a [SessionRequest]; follow has many.
type SessionReply struct {
	Error    *Error    `json:"error,omitempty"`
	Pending  []Pending `json:"pending,omitempty"`
	Reloaded *Reloaded `json:"reloaded,omitempty"`

	Connections []Connection `json:"connections,omitempty"`
}

// Reload replaces a session's policy.
type Reload struct {
	Policy []PolicySource `json:"policy"` // the main file first, then what it extends
}

// Reloaded tells of the policy that was replaced and of the one that holds.
type Reloaded struct {
	Policy string `json:"policy"` // name
	From   string `json:"from"`   // digests
	To     string `json:"to"`
}
