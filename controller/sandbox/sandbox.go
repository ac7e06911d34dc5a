// Package sandbox defines the sandbox in which an agent runs. A backend creates
// the sandbox and a byte stream to the supervisor in it. All commands and files
// go through the [Executor], which is the same for every backend.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// Backend creates sandboxes of one kind. Safe for concurrent use.
type Backend interface {
	// Name is the value that selects the backend.
	Name() string
	// Check reports what is missing on this machine or in s, before anything is
	// created.
	Check(ctx context.Context, s Spec) error
	// Create makes a sandbox and starts a supervisor in it. If it fails, it leaves
	// nothing. The sandbox is usable after [Sandbox.Ready] has returned.
	Create(ctx context.Context, s Spec) (Sandbox, error)
	// Collect deletes sandboxes whose controller is gone and returns them. It never
	// touches a sandbox whose controller is alive. If the run has a record, the
	// audit log is moved to the directory of the record.
	Collect(ctx context.Context) ([]Leftover, error)
	// Leftovers lists the sandboxes that Collect would delete.
	Leftovers(ctx context.Context) ([]Leftover, error)
	// UsesImage reports whether a sandbox has [Spec.Image] dir. Its controller may be
	// gone.
	UsesImage(dir string) (bool, error)
}

// Chooser is a backend in whose place a harness may name another one.
type Chooser interface {
	Backend
	// Choose makes the backend of a name, with the place at an address, which may have a
	// key. Without a name it is the backend itself, unless the operator gave an address.
	Choose(name, address, keyFile string) (Backend, error)
}

// Puller is a backend that makes sandboxes of images which it gets itself, by the name in the
// harness. Each sandbox has a container of its own.
type Puller interface {
	Backend
	// Pull finds the image of a name, and gets it if it is missing.
	Pull(ctx context.Context, name string) (Image, error)
}

// HostPuller is a [Puller] whose images are directories of this host, which a command line may name.
type HostPuller interface {
	Puller
	// OfHost does nothing.
	OfHost()
}

// Image is an image of a [Puller].
type Image struct {
	Name   string // in the harness
	ID     string // that makes a sandbox of these very files, whatever the name means later
	Digest string // of its manifest, "sha256:" and hex; that of its configuration if it came from no registry
}

// Container is what a harness says of the container of a sandbox. Zero values are the
// defaults of the backend. A [Puller] rejects what it cannot give in Check.
type Container struct {
	Image    Image
	User     string // UID or UID:GID or a name in the image; empty: the image's, or 1000:1000 for one of root
	MemoryMB int64
	CPUs     float64
	PIDs     int64
	DiskMB   int64  // of the container's own files
	Network  string // "none", or the name of a network of the engine
	Mounts   []Mount
	Ways     Ways
	Cluster  Cluster
}

// Ways are the destinations that the policy may allow connections to.
type Ways struct {
	Names bool // names are looked up
	To    []policy.Way
}

// Cluster is what a harness says of the pod of a sandbox in a cluster.
type Cluster struct {
	Program     ProgramImage
	PullSecrets []string
	Account     string // service account
	Place       Scheduling
	Requests    Resources
	FUSEDevice  string // resource of the device plugin; empty: the pod has no /dev/fuse
	Seccomp     string // below the kubelet's directory, "RuntimeDefault" or "Unconfined"
	AppArmor    string // name, "RuntimeDefault" or "Unconfined"
	Shared      bool   // the pod has no user namespace, and parts of its /proc are masked
	Open        bool   // no NetworkPolicy
	DNS         string // namespace of the cluster's name servers
	Labels      map[string]string
	Annotations map[string]string
	Managed     Managed
	Times       ClusterTimes
}

// ProgramImage is how the program gets into a pod.
type ProgramImage struct {
	Image      string // empty: it is sent, and a shell of the sandbox's image receives it
	PullPolicy string // of both images
}

// Scheduling says where a pod runs.
type Scheduling struct {
	RuntimeClass, PriorityClass string
	NodeSelector                map[string]string
	Tolerations                 []Toleration
}

// Toleration is a taint of nodes that a pod tolerates. Empty values have the meaning that
// they have in a pod.
type Toleration struct {
	Key, Operator, Value, Effect string
	Seconds                      int64 // 0: for ever
}

// Resources are what a scheduler reserves.
type Resources struct {
	MemoryMB int64
	CPUs     float64
}

// Managed says which object of agent-sandbox makes the pod; zero: none.
type Managed struct {
	Sandbox  bool
	WarmPool string // a claim on this pool
}

// ClusterTimes are times of a pod; 0: the default, or no limit.
type ClusterTimes struct {
	Start time.Duration // until the pod runs
	Most  time.Duration // that the cluster lets it run
}

// Imaged is a sandbox that knows the image that it was made from.
type Imaged interface {
	// Image returns the image with its digest, if that is known only now.
	Image() (digest string, ok bool)
}

// Holder is a backend whose place enforces rules of its own: groups of rules are held there
// whatever the supervisor holds.
type Holder interface {
	Backend
	// Holds names for groups of rules, as package wire names them, who holds them. It is
	// called after [Backend.Create].
	Holds() map[string]string
}

// Swapper is a backend whose place puts the values of credentials into requests. The supervisor gets none.
type Swapper interface {
	Backend
	// Placeholders are those that the place gives to the credentials of a sandbox, by [wire.Credential.Placeholder].
	// It is called after [Backend.Create].
	Placeholders(ctx context.Context, s Spec) (map[string]string, error)
	// Has reports whether the place has the values of a provider already, so that none are needed here.
	Has(provider string) bool
}

// SpecChecker is a backend that knows without its place what is wrong with a specification.
type SpecChecker interface {
	Backend
	// CheckSpec returns what [Backend.Check] refuses whatever the place answers: somebody must write something else.
	CheckSpec(s Spec) error
}

// KeyError is what is wrong with the value of one key of a harness.
type KeyError struct {
	Key string // with dots, as container.memory_mb
	Err error
}

// Error begins with the key.
func (e *KeyError) Error() string { return e.Key + ": " + e.Err.Error() }

// Unwrap is the cause.
func (e *KeyError) Unwrap() error { return e.Err }

// Mount is a directory or a file of the engine's machine, or a volume, in a container.
type Mount struct {
	Source   string // absolute path, or name of a volume
	Target   string // absolute path in the sandbox
	Writable bool
}

// Taker is a backend whose sandboxes outlive their controllers for the time of a lease.
type Taker interface {
	Backend
	// Take makes this process the controller of the sandbox of a run whose controller is
	// gone. What that had started in the sandbox ends. If it fails, the sandbox stays as it is.
	Take(ctx context.Context, runID string) (Sandbox, error)
}

// Reacher is a backend that can reach its place before a sandbox is made there.
type Reacher interface {
	Backend
	// Reach begins to open a stream to the place, which the sandbox of a run then has. It does not
	// wait, and makes nothing at the place but what the place has for all sandboxes. Create returns
	// the error, if there is one.
	Reach(ctx context.Context, runID string)
	// Forget closes the stream unless the sandbox has it.
	Forget(runID string)
}

// Spec specifies a new sandbox.
type Spec struct {
	RunID     string // names the sandbox; letters, digits and dashes
	Policy    []wire.PolicySource
	Vars      map[string]string // ${NAME} of the policy
	EnvInject map[string]string // of the operator; the policy's env_inject has precedence
	EnvDir    string            // directory .env.d in the sandbox
	Home      string            // path in the sandbox
	Degraded  []wire.Setting    // mechanisms that the sandbox may run without, beside those of the operator
	Require   []wire.Setting    // what must be proven in it, beside what the operator requires
	Program   bool              // makes the supervisor's program available at [layout.Program]
	NeedBytes int64             // disk space that must be free
	// Keep is how long the sandbox outlives its controller, so that other controllers
	// can work in it. 0: it ends with its controller. [Sandbox.Stop] ends it anyway.
	Keep time.Duration
	// Image is the directory of the root file system that commands see; empty: that
	// of this machine. A backend never changes it.
	Image string
	// Identity is what git has in the sandbox, unless the repository or the environment
	// has others.
	Identity wire.Identity
	// Container is read by a [Puller] alone.
	Container Container
	// Credentials replace their placeholders in requests that leave the sandbox. A
	// backend that cannot do this rejects them in Check.
	Credentials []wire.Credential
}

// Sandbox is one sandbox with its supervisor.
type Sandbox interface {
	Executor
	// ID names the sandbox on its backend.
	ID() string
	// Ready waits until the supervisor answers, and returns its greeting.
	Ready(ctx context.Context) (wire.Hello, error)
	// Gone is closed when the supervisor has ended. Cause then returns the reason.
	Gone() <-chan struct{}
	Cause() error
	// AuditLog opens the sandbox's audit log. After the supervisor was stopped, it
	// ends with the last event of the sandbox. The caller closes it.
	AuditLog(ctx context.Context) (io.ReadCloser, error)
	// Trash copies the files in the trash of soft_delete to the directory to, after
	// the supervisor was stopped. It creates the directory only if there are files,
	// and returns their number.
	Trash(ctx context.Context, to string) (files int, err error)
	// Stop ends every process in the sandbox and the supervisor. The files stay
	// until Delete. A second call is no error.
	Stop(ctx context.Context) error
	// Keep leaves a sandbox with [Spec.Keep] to other controllers, and returns the
	// end of its lease. The sandbox cannot be used through this value any more: Stop
	// and Delete do nothing.
	Keep(ctx context.Context) (until time.Time, err error)
	// Delete removes the sandbox with all its files, whether it is running or not.
	// A second call is no error.
	Delete(ctx context.Context) error
}

// Executor runs commands and moves files inside a sandbox. Paths are absolute
// paths in the sandbox. They are resolved there and never leave the governed
// tree. Safe for concurrent use.
type Executor interface {
	// Run starts a command and waits for it. The error is not nil if it is unknown
	// how the command ended. Otherwise the exit describes the end.
	Run(ctx context.Context, req wire.ExecRequest, s Streams) (wire.Exit, error)
	Stat(ctx context.Context, name string) (wire.FileInfo, error)
	List(ctx context.Context, name string) ([]wire.FileInfo, error)
	// ReadFile reads a file of at most limit bytes.
	ReadFile(ctx context.Context, name string, limit int64) ([]byte, error)
	// WriteFile replaces a file atomically.
	WriteFile(ctx context.Context, name string, data []byte, mode fs.FileMode) error
	// Remove removes a file, or a directory with everything below it.
	Remove(ctx context.Context, name string, recursive bool) error
	// CopyIn unpacks an archive of package tarfs below dest, which is created if it
	// is missing. Nothing changes unless the archive is complete. arrived is called with
	// each entry that was unpacked.
	CopyIn(ctx context.Context, dest string, archive io.Reader, arrived func(wire.ManifestEntry) error) error
	// CopyOut writes such an archive to w. After an error, the archive has no
	// manifest at its end.
	CopyOut(ctx context.Context, req wire.CopyOut, w io.Writer) error
	// EachChange calls fn with each entry of the change record of the governed tree
	// since bootstrap, sorted by path.
	EachChange(ctx context.Context, fn func(wire.Change) error) error
	// Events calls fn with each audit event of a request. It returns when ctx ends, fn
	// returns an error, the wanted events end or the supervisor is gone.
	Events(ctx context.Context, req wire.EventRequest, fn func(wire.Event) error) error
}

// Streams are the standard streams of a command.
type Streams = wire.Streams

// Leftover is a sandbox without a controller, found by [Backend.Collect].
type Leftover struct {
	ID    string `json:"id"`
	RunID string `json:"run_id,omitempty"`
	Err   error  `json:"-"` // why it could not be deleted
}

// ErrGone is wrapped by the errors of calls on a sandbox whose supervisor has
// ended.
var ErrGone = errors.New("sandbox is gone")

// Explain returns the error that tells why err happened: cause, the reason for which a
// sandbox is gone. A cause without a reason of its own replaces nothing; then both are told.
func Explain(cause, err error) error {
	if cause == ErrGone { //nolint:errorlint // a wrapped one has a reason of its own
		return fmt.Errorf("%w: %w", cause, err)
	}
	return cause
}
