// Package engine is the interface between the handlers of notify and what stops system
// calls. An engine stops the calls that the filter of a session names, and carries out
// their answers. Package listener has the engine of a seccomp listener.
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
)

// ErrGone means that a call no longer waits: its thread ended, or the call has its
// answer.
var ErrGone = seccomp.ErrGone

// Call is one system call that a thread is stopped in.
type Call = seccomp.Notification

// Engine stops system calls and applies their answers. It is safe for concurrent use.
type Engine interface {
	// Name is the engine's name in reports: "listener".
	Name() string
	// Receive waits for the next call. It returns [ErrGone] when a call vanished, io.EOF
	// when no task uses the filter, and os.ErrClosed after Close.
	Receive(*Call) error
	// Valid reports whether the thread still waits for the answer to the call.
	Valid(id uint64) bool
	// Answer ends the call. It returns [ErrGone] when nobody waits for it.
	Answer(id uint64, a Answer) error
	// Execute lets an execve go ahead. The calling thread must be one for [Engine.Receive]:
	// see notify. An error means that the call was not answered. Otherwise the
	// Execution has ended when Execute returns, and so has its Follower.
	Execute(c *Call, e Execution) error
	// Close ends Receive. Calls that wait, and later ones, fail.
	Close() error
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

// Execution is one execve that goes ahead. Its methods are called on one thread, which
// traces the process from the call to the end of Follower.
type Execution interface {
	// Proceed answers the call: it continues. It returns false if the call has another
	// answer already.
	Proceed() bool
	// Fail denies the call, unless it has an answer.
	Fail(error)
	// Accept checks the program of a process at the stop of its exec. With an error the
	// process is killed before the program's first instruction.
	Accept(pid int) error
	// Killed is called after a program that was not accepted was killed.
	Killed(error)
	// Follower is what traces the accepted program further; nil: nothing does.
	Follower() Follower
}

// Follower traces the threads of one process. It resumes each stopped thread itself.
type Follower interface {
	// Begin begins with the process at the stop of its exec. With an error the process is
	// killed.
	Begin(pid int) error
	// Stopped handles the stop of a thread. See [Event] and [Signal].
	Stopped(tid int, status unix.WaitStatus)
	// Ended is called when a thread has ended.
	Ended(tid int)
	// Done is called when no thread is traced any more.
	Done()
}

// ErrnoOf returns the errno in the chain of an error.
func ErrnoOf(err error) (unix.Errno, bool) {
	var errno unix.Errno
	ok := errors.As(err, &errno)
	return errno, ok
}
