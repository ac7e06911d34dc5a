// Package sandbox defines the sandbox in which an agent runs. A backend creates
// the sandbox and a byte stream to the supervisor in it;
// everything that happens inside goes through the [Executor], which is the
// same for every backend.
package sandbox

import (
	"context"
	"errors"
	"io"
	"io/fs"

	"agentsh/internal/wire"
)

// Backend creates sandboxes of one kind. Safe for concurrent use.
type Backend interface {
	// Name is the word that selects the backend.
	Name() string
	// Check reports what is missing on this machine or in s, before anything is
	// created.
	Check(ctx context.Context, s Spec) error
	// Create makes a sandbox and starts a supervisor in it. When it fails nothing
	// is left. The sandbox answers once [Sandbox.Ready] returned.
	Create(ctx context.Context, s Spec) (Sandbox, error)
	// Collect deletes sandboxes whose controller is gone and returns them. A
	// sandbox whose controller lives is never touched. The audit log of a run that
	// has a record is put beside that.
	Collect(ctx context.Context) ([]Leftover, error)
	// Leftovers lists what Collect would delete.
	Leftovers(ctx context.Context) ([]Leftover, error)
}

// Spec is what a sandbox is created from.
type Spec struct {
	RunID     string // names the sandbox; letters, digits and dashes
	Policy    []wire.PolicySource
	Vars      map[string]string // ${NAME} of the policy
	EnvInject map[string]string // the operator's; the policy's own wins
	EnvDir    string            // .env.d, inside
	Home      string            // inside
	Program   bool              // the supervisor's own program is shown at [layout.Program]
	NeedBytes int64             // disk space that must be free
	// Credentials are swapped for their placeholders on the way out of the
	// sandbox. A backend that cannot refuses them in Check.
	Credentials []wire.Credential
}

// Sandbox is one sandbox with its supervisor.
type Sandbox interface {
	Executor
	// ID names the sandbox on its backend.
	ID() string
	// Ready waits until the supervisor answers, and returns what it says of
	// itself.
	Ready(ctx context.Context) (wire.Hello, error)
	// Gone is closed when the supervisor has ended; Cause then says why.
	Gone() <-chan struct{}
	Cause() error
	// AuditLog opens the sandbox's audit log, which ends with the sandbox's last
	// event once the supervisor was stopped. The caller closes it.
	AuditLog(ctx context.Context) (io.ReadCloser, error)
	// Trash copies what soft_delete kept, once the supervisor was stopped, to the
	// directory to, which it makes if there is anything, and returns how many
	// files that are.
	Trash(ctx context.Context, to string) (files int, err error)
	// Stop ends every process in the sandbox and the supervisor; what it wrote
	// stays until Delete. Stopping twice is no error.
	Stop(ctx context.Context) error
	// Delete removes the sandbox with everything in it, running or not. Deleting
	// twice is no error.
	Delete(ctx context.Context) error
}

// Executor runs commands and moves files inside a sandbox. Paths are absolute
// paths inside it; they are resolved there and never leave the governed tree.
// Safe for concurrent use.
type Executor interface {
	// Run starts a command and waits for it. The error is not nil when the end
	// of the command is not known; how it ended is in the exit otherwise.
	Run(ctx context.Context, req wire.ExecRequest, s Streams) (wire.Exit, error)
	Stat(ctx context.Context, name string) (wire.FileInfo, error)
	List(ctx context.Context, name string) ([]wire.FileInfo, error)
	// ReadFile reads a file of at most limit bytes.
	ReadFile(ctx context.Context, name string, limit int64) ([]byte, error)
	// WriteFile replaces a file atomically.
	WriteFile(ctx context.Context, name string, data []byte, mode fs.FileMode) error
	// Remove removes a file, or a directory with all below it.
	Remove(ctx context.Context, name string, recursive bool) error
	// CopyIn unpacks an archive of package tarfs below dest, which is made when
	// it is missing. Nothing changes unless the archive is whole.
	CopyIn(ctx context.Context, dest string, archive io.Reader) (wire.Manifest, error)
	// CopyOut writes such an archive to w. What was written before an error has
	// no manifest at its end.
	CopyOut(ctx context.Context, req wire.CopyOut, w io.Writer) (wire.Manifest, error)
	// Changes is the change record of the governed tree since bootstrap.
	Changes(ctx context.Context) ([]wire.Change, error)
	// Events calls fn with each audit event from sequence number from on, until
	// ctx ends, fn returns an error or the supervisor is gone.
	Events(ctx context.Context, from uint64, fn func(wire.Event) error) error
}

// Streams are the standard streams of a command.
type Streams = wire.Streams

// Leftover is a sandbox that [Backend.Collect] found without its controller.
type Leftover struct {
	ID    string `json:"id"`
	RunID string `json:"run_id,omitempty"`
	Err   error  `json:"-"` // it could not be deleted
}

// ErrGone is in the chain of errors of calls on a sandbox whose supervisor has
// ended.
var ErrGone = errors.New("sandbox is gone")
