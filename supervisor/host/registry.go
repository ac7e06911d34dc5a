package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/channel"
	"agentsh/internal/lazy"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
	"agentsh/seccomp/target"
)

// Registry lists the running sessions of one user. Each has a directory of its
// name, which its supervisor locks for as long as it lives.
type Registry struct {
	dir string
	// Program is the file of agentsh that supervises new sessions; empty: this program's.
	// A shim cannot: started again, it is a shell.
	Program string
}

// Files of a session's directory.
const (
	registrySocket = "socket"
	registryRecord = "session.json"
	registryKeys   = "keys.json"
	registryLog    = "log"
	shellsSocket   = "shells"     // for clients without the Go runtime
	shellsKey      = "shells.key" // proves that a client of it can read the directory
)

// startingName is how the directory of a session that is being reserved is called.
const startingName = ".starting-"

// sessionName is a name of a session: it is also that of a directory.
var sessionName = lazy.Regexp(`^[a-z0-9][a-z0-9_-]{0,31}$`)

// maxSocketPath is the longest path of a socket, in bytes. See unix(7).
const maxSocketPath = 107

// ErrNoSession means that no session of that name runs.
var ErrNoSession = errors.New("no such session")

// Running is the record of a running session.
type Running struct {
	Name      string     `json:"name"`
	Session   string     `json:"session"` // id, as in the audit log
	PID       int        `json:"pid"`     // of its supervisor
	StartTime uint64     `json:"start_time"`
	Parts     []int      `json:"parts"` // processes that end with it: the session's first, the file server
	Policy    string     `json:"policy"`
	Digest    string     `json:"policy_digest"`
	Workspace string     `json:"workspace"`
	Audit     string     `json:"audit"`
	Started   time.Time  `json:"started"`
	Ends      *time.Time `json:"ends,omitempty"` // by its timeout; nil: not by itself
	Build     string     `json:"build"`
	Advisory  string     `json:"advisory,omitempty"` // rules that nothing enforces in it
	wire.Origin
}

// Gone is the exit of a command whose supervisor has died.
func (r Running) Gone() wire.Exit {
	return wire.CauseSupervisor.Exit(fmt.Sprintf("process %d of session %s is gone, and all that it ran", r.PID, r.Name))
}

// sessionKeys are the keys of a session's clients.
type sessionKeys struct {
	Key     []byte `json:"key"`      // the client's private half
	HostKey []byte `json:"host_key"` // the session's public half
}

// OpenRegistry opens the registry of this user, makes it where it is missing,
// and removes what killed supervisors left. One that others could change is
// refused.
func OpenRegistry() (*Registry, error) {
	dir, err := statedir.Runtime()
	if err != nil {
		return nil, err
	}
	return OpenRegistryIn(dir)
}

// OpenRegistryIn opens the registry of this user in a directory.
func OpenRegistryIn(dir string) (*Registry, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("runtime directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, fmt.Errorf("runtime directory: %w", err)
	}
	if owner := int(info.Sys().(*syscall.Stat_t).Uid); !info.IsDir() || owner != os.Geteuid() || info.Mode().Perm() != 0o700 {
		return nil, fmt.Errorf("runtime directory %s is not a directory of mode 0700 of user %d", dir, os.Geteuid())
	}
	r := &Registry{dir: dir}
	return r, r.sweep()
}

// sweep removes the directories whose supervisor is gone.
func (r *Registry) sweep() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return fmt.Errorf("runtime directory: %w", err)
	}
	for _, e := range entries {
		if sessionName().MatchString(e.Name()) {
			r.removeDead(e.Name())
		}
	}
	return nil
}

// removeDead removes a session's directory if nobody holds its lock. Only
// the owner of the lock that is there now removes it: another process may have
// been faster, and a new session may have the name already.
func (r *Registry) removeDead(name string) {
	dir := filepath.Join(r.dir, name)
	lock, err := statedir.LockDir(dir, 0)
	if err != nil {
		return
	}
	defer lock.Close()
	held, err := lock.Stat()
	if err != nil {
		return
	}
	if there, err := os.Lstat(filepath.Join(dir, statedir.LockName)); err == nil && os.SameFile(held, there) {
		_ = os.RemoveAll(dir) // the next one tries again
	}
}

// reservation is a name that is taken, with its lock.
type reservation struct {
	name, dir string
	lock      *os.File
	program   string // of the supervisor; empty: this one
}

// reserve takes a name: its directory appears locked and complete, or not at all.
func (r *Registry) reserve(name string, keys sessionKeys) (*reservation, error) {
	if !sessionName().MatchString(name) {
		return nil, fmt.Errorf("session name %.64q: 1 to 32 lower case letters, digits, _ and -, no sign first", name)
	}
	dir := filepath.Join(r.dir, name)
	if socket := filepath.Join(dir, registrySocket); len(socket) > maxSocketPath {
		return nil, fmt.Errorf("session socket %s: the path is longer than %d bytes", socket, maxSocketPath)
	}
	fresh, err := os.MkdirTemp(r.dir, startingName)
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", name, err)
	}
	lock, err := statedir.LockDir(fresh, os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", name, errors.Join(err, os.RemoveAll(fresh)))
	}
	data, err := json.Marshal(keys)
	if err == nil {
		err = os.WriteFile(filepath.Join(fresh, registryKeys), data, 0o600)
	}
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, fresh, unix.AT_FDCWD, dir, unix.RENAME_NOREPLACE)
	}
	switch {
	case err == nil:
		return &reservation{name, dir, lock, r.Program}, nil
	case errors.Is(err, unix.EEXIST):
		err = errors.New("a session of this name runs, or is just being made")
	}
	return nil, fmt.Errorf("session %s: %w", name, errors.Join(err, os.RemoveAll(fresh), lock.Close()))
}

// cancel gives the name back.
func (v *reservation) cancel() error { return errors.Join(os.RemoveAll(v.dir), v.lock.Close()) }

// List is every running session, by name.
func (r *Registry) List() ([]Running, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, fmt.Errorf("runtime directory: %w", err)
	}
	var out []Running
	for _, e := range entries {
		if !sessionName().MatchString(e.Name()) {
			continue
		}
		one, err := r.Find(e.Name())
		if errors.Is(err, ErrNoSession) {
			continue // it is being made, or has just ended
		}
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Running) int { return a.Started.Compare(b.Started) })
	return out, nil
}

// Find is one running session; the error has ErrNoSession in its chain when
// there is none.
func (r *Registry) Find(name string) (Running, error) {
	var one Running
	if !sessionName().MatchString(name) {
		return one, fmt.Errorf("session %.64q: %w", name, ErrNoSession)
	}
	if err := readRecord(filepath.Join(r.dir, name, registryRecord), &one); err != nil {
		return one, fmt.Errorf("session %s: %w", name, err)
	}
	return one, nil
}

// maxRecord is the largest record of a session, in bytes.
const maxRecord = 64 << 10

func readRecord(file string, into any) error {
	info, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNoSession
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > maxRecord {
		return fmt.Errorf("%s is not a file of at most %d bytes", file, maxRecord)
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNoSession
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// Died is the error of a client whose supervisor died before it answered. [ErrNoSession] is in
// its chain.
type Died struct{ Running }

func (d *Died) Error() string { return d.Gone().Message }

// Unwrap implements the interface of [errors.Is].
func (*Died) Unwrap() error { return ErrNoSession }

// Attach connects to a running session. The caller closes the client. The error is a [Died]
// if the supervisor died meanwhile.
func (r *Registry) Attach(ctx context.Context, name, build string) (*channel.Client, Running, error) {
	e, err := r.Dial(ctx, name)
	if err != nil {
		return nil, e.Running, err
	}
	e.Client.Build = build
	client, err := channel.NewClient(ctx, e.Stream, e.Client)
	one := e.Running
	if err != nil {
		return nil, one, one.orDied(ctx, fmt.Errorf("session %s: %w", name, err))
	}
	return client, one, nil
}

// orDied is the error of a connection to the supervisor. A broken one is that of its death, if
// it is dead.
func (r Running) orDied(ctx context.Context, err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
		return err
	}
	supervisor, openErr := openProcess(r.PID)
	if openErr != nil {
		return errors.Join(err, openErr)
	}
	defer supervisor.Close()
	if id, missing := target.Identify(r.PID); missing == nil && id.Start == r.StartTime && supervisor.wait(ctx, destroyBound) != nil {
		return err // it lives
	}
	return &Died{r}
}

// Endpoint is a stream to a running session, with what a client of it needs.
type Endpoint struct {
	Stream  net.Conn
	Client  channel.ClientConfig
	Running Running
}

// Dial opens a stream to a running session. The caller closes it.
func (r *Registry) Dial(ctx context.Context, name string) (Endpoint, error) {
	var e Endpoint
	var err error
	if e.Running, err = r.Find(name); err != nil {
		return e, err
	}
	var keys sessionKeys
	if err := readRecord(filepath.Join(r.dir, name, registryKeys), &keys); err != nil {
		return e, fmt.Errorf("session %s: %w", name, err)
	}
	e.Stream, err = channel.Dial(ctx, "unix://"+filepath.Join(r.dir, name, registrySocket))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return e, fmt.Errorf("session %s is ending: %w", name, ErrNoSession)
	}
	if err != nil {
		return e, fmt.Errorf("session %s: %w", name, err)
	}
	e.Client = channel.ClientConfig{Key: keys.Key, HostKey: keys.HostKey, Server: e.Running.Session}
	return e, nil
}

// Described is a session that is asked for.
type Described struct {
	Config string // the operator's configuration file; empty: the default
	Boot   wire.Bootstrap
	// Owner is a pipe: the session ends when its other end is closed. nil: it has no owner.
	Owner *os.File
}

// Join connects to the session of a name. Where there is none it makes the one that
// describe describes. One process makes a session of a name, and others wait for it.
func (r *Registry) Join(ctx context.Context, name, build string, describe func() (Described, error)) (*channel.Client, Running, error) {
	client, one, err := r.Attach(ctx, name, build)
	if !errors.Is(err, ErrNoSession) {
		return client, one, err
	}
	making, err := r.making(ctx, name)
	if err != nil {
		return nil, one, err
	}
	defer making.Close()
	client, one, err = r.Attach(ctx, name, build) // another process may have made it
	if !errors.Is(err, ErrNoSession) {
		return client, one, err
	}
	if err := r.AwaitEnd(ctx, name); err != nil {
		return nil, one, err
	}
	d, err := describe()
	if err != nil {
		return nil, one, err
	}
	if _, err := r.create(ctx, name, d); err != nil {
		return nil, one, err
	}
	return r.Attach(ctx, name, build)
}

// making is the lock of whoever makes a session of a name.
type making struct{ file *os.File }

// Close removes the lock's file, which others may wait for, and frees the lock.
func (m making) Close() {
	_ = os.Remove(m.file.Name()) // a file that stays is locked again by the next one
	m.file.Close()
}

// making takes the lock of whoever makes a session of a name.
func (r *Registry) making(ctx context.Context, name string) (making, error) {
	if !sessionName().MatchString(name) {
		return making{}, fmt.Errorf("session name %.64q: 1 to 32 lower case letters, digits, _ and -, no sign first", name)
	}
	file := filepath.Join(r.dir, ".making-"+name)
	for {
		f, err := awaitLock(ctx, file, os.O_CREATE)
		if err != nil {
			return making{}, err
		}
		held, err := f.Stat()
		if err != nil {
			return making{}, errors.Join(err, f.Close())
		}
		if there, err := os.Lstat(file); err == nil && os.SameFile(held, there) {
			return making{f}, nil
		}
		f.Close() // another one has made its session meanwhile, and removed the file
	}
}

// AwaitEnd waits until no process has the name of a session, and removes what a killed
// one left.
func (r *Registry) AwaitEnd(ctx context.Context, name string) error {
	lock, err := awaitLock(ctx, filepath.Join(r.dir, name, statedir.LockName), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	lock.Close()
	r.removeDead(name)
	return nil
}

// awaitLock locks a file, and waits for the process that has locked it.
func awaitLock(ctx context.Context, name string, flags int) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|flags, 0o600)
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { // ends when the lock is free
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), f.Close())
		}
		return f, nil
	case <-ctx.Done():
		go func() { <-done; f.Close() }() // the file must stay open for the call
		return nil, fmt.Errorf("wait for %s: %w", name, ctx.Err())
	}
}

// Create starts a session with a supervisor of its own, which outlives this
// process, and returns when it is ready. Its keys are made here.
func (r *Registry) Create(ctx context.Context, name string, d Described) (Running, error) {
	making, err := r.making(ctx, name)
	if err != nil {
		return Running{}, err
	}
	defer making.Close()
	return r.create(ctx, name, d)
}

func (r *Registry) create(ctx context.Context, name string, d Described) (Running, error) {
	keys, err := makeKeys(&d.Boot)
	if err != nil {
		return Running{}, err
	}
	v, err := r.reserve(name, keys)
	if err != nil {
		return Running{}, err
	}
	if err := startDaemon(ctx, v, d); err != nil {
		return Running{}, fmt.Errorf("session %s: %w", name, errors.Join(err, v.cancel()))
	}
	one, err := r.Find(name)
	return one, errors.Join(err, v.lock.Close())
}

// makeKeys gives both sides of a session their keys.
func makeKeys(boot *wire.Bootstrap) (sessionKeys, error) {
	var k sessionKeys
	var err error
	if boot.HostKey, k.HostKey, err = channel.NewKeyPair(); err != nil {
		return k, err
	}
	k.Key, boot.AuthorizedKey, err = channel.NewKeyPair()
	return k, err
}
