// Package engine is the interface between the handlers of notify and what stops system
// calls. An engine stops the calls that the filter of a session names, and carries out
// their answers. Package listener has the engine of a seccomp listener, and package tracer
// the one of SECCOMP_RET_TRACE.
//
// Handlers and engine share the following terms:
//
//   - A call is stopped until [Engine.Answer]. Handlers read the memory of its thread by
//     package target, and ask [Engine.Valid] afterwards: only then was it that thread.
//   - A call continues only if its decision rests on registers, or if the kernel holds the
//     same rule. A connection is therefore made on a duplicate of the socket, by
//     pidfd_getfd(2), and the call itself gets a result. This is the same for all engines.
//   - An execve that is permitted is an [Execution]. The engine lets it go ahead, and holds
//     the process before the first instruction of the new program.
package engine

import (
	"errors"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"agentsh/seccomp"
	"agentsh/seccomp/target"
)

// ErrGone means that a call no longer waits: its thread ended, or the call has its
// answer.
var ErrGone = seccomp.ErrGone

// Notification is the system call that a thread is stopped in.
type Notification = seccomp.Notification

// Call is one system call that a thread is stopped in, or the stop of an exec.
type Call struct {
	Notification
	// Check is not nil for an exec stop: it has the new program checked, and lets it run.
	// Any answer but that kills the process.
	Check func()
	// Quick says that Check does not wait. See [Execution].
	Quick bool
	// Unjudged says that it is the stop of an exec that nobody permitted. Every answer kills
	// the process.
	Unjudged bool
}

// Program is a process at the stop of its exec.
type Program struct {
	PID int
	// Registers are set if another thread traces the process. See target.OpenStoppedBy.
	Registers *target.Registers
}

// Engine stops system calls and applies their answers. It is safe for concurrent use.
type Engine interface {
	// Name is the engine's name in reports: "listener" or "trace".
	Name() string
	// AddsFiles reports whether an [Answer] may be a file.
	AddsFiles() bool
	// HoldsThread reports whether Execute returns only when the program runs, or is no
	// longer followed.
	HoldsThread() bool
	// Begin is called for the first process of a command, before its first execve.
	Begin(pid int) error
	// Receive waits for the next call. It returns [ErrGone] when a call vanished, io.EOF
	// when no task uses the filter, and os.ErrClosed after Close.
	Receive(*Call) error
	// Valid reports whether the thread still waits for the answer to the call.
	Valid(id uint64) bool
	// Ended reports whether the thread has ended or been killed. [Engine.Valid] may not know
	// that yet. It is slower, and for calls without an answer.
	Ended(id uint64) bool
	// Answer ends the call. It returns [ErrGone] when nobody waits for it.
	Answer(id uint64, a Answer) error
	// Execute lets an execve go ahead. The calling thread must be one of [OnThread]. An
	// error means that the call was not answered.
	Execute(c *Call, e Execution) error
	// Close ends Receive. Calls that wait, and later ones, fail.
	Close() error
}

// Direct is an [Engine] that can have calls answered on the thread that stopped them,
// which is faster than a worker. That thread waits for no file and no decision meanwhile.
type Direct interface {
	// AnswerDirectly sets the function that answers a call at once. If it returns false,
	// [Engine.Receive] returns the call. It must be set before the first Begin.
	AnswerDirectly(func(*Call) bool)
}

// Kind is the kind of an [Answer].
type Kind uint8

// The kinds of answer.
const (
	None     Kind = iota // the call has its answer, or gets it from somebody else
	Continue             // the kernel carries the call out; it reads the arguments again
	Errno                // the call fails
	Value                // the call returns a value without running
	File                 // the calling thread gets a file, and the call returns its number
)

// Answer is the end of a call.
type Answer struct {
	Kind  Kind
	Errno unix.Errno  // of Errno
	Value int64       // of Value
	File  *Descriptor // of File
}

// Deny makes a call fail with errno.
func Deny(errno unix.Errno) Answer { return Answer{Kind: Errno, Errno: errno} }

// Descriptor is a file for the calling thread.
type Descriptor struct {
	File  *os.File      // the caller of [Engine.Answer] closes it
	Exec  bool          // stays open over execve
	Added *atomic.Int64 // gets the number before the call returns; nil: not needed
}

// Execution is one execve that goes ahead.
type Execution interface {
	// Process is the number of the process that makes the call.
	Process() int
	// Proceed answers the call: it continues. It returns false if the call has another
	// answer already.
	Proceed() bool
	// Fail denies the call, unless it has an answer.
	Fail(error)
	// Accept checks the program of a process at the stop of its exec. With an error the
	// process is killed before the program's first instruction.
	Accept(Program) error
	// Quick reports whether Accept does not wait: all that it reads is in memory.
	Quick() bool
	// Killed is called with the error of Accept, when the process is killed.
	Killed(error)
	// Follower is what traces the accepted program further; nil: nothing does.
	Follower() Follower
	// Done is called once, when nothing else is called any more. Followers may live longer.
	Done()
}

// Tracing is how a [Follower] traces. Its methods are for the thread that traces.
type Tracing interface {
	// AddsFiles reports whether the engine can add a file to a thread: see [Answer].
	AddsFiles() bool
	// SetOptions sets the ptrace options of a thread.
	SetOptions(tid, options int) error
	// Detach ends the following of a stopped thread and lets it run.
	Detach(tid, signal int) error
}

// Follower traces the threads of one process. It resumes each stopped thread itself.
type Follower interface {
	// Begin begins with the process at the stop of its exec. With an error the process is
	// killed.
	Begin(pid int, t Tracing) error
	// Stopped handles the stop of a thread. See [Event].
	Stopped(tid int, status unix.WaitStatus)
	// Ended is called when a thread has ended.
	Ended(tid int)
	// Skips are the stops for calls that it does not need until the next one that it gets.
	// An engine may pass them all the same.
	Skips() Skips
	// Skipped is called with the number of calls that were skipped, but for [Skipped] ones.
	Skipped(counted int)
	// Done is called when no thread is traced any more.
	Done()
}

// CallNumbers is above the number of every system call that can be skipped.
const CallNumbers = 512

// Skips are calls whose entry and exit a [Follower] does not need. The zero value skips
// none.
type Skips struct {
	Calls *[CallNumbers]CallUse // by number
	Most  int                   // of the other calls than Skipped ones that may be skipped
	Names []byte                // each ends with NUL: a call with a path that has one is told
	Rare  bool                  // none is skipped, and the next stop is not expected soon
}

// CallUse says what a follower needs of a call.
type CallUse uint8

// The uses of a call.
const (
	Told        CallUse = iota // its stops
	Skipped                    // nothing
	Counted                    // how often it is made
	NamedFirst                 // its stops if its first argument is a path with one of the names
	NamedSecond                // the same for the second argument
)

// ErrnoOf returns the errno in the chain of an error.
func ErrnoOf(err error) (unix.Errno, bool) {
	var errno unix.Errno
	ok := errors.As(err, &errno)
	return errno, ok
}
