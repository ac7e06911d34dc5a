package wire

import "time"

// Kinds of [Question].
const (
	AskExec   = "exec"
	AskFile   = "file"
	AskNet    = "net"
	AskSignal = "signal"
)

// Limits of a [Question] in bytes: of its subject and of all of it. A longer
// question cannot be shown to a person completely, and is denied.
const (
	MaxSubject  = 4 << 10
	MaxQuestion = 32 << 10
)

// Question asks a person for one decision. An allow covers exactly the action
// that the question describes. The enforcing code makes sure of that.
type Question struct {
	Session string `json:"session"`
	Command string `json:"command"` // request id of the top-level command
	Kind    string `json:"kind"`
	Subject Name   `json:"subject"`        // exec: the program's path; file: "write /path"; net: "tcp host:port"
	Argv    Names  `json:"argv,omitempty"` // exec
	Cwd     Name   `json:"cwd,omitempty"`  // exec
	// Files are the files of an exec whose content decides what runs: the program
	// or script, its interpreters, the program of the dynamic loader.
	Files   []QuestionFile `json:"files,omitempty"`
	Process *Process       `json:"process,omitempty"`
	Rule    *RuleAt        `json:"rule,omitempty"`
	Message string         `json:"message,omitempty"` // the rule author's
	// TimeoutMS is the time to wait for an answer; 0: the timeout of the session's
	// approval settings.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
}

// QuestionFile is a file that an answer covers with its content.
type QuestionFile struct {
	Path   Name   `json:"path"`
	SHA256 string `json:"sha256,omitempty"` // empty: no command can change it
}

// Answer is the decision on a question. The zero value denies.
type Answer struct {
	Allow  bool   `json:"allow"`
	By     string `json:"by,omitempty"`     // the person who answered; empty: nobody
	Reason string `json:"reason,omitempty"` // of a denial: of the person, or why there is no answer
}

// Hint is what to do after an answer that denies: before, if nobody gave one.
func (a Answer) Hint(before string) string {
	if a.By == "" || a.Allow {
		return before
	}
	if a.Reason != "" {
		return "the answer was no: " + a.Reason
	}
	return "the answer was no: do it in another way, or ask whoever answered before you try it again"
}

// Pending is a question that waits for its answer.
type Pending struct {
	ID string `json:"id"`
	Question
	Asked time.Time `json:"asked"`
	Ends  time.Time `json:"ends"` // it is denied at this time
}

// ApprovalAnswer answers the pending question with an id.
type ApprovalAnswer struct {
	ID    string `json:"id"`
	Allow bool   `json:"allow"`
	// Always allows what is asked in the same words later in the session too.
	Always bool   `json:"always,omitempty"`
	By     string `json:"by"`
	// Reason says why it is denied. Without By nobody could be asked.
	Reason string `json:"reason,omitempty"`
}

// Operations of [SessionRequest].
const (
	OpApprovals = "approvals" // the pending questions
	OpFollow    = "follow"    // the pending questions, now and after each change
	OpAnswer    = "answer"
	OpReload    = "reload"
	OpNet       = "net"   // the open connections
	OpRenew     = "renew" // new values of credentials
	OpEnd       = "end"   // end the session; its events and its trash can then be read to their end
)

// SessionRequest is an operator's request about a session, not about one
// command. Only the field that belongs to Op is read.
type SessionRequest struct {
	Op     string          `json:"op"`
	Answer *ApprovalAnswer `json:"answer,omitempty"`
	Reload *Reload         `json:"reload,omitempty"`
	// Command is the request id of the command whose questions OpFollow reports, where
	// a caller answers them on its own terminal; empty: those of all.
	Command string `json:"command,omitempty"`
	// Credentials are the new values of [OpRenew].
	Credentials []CredentialValue `json:"credentials,omitempty"`
}

// SessionReply answers a [SessionRequest]. OpFollow has many replies.
type SessionReply struct {
	Error    *Error    `json:"error,omitempty"`
	Pending  []Pending `json:"pending,omitempty"`
	Reloaded *Reloaded `json:"reloaded,omitempty"`

	Connections []Connection `json:"connections,omitempty"`
	Ended       *Ended       `json:"ended,omitempty"`
}

// Reload replaces a session's policy.
type Reload struct {
	Policy []PolicySource `json:"policy"` // the main file first, then what it extends
}

// Reloaded describes a reload: the name of the new policy, and the digests of the
// old and the new one.
type Reloaded struct {
	Policy string `json:"policy"` // name
	From   string `json:"from"`   // digests
	To     string `json:"to"`
}
