package wire

import (
	"io"
	"io/fs"
	"math"
	"os"
)

// Started reports that a command's program is about to run.
type Started struct {
	PID int `json:"pid"` // inside the sandbox; 0: not known
	// Dropped are the variables of the request that the command did not get.
	Dropped []DroppedVar `json:"dropped,omitempty"`
}

// DroppedVar is a variable of a request that the command did not get.
type DroppedVar struct {
	Name   string `json:"name"` // as received; empty if the entry has no name
	Reason string `json:"reason"`
}

// OutputEnd is the number of bytes that a command wrote. Bytes from processes
// that it left behind are included only if they came while the command ran.
type OutputEnd struct {
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
}

// Control acts on a running command. Exactly one field is set.
type Control struct {
	Kill   bool `json:"kill,omitempty"`   // the whole tree, after the supervisor's grace
	Signal int  `json:"signal,omitempty"` // to the command's process group
	TTY    *TTY `json:"tty,omitempty"`    // a new size; Term is ignored
	// CloseOutput closes the command's standard output (1) or error (2): its reader
	// has gone, and the next write to it gets SIGPIPE.
	CloseOutput int `json:"close_output,omitempty"`
}

// Streams connect one command with its caller. Every field is optional.
type Streams struct {
	// Stdin is the command's input; nil: empty. It returns io.EOF only where the
	// caller ended the input. It returns io.ErrUnexpectedEOF when the caller went:
	// the command's input must then stay open until the command was killed.
	Stdin io.Reader
	// Stdout and Stderr get the output; nil: discarded. They block while the caller
	// does not read, and accept nothing after the command's end was reported.
	Stdout, Stderr io.Writer
	// Control delivers kills, signals and terminal sizes. It is never closed.
	Control <-chan Control
	// Started is called when the program is about to run. A client calls it, with an
	// empty message, before it sends the request: signals reach the command from then on.
	Started func(Started)
	// Dropped is called with the variables of the request that the command did not
	// get, if there are any. It may be nil.
	Dropped func([]DroppedVar)
	// Exited is called at most once when the program has ended. Its output may still
	// be unread, and its children may still run.
	Exited func(Exit)
	// Pipes is a caller that reads and writes the pipes of its command itself. Stdin,
	// Stdout and Stderr are not used then. nil: the supervisor copies.
	Pipes Pipes
	// Gone is closed when the caller has gone and nobody can take its place. A command
	// that is being killed then has no grace. nil: it stays.
	Gone <-chan struct{}
}

// Pipes is a caller on this machine that has its ends of a command's pipes.
type Pipes interface {
	// Take gives the caller its ends when the command runs. The caller closes none of
	// the files, except to tell the command that its input has ended or that nobody
	// reads its output.
	Take(stdin, stdout, stderr *os.File)
	// Delivered waits until the caller has read what the command wrote before its end,
	// and counts it; nil: the caller has gone.
	Delivered() *OutputEnd
}

// Codes of [Error].
const (
	CodeNotFound    = "not_found"
	CodeExists      = "exists"
	CodePermission  = "permission"
	CodeOutside     = "outside"  // not beneath a served directory
	CodeMismatch    = "mismatch" // the content is not the expected one
	CodeLimit       = "limit"
	CodeRefused     = "refused"
	CodeUnsupported = "unsupported"
	CodeVersion     = "version"
	CodeInternal    = "internal"
)

// Error is an error that crosses the channel.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Is makes errors.Is work with the sentinels of io/fs.
func (e *Error) Is(target error) bool {
	switch e.Code {
	case CodeNotFound:
		return target == fs.ErrNotExist
	case CodeExists:
		return target == fs.ErrExist
	case CodePermission:
		return target == fs.ErrPermission
	}
	return false
}

// Operations of [FileRequest].
const (
	OpStat     = "stat"
	OpList     = "list"
	OpRead     = "read"
	OpWrite    = "write"
	OpMkdir    = "mkdir"
	OpRemove   = "remove"
	OpCopyIn   = "copy_in"
	OpCopyOut  = "copy_out"
	OpChanges  = "changes"
	OpRecovery = "recovery"
)

// FileRequest is one operation of the files channel. Only the fields that belong
// to Op are read.
type FileRequest struct {
	Op        string           `json:"op"`
	Path      Name             `json:"path,omitempty"`      // stat, list, mkdir, remove, copy_in: absolute, inside the sandbox
	Mode      uint32           `json:"mode,omitempty"`      // mkdir
	Recursive bool             `json:"recursive,omitempty"` // remove
	Read      *ReadRange       `json:"read,omitempty"`
	Write     *WriteFile       `json:"write,omitempty"`
	Out       *CopyOut         `json:"out,omitempty"`
	Recovery  *RecoveryRequest `json:"recovery,omitempty"`
	History   *HistoryRequest  `json:"history,omitempty"`
}

// RecoveryRequest restores or purges deleted files, or freezes the files. Exactly one
// part is set.
type RecoveryRequest struct {
	Restore string   `json:"restore,omitempty"` // id in the session's trash
	Force   bool     `json:"force,omitempty"`   // restore: replace what has the name now
	Purge   []string `json:"purge,omitempty"`   // ids in the session's trash
	Changed Names    `json:"changed,omitempty"` // paths inside that were written behind the mounts
	// Freeze freezes the files until the request's data, a list of [Change] of the
	// workspace as JSON, has come. One byte comes back when they are frozen.
	Freeze bool `json:"freeze,omitempty"`
}

// FileReply is the last message of every operation of the files channel.
type FileReply struct {
	Error *Error    `json:"error,omitempty"`
	Info  *FileInfo `json:"info,omitempty"` // stat, read, write
}

// ReadRange is a range of bytes of a file.
type ReadRange struct {
	Path   Name  `json:"path"`
	Offset int64 `json:"offset,omitempty"`
	Length int64 `json:"length,omitempty"` // 0: to the end
}

// WriteFile replaces a file atomically: a reader sees the old or the new content,
// never a part of it.
type WriteFile struct {
	Path     Name   `json:"path"`
	Mode     uint32 `json:"mode"`                // permission bits of the new file
	IfMatch  string `json:"if_match,omitempty"`  // hex SHA-256 the old content must have
	IfAbsent bool   `json:"if_absent,omitempty"` // there must be no file
}

// CopyOut requests one archive of a directory or of some paths in it.
type CopyOut struct {
	Dir     Name  `json:"dir"`                // absolute, inside the sandbox
	Paths   Names `json:"paths,omitempty"`    // relative to Dir, each with all below it
	Names   Names `json:"names,omitempty"`    // relative to Dir, each alone; no Paths and no Names: everything
	Gone    bool  `json:"gone,omitempty"`     // a path that does not exist is listed in the manifest's Skipped instead of an error
	SkipGit bool  `json:"skip_git,omitempty"` // leave out every .git
	Deleted Names `json:"deleted,omitempty"`  // copied into the manifest
	// Listed: the three lists are not here but in the data of the request, as a
	// sequence of [CopyName].
	Listed bool `json:"listed,omitempty"`
}

// CopyName is one entry of a list of [CopyOut]. Exactly one field is set.
type CopyName struct {
	Path    Name `json:"path,omitempty"`
	Name    Name `json:"name,omitempty"`
	Deleted Name `json:"deleted,omitempty"`
}

// LastEvent in place of a sequence number is that of the last event that there is.
const LastEvent = math.MaxUint64

// EventRequest opens the events channel.
type EventRequest struct {
	From  uint64 `json:"from"`             // the first sequence number wanted, or [LastEvent]
	SoFar bool   `json:"so_far,omitempty"` // end after the events that there are now
}
