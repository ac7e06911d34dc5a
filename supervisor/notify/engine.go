package notify

import (
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"agentsh/seccomp"
)

// engine stops system calls and applies their answers. [listener] is the
// engine of a seccomp listener. A tracer that answers SECCOMP_RET_TRACE would be
// another one: no handler knows more of an engine than this.
type engine interface {
	// receive waits for the next call. It returns seccomp.ErrGone when a call
	// vanished, io.EOF when no task uses the filter, os.ErrClosed after Close.
	receive(*seccomp.Notification) error
	// valid reports whether the thread still waits for the answer to the call.
	valid(id uint64) bool
	// answer ends the call. It returns seccomp.ErrGone when nobody waits for it.
	answer(id uint64, a answer) error
	Close() error
}

// answer is the end of a call. Its zero value is [noAnswer].
type answer struct {
	kind  answerKind
	errno unix.Errno  // of answerErrno
	value int64       // of answerValue
	file  *descriptor // of answerFile
	// act is called once nobody else can answer the call. An errno other than 0
	// becomes the answer.
	act func() unix.Errno
}

type answerKind uint8

const (
	answerNone answerKind = iota
	answerContinue
	answerErrno
	answerValue
	answerFile
)

// descriptor is a file for the calling thread. The call returns its number there.
type descriptor struct {
	file  *os.File      // closed by [call.reply]
	exec  bool          // stays open over execve
	added *atomic.Int64 // gets the number before the call returns; nil: not needed
}

var (
	// noAnswer says that the call has its answer, or gets it from another goroutine.
	noAnswer = answer{}
	// proceed lets the kernel carry the call out. It reads the arguments again.
	proceed = answer{kind: answerContinue}
	// success makes the call return 0 without running.
	success = answer{kind: answerValue, value: 0}
)

// deny makes the call fail with errno.
func deny(errno unix.Errno) answer { return answer{kind: answerErrno, errno: errno} }

// result is the answer of a call that was emulated: 0, or the errno in err. An
// error without an errno is returned.
func result(err error) (answer, error) {
	if err == nil {
		return success, nil
	}
	if errno, ok := errnoOf(err); ok {
		return deny(errno), nil
	}
	return noAnswer, err
}

// listener is the engine of a seccomp listener. See seccomp_unotify(2).
type listener struct{ *seccomp.Listener }

func (l listener) receive(n *seccomp.Notification) error { return l.Receive(n) }

func (l listener) valid(id uint64) bool { return l.Valid(id) }

func (l listener) answer(id uint64, a answer) error {
	switch a.kind {
	case answerContinue:
		return l.Continue(id)
	case answerValue:
		return l.Value(id, a.value)
	case answerFile:
		return l.addFile(id, a.file)
	default:
		return l.Deny(id, a.errno)
	}
}

// addFile adds a descriptor to the calling thread and makes the call return it. An
// errno, as of a full table of descriptors, becomes the answer.
func (l listener) addFile(id uint64, d *descriptor) error {
	// A number that somebody waits for is stored before the call returns.
	atOnce := d.added == nil
	n, err := l.AddFD(id, seccomp.AddFD{FD: int(d.file.Fd()), Number: -1, Exec: d.exec, Send: atOnce})
	if errno, ok := errnoOf(err); ok {
		return l.Deny(id, errno)
	}
	if err != nil || atOnce {
		return err
	}
	d.added.Store(int64(n))
	return l.Value(id, int64(n))
}
