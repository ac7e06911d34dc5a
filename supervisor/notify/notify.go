// Package notify answers the system calls that the filter cannot decide by
// itself: above all execve(2), judged by policy and verified before the new
// program runs its first instruction.
//
// Every branch that is not an answer of the policy denies: what cannot be read,
// is unknown, late, too much, or panics.
package notify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp"
	"agentsh/seccomp/target"
)

// Loop serves one listener.
type Loop struct {
	cfg    Config
	images *images
	// follows are interpreters on the way to their scripts.
	follows *follows
	memory  heldMemory

	swap   sync.RWMutex // held for writing while the rules change
	rules  Rules
	asking context.Context // of the questions that wait for a person; set by Run
	told   sync.Map        // *seccomp.ToldRefusal: an event told of it
	aside  atomic.Int64    // execs that have a thread of their own

	mu      sync.Mutex
	workers []*worker
	idle    int       // workers that are about to receive, or wait for it
	queue   []*call   // received and not begun, oldest first; empty unless one worker is idle
	begun   time.Time // when a call of the queue was begun last
	running sync.WaitGroup
	failed  error // what ended the first worker, when that was an error
}

// Config is what a [Loop] works with.
type Config struct {
	// Listener is closed when Run ends.
	Listener *seccomp.Listener
	// Rules are those that the loop starts with. See [Loop.Reload].
	Rules
	// Ask has a person decide, and returns when ctx ends at the latest. It is
	// called away from the workers, from many goroutines. Nil: nobody can be
	// asked, and decision approve denies.
	Ask func(context.Context, wire.Question) wire.Answer
	// Emit writes an audit event. Its error means that the event is lost; what
	// it tells of is then denied. It is called from several goroutines.
	Emit func(wire.Event) error
	// Unverified lets an exec go on without ptrace, where that is forbidden: it
	// is judged by what was read before, and Inject is not put back.
	Unverified bool
	// Shared says that the commands have no pid namespace of their own: signals
	// to processes that are not theirs are denied whatever the policy says.
	Shared bool
	// As is the user whose processes the workers may look at and trace; nil: the
	// supervisor has the capability to trace them.
	As *Credential
	// Network is how calls about sockets are answered.
	Network Network
	// Open opens a file below Emulated for reading as its caller could, were it
	// not kept out; nil: opens are not notified. See launch.Opener.
	Open func(path string, flags int) (*os.File, error)
	// Root is the root directory of every process, where the filter keeps them
	// in it. Nil: it is looked up for each.
	Root *target.Root
	// Refusals are the calls that are notified to be refused, see seccomp.Plan.Table.
	// The first of each kind makes an event.
	Refusals seccomp.Table
	// Session is the id that events carry.
	Session string
	// Workers is the most threads used; 0 is 64, at least 2. When all are busy
	// further calls wait in a queue.
	Workers int
	// Apart is how many execs have a thread of their own at most, as long as an
	// interpreter is followed or a person is asked; 0 is 2,048. Further ones are
	// denied. The Go runtime ends a program that has 10,000 threads.
	Apart int
	// Queue is how many calls wait at most; 0 is 65,536. Further ones are denied.
	Queue int
	// Deadline bounds how long the answer to a call may be blocked in one wait in
	// the kernel, and how long calls wait while all workers are; 0 is 5 s. Time
	// without a processor is no such wait. Whatever else it does, a call has
	// twelve times as long.
	Deadline time.Duration
	// Log gets what an operator of the supervisor has to know; nil: nothing.
	Log *slog.Logger
}

// Credential is a user and a group.
type Credential struct{ UID, GID int }

// Rules are what calls are decided by. A call takes them once, when it is
// begun: it never meets a part of other ones.
type Rules struct {
	// Evaluate decides a request, as Policy.Evaluate does. It is called from
	// several goroutines.
	Evaluate func(policy.Request) (policy.Decision, policy.Diagnostic)
	// EvaluateRead decides on opening a file below Emulated for reading.
	EvaluateRead func(path string) (policy.Decision, policy.Diagnostic)
	// Identify tells what is known about a file, as [Identities.Of] does; nil:
	// nothing. Programs of a dynamic loader are then not looked for.
	Identify Identify
	// Inject holds variables, each NAME=value, that every program has: an exec
	// that lacks one gets it back before it runs.
	Inject []string
}

// Reload replaces the rules. Calls that are begun while commit runs wait for
// it; when it fails, the rules stay as they are.
func (l *Loop) Reload(r Rules, commit func() error) error {
	l.swap.Lock()
	defer l.swap.Unlock()
	if err := commit(); err != nil {
		return err
	}
	l.rules = r
	return nil
}

// current are the rules for a call that is just begun.
func (l *Loop) current() Rules {
	l.swap.RLock()
	defer l.swap.RUnlock()
	return l.rules
}

// CommandInfo describes the top-level command that a process is about to
// become.
type CommandInfo struct {
	ID          string
	Interactive bool
	// Judged is set when the supervisor has decided this command already, for
	// example because the policy put it in the place of another one. The exec
	// of exactly this file and argument vector is then not judged again.
	Judged *Judged
	// Rules are those that the command was asked for under, and that its own
	// exec is judged by. What it starts meets the loop's. Without Evaluate: the
	// loop's too.
	Rules Rules
}

// Judged is a command with the decision it has.
type Judged struct {
	Path string // of the file, inside the sandbox, links resolved
	Argv []string
	Rule *wire.RuleAt
}

// New returns a loop; [Loop.Run] runs it.
func New(cfg Config) *Loop {
	if cfg.Workers == 0 {
		cfg.Workers = 64
	}
	cfg.Workers = max(cfg.Workers, 2)
	if cfg.Apart == 0 {
		cfg.Apart = 2048
	}
	if cfg.Queue == 0 {
		cfg.Queue = 1 << 16
	}
	if cfg.Deadline == 0 {
		cfg.Deadline = 5 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Loop{cfg: cfg, images: newImages(), follows: newFollows(), rules: cfg.Rules}
}

// Register says that the process pid is about to execute a top-level command:
// its next exec is the command itself, at depth 0. It must be called after the
// process was forked and before it may exec.
func (l *Loop) Register(pid int, c CommandInfo) error {
	id, err := target.Identify(pid)
	if err != nil {
		return fmt.Errorf("register command %s: %w", c.ID, err)
	}
	l.images.register(id, c)
	return nil
}

// Forget drops what the loop keeps for a command whose last process is gone.
func (l *Loop) Forget(id string) { l.images.forget(id) }

// Marked is the id of the top-level command whose processes carry a mark, see
// seccomp.TagLimit; empty: of none.
func (l *Loop) Marked(mark uint64) string { return l.images.marked(mark) }

// Run answers notifications until ctx ends or no task uses the filter any
// more. It closes the listener: calls that are notified later fail in their
// threads with ENOSYS.
func (l *Loop) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = l.cfg.Listener.Close() })
	l.asking = ctx
	quietStops()
	if runtime.GOMAXPROCS(0) == 1 {
		// A worker that waits in the kernel has the only one until the runtime
		// takes it away, for which it then watches all the time.
		runtime.GOMAXPROCS(2)
	}
	l.mu.Lock()
	l.grow()
	l.grow()
	l.mu.Unlock()
	watch, unwatch := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { l.watch(watch) })
	l.running.Wait()
	unwatch()
	watching.Wait()
	l.images.parents.drop()
	if stop() {
		_ = l.cfg.Listener.Close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// grow adds a worker if there may be one more. It is called with mu held.
func (l *Loop) grow() bool {
	if len(l.workers) >= l.cfg.Workers {
		return false
	}
	l.idle++
	w := &worker{loop: l}
	l.workers = append(l.workers, w)
	l.running.Go(func() {
		if err := onThread(w.start); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
			l.cfg.Log.Error("stopped answering notifications", "error", err)
			l.mu.Lock()
			l.failed = errors.Join(l.failed, err)
			l.mu.Unlock()
			_ = l.cfg.Listener.Close() // the session cannot go on half served
		}
	})
	return true
}
