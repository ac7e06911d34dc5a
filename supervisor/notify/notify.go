// Package notify answers the system calls that the filter cannot decide by itself. The
// most important one is execve(2): the policy decides it, and the new program is verified
// before its first instruction.
//
// A worker thread receives a [call] and passes it to a handler, which returns an
// [answer]. Each family of system calls has a handler: execs, signals (with scheduling),
// sockets, procFiles (opens below /proc) and refusals. Handlers know calls and answers, but
// not what stops a call: that is the engine (package engine). All handlers use images (which program a
// process runs), approver (questions to a person) and recorder (audit events). execs also
// uses follower: it traces an interpreter to its script.
//
// Every outcome that the policy does not decide denies: what cannot be read or is not
// known, a call that is late, too many calls, and a panic.
package notify

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp"
	"agentsh/seccomp/target"
	"agentsh/supervisor/notify/engine"
)

// Loop answers the calls of one session.
type Loop struct {
	engine   engine.Engine
	pool     pool
	workers  sync.WaitGroup
	tasks    *tasks
	images   *images
	record   *recorder
	execs    *execs
	refusals *refusals
	handlers map[int]handler

	swap  sync.RWMutex // held for writing while the rules change
	rules Rules
}

// Config is what a [Loop] works with.
type Config struct {
	// Engine is closed when Run ends.
	Engine engine.Engine
	// Rules are the first rules of the loop. See [Loop.Reload].
	Rules
	// Session is the id that events carry.
	Session string
	// Emit writes an audit event. If it fails, the event is lost and what it describes
	// is denied. It is called from several goroutines.
	Emit func(wire.Event) error
	// Approve has a person decide, and returns when ctx ends at the latest. It is called
	// from many goroutines, but from no worker. Nil: decision approve denies.
	Approve func(context.Context, wire.Question) wire.Answer
	// Unverified lets an exec go on without ptrace, where that is forbidden. The exec
	// is decided by what was read before it, and Inject is not put back.
	Unverified bool
	// SharedPIDs says that the session shares the pid namespace of the machine. Signals
	// to processes of others are then denied whatever the policy says.
	SharedPIDs bool
	// TraceAs is the user whose processes the workers may trace. Nil: the supervisor has
	// the capability to trace them.
	TraceAs *Credentials
	// Network is how calls about sockets are answered.
	Network Network
	// Open opens a file below Emulated for reading, as its caller could without
	// Landlock. Nil: opens are not notified. See launch.Opener.
	Open func(path string, flags int) (*os.File, error)
	// Watches is called when a process makes an inotify instance. The call waits for its
	// return. Nil: nobody needs to know.
	Watches func()
	// Root is the root directory of every process, where the filter keeps them
	// in it. Nil: it is looked up for each.
	Root *target.Root
	// Refusals are the calls that are notified to be refused, see seccomp.Plan.Table.
	// The first of each kind makes an event.
	Refusals seccomp.Table
	// Bounds of the loop; a zero field has its default.
	Bounds Bounds
	// Log gets messages for the operator of the supervisor; nil: none.
	Log *slog.Logger
}

// Bounds limit what the calls of a session can make the loop use.
type Bounds struct {
	// Workers is the most threads used; 0 is 64, at least 2. When all are busy
	// further calls wait in a queue.
	Workers int
	// Threads is the most execs with a thread of their own; 0 is 2,048. An exec has one
	// while an interpreter is followed or a person is asked. Further ones are
	// denied. The Go runtime ends a program that has 10,000 threads.
	Threads int
	// Queue is how many calls wait at most; 0 is 65,536. Further ones are denied.
	Queue int
	// Deadline bounds how long a call may be blocked in one wait in the kernel, and how
	// long calls wait while all workers are blocked; 0 is 5 s. Time without a processor
	// does not count. In any case a call has at most twelve times as long.
	Deadline time.Duration
}

// withDefaults replaces the zero fields.
func (b Bounds) withDefaults() Bounds {
	defaults := Bounds{Workers: 64, Threads: 2048, Queue: 1 << 16, Deadline: 5 * time.Second}
	if b.Workers == 0 {
		b.Workers = defaults.Workers
	}
	b.Workers = max(b.Workers, 2)
	if b.Threads == 0 {
		b.Threads = defaults.Threads
	}
	if b.Queue == 0 {
		b.Queue = defaults.Queue
	}
	if b.Deadline == 0 {
		b.Deadline = defaults.Deadline
	}
	return b
}

// Credentials are a user and a group.
type Credentials = engine.Credentials

// Rules decide calls. A call gets them once, when a worker begins with it: it never uses
// parts of two sets.
type Rules struct {
	// Evaluate decides a request, as Policy.Evaluate does. It is called from
	// several goroutines.
	Evaluate func(policy.Request) (policy.Decision, policy.Diagnostic)
	// Prompt says that Evaluate never waits. An engine may then have known programs
	// evaluated on its own threads: see [engine.Direct].
	Prompt bool
	// EvaluateRead decides on opening a file below Emulated for reading.
	EvaluateRead func(path string) (policy.Decision, policy.Diagnostic)
	// Identify returns what is known about a file, as [Identities.Of] does. Nil: nothing
	// is known, and dynamic loaders are not recognised.
	Identify Identify
	// Inject holds variables, each NAME=value, that every program has. One that is
	// missing after an exec is added before the program runs.
	Inject []string
}

// Reload replaces the rules if commit succeeds. Calls that arrive while commit runs wait
// for it.
func (l *Loop) Reload(r Rules, commit func() error) error {
	l.swap.Lock()
	defer l.swap.Unlock()
	if err := commit(); err != nil {
		return err
	}
	l.rules = r
	return nil
}

// current returns the rules for a new call.
func (l *Loop) current() Rules {
	l.swap.RLock()
	defer l.swap.RUnlock()
	return l.rules
}

// CommandInfo describes the top-level command that a process is about to execute.
type CommandInfo struct {
	ID          string
	Interactive bool
	// Decided is set when the supervisor has decided this command already, for example
	// because the policy replaced another one by it. The exec of exactly this file and
	// argument vector is then not evaluated again.
	Decided *Decided
	// Rules decide the exec of the command itself: they were current when it was
	// requested. Later execs use the rules of the loop. Without Evaluate, all do.
	Rules Rules
}

// Decided is a command that was decided already.
type Decided struct {
	Path string // of the file, inside the sandbox, links resolved
	Argv []string
	Rule *wire.RuleAt
}

// New returns a loop; [Loop.Run] runs it.
func New(cfg Config) *Loop {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	bounds := cfg.Bounds.withDefaults()
	l := &Loop{
		engine: cfg.Engine,
		images: newImages(),
		record: &recorder{session: cfg.Session, emit: cfg.Emit, log: cfg.Log},
		tasks:  newTasks(cfg.TraceAs, bounds.Threads),
		rules:  cfg.Rules,
	}
	approver := &approver{ask: cfg.Approve, tasks: l.tasks}
	l.pool = pool{bounds: bounds, spawn: l.spawn}
	l.refusals = newRefusals(cfg.Refusals, l.images, l.record)
	l.execs = &execs{
		unverified: cfg.Unverified, root: cfg.Root, images: l.images, follows: newFollows(),
		record: l.record, approver: approver, tasks: l.tasks,
	}
	signals := &signals{images: l.images, record: l.record, approver: approver, sharedPIDs: cfg.SharedPIDs}
	sockets := &sockets{network: cfg.Network, images: l.images, record: l.record, approver: approver}
	files := &procFiles{open: cfg.Open, images: l.images, record: l.record, approver: approver}
	l.handlers = map[int]handler{
		unix.SYS_EXECVE:             l.execs.execve,
		unix.SYS_EXECVEAT:           l.execs.execveat,
		unix.SYS_KILL:               signals.kill,
		unix.SYS_TKILL:              signals.sigqueue,
		unix.SYS_TGKILL:             signals.tgkill,
		unix.SYS_RT_SIGQUEUEINFO:    signals.sigqueue,
		unix.SYS_RT_TGSIGQUEUEINFO:  signals.tgkill,
		unix.SYS_FCNTL:              signals.owner,
		unix.SYS_SCHED_SETAFFINITY:  signals.schedule,
		unix.SYS_SCHED_SETSCHEDULER: signals.schedule,
		unix.SYS_SCHED_SETPARAM:     signals.schedule,
		unix.SYS_SCHED_SETATTR:      signals.schedule,
		unix.SYS_SETPRIORITY:        signals.priority,
		unix.SYS_IOPRIO_SET:         signals.priority,
		unix.SYS_CONNECT:            sockets.address,
		unix.SYS_BIND:               sockets.address,
		unix.SYS_SENDTO:             sockets.address,
		unix.SYS_LISTEN:             sockets.listen,
		unix.SYS_OPENAT:             files.openat,
		unix.SYS_OPENAT2:            files.openat2,
		unix.SYS_MEMFD_CREATE:       l.refusals.memoryFile,
	}
	l.handlers[unix.SYS_INOTIFY_INIT1] = func(*call) (answer, error) {
		if cfg.Watches != nil {
			cfg.Watches()
		}
		return proceed, nil
	}
	addArch(l.handlers, files)
	if d, ok := cfg.Engine.(engine.Direct); ok {
		d.AnswerDirectly(l.directly)
	}
	return l
}

// Register announces that the process pid is about to execute a top-level command: its
// next exec is the command itself, at depth 0. It must be called after the fork of the
// process and before its exec.
func (l *Loop) Register(pid int, c CommandInfo) error {
	id, err := target.Identify(pid)
	if err != nil {
		return fmt.Errorf("register command %s: %w", c.ID, err)
	}
	l.images.register(id, c)
	l.refusals.begin()
	if err := l.engine.Begin(pid); err != nil {
		return fmt.Errorf("register command %s: %w", c.ID, err)
	}
	return nil
}

// Forget removes the data of a command whose last process has ended.
func (l *Loop) Forget(id string) { l.images.forget(id) }

// Marked returns the id of the top-level command whose processes have a mark, or an
// empty string. See seccomp.TagLimit.
func (l *Loop) Marked(mark uint64) string { return l.images.marked(mark) }

// Run answers calls until ctx ends or no task uses the filter any more. It closes the
// engine.
func (l *Loop) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		l.tasks.stop()
		_ = l.engine.Close()
	})
	if runtime.GOMAXPROCS(0) == 1 {
		// A worker that waits in the kernel has the only processor of the Go runtime. The
		// runtime would have to watch it all the time to take that away.
		runtime.GOMAXPROCS(2)
	}
	l.pool.open()
	watch, unwatch := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { l.watch(watch) })
	l.workers.Wait()
	_ = l.engine.Close() // and waits for it: threads of an engine answer calls as well, and add tasks
	l.tasks.running.Wait()
	unwatch()
	watching.Wait()
	stop()
	l.tasks.stop()
	l.images.parents.drop()
	return l.pool.failure()
}

// spawn starts the thread of a worker. [Loop.Run] waits for it.
func (l *Loop) spawn(w *worker) {
	l.workers.Go(func() {
		if err := engine.OnThread(func() error { return l.run(w) }); l.pool.fail(err) {
			l.record.log.Error("stopped answering notifications", "error", err)
			_ = l.engine.Close() // a session must not go on with fewer workers
		}
	})
}
