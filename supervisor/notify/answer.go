package notify

import (
	"golang.org/x/sys/unix"

	"agentsh/supervisor/notify/engine"
)

// answer is what a handler answers. Its zero value is [noAnswer].
type answer struct {
	engine.Answer
	// act is called once nobody else can answer the call. An errno other than 0
	// becomes the answer.
	act func() unix.Errno
}

var (
	// noAnswer says that the call has its answer, or gets it from another goroutine.
	noAnswer = answer{}
	// proceed lets the kernel carry the call out. It reads the arguments again.
	proceed = answer{Answer: engine.Answer{Kind: engine.Continue}}
	// success makes the call return 0 without running.
	success = answer{Answer: engine.Answer{Kind: engine.Value}}
)

// deny makes the call fail with errno.
func deny(errno unix.Errno) answer { return answer{Answer: engine.Deny(errno)} }

// fileAnswer adds a file to the calling thread. [call.reply] closes it.
func fileAnswer(d *engine.Descriptor) answer {
	return answer{Answer: engine.Answer{Kind: engine.File, File: d}}
}

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
