package host

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// Again is this program, started once more with the same standard streams. It outlives this process, whatever ends that.
// It is nobody's child: a client that kills this process with all that it started does not find it.
type Again struct {
	alive *os.File // the other program has the other end
	ended chan struct{}
	code  int  // set before ended is closed
	told  bool // the program told the code; set before ended is closed
	last  syscall.Signal
}

// Descriptors of a program of [StartAgain]; one of [StartBehind] has the first.
const (
	// AliveFD is where the program learns of the one that started it. [StartAgain]: see [Front.Follow]. [StartBehind]: one byte
	// after [Behind.Leave], the end of file when the other has ended.
	AliveFD = 3
	// StatusFD is where it writes its exit status, one byte.
	StatusFD = 4
)

// StartAgain starts this program with other arguments in a session of its own: signals of a terminal and of a process group do not
// reach it. apart are the arguments with which this program calls [Apart].
func StartAgain(apart []string) (*Again, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start this program again: %w", err)
	}
	defer read.Close()
	status, theirs, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start this program again: %w", err), write.Close())
	}
	defer theirs.Close()
	a := &Again{alive: write, ended: make(chan struct{})}
	if err := again(apart, read, theirs).Run(); err != nil { // ends at once
		return nil, errors.Join(fmt.Errorf("start this program again: %w", err), write.Close(), status.Close())
	}
	go func() { // ends with the program
		defer close(a.ended)
		defer status.Close()
		var code [1]byte
		_, err := io.ReadFull(status, code[:])
		a.code, a.told = int(code[0]), err == nil
	}()
	return a, nil
}

// Apart starts this program once more with the descriptors of [StartAgain]. The caller ends then, and leaves the program without a
// parent.
func Apart(args []string) error {
	front := OpenFront()
	cmd := again(args, front.alive, front.status)
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start this program again: %w", err), front.close())
	}
	return errors.Join(cmd.Process.Release(), front.close())
}

// again is this program with other arguments and more descriptors.
func again(args []string, more ...*os.File) *exec.Cmd {
	return &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{os.Args[0]}, args...), Env: os.Environ(),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, ExtraFiles: more, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
}

// Front is the program that started this one by [StartAgain], as this one sees it.
type Front struct{ alive, status *os.File }

// OpenFront takes the descriptors of [StartAgain]. No program that this one starts inherits them.
func OpenFront() Front {
	syscall.CloseOnExec(AliveFD)
	syscall.CloseOnExec(StatusFD)
	return Front{alive: os.NewFile(AliveFD, "alive"), status: os.NewFile(StatusFD, "status")}
}

func (f Front) close() error { return errors.Join(f.alive.Close(), f.status.Close()) }

// Follow calls ask when the other program asks for the end of the work, or has ended. Its signals reach this process then.
// Follow returns when the other program has ended.
func (f Front) Follow(ask func()) {
	defer ask()
	var told [1]byte
	for {
		if _, err := io.ReadFull(f.alive, told[:]); err != nil {
			return
		}
		ask()
		if told[0] != 0 {
			_ = syscall.Kill(os.Getpid(), syscall.Signal(told[0])) // this process
		}
	}
}

// Finish tells the other program the exit status.
func (f Front) Finish(code int) {
	_, _ = f.status.Write([]byte{byte(code)}) // it may have ended
	_ = f.close()
}

// Ask asks the program to end its work.
func (a *Again) Ask() { a.tell(0) }

// Signal sends a signal after [Again.Ask].
func (a *Again) Signal(s syscall.Signal) {
	a.last = s
	a.tell(byte(s))
}

func (a *Again) tell(what byte) { _, _ = a.alive.Write([]byte{what}) } // it may have ended

// Ended is closed when the program has ended.
func (a *Again) Ended() <-chan struct{} { return a.ended }

// Code is its exit status after the end. A program that was killed has told none: killed says so, unless a signal of
// [Again.Signal] ended it.
func (a *Again) Code() (code int, killed bool) {
	switch {
	case a.told:
		return a.code, false
	case a.last != 0:
		return 128 + int(a.last), false
	}
	return 128 + int(syscall.SIGKILL), true
}

// Behind is this program, started once more without a terminal, in a session of its own. It outlives this
// process, and learns whether that left it or was killed.
type Behind struct {
	Out, Err *os.File // its standard output and error; the caller closes them
	cmd      *exec.Cmd
	alive    *os.File // the other program has the other end
}

// StartBehind starts this program with other arguments and an input, which it reads to its end.
func StartBehind(args []string, in []byte) (_ *Behind, err error) {
	b := &Behind{cmd: &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{os.Args[0]}, args...), Env: os.Environ(), SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			_ = f.Close() // the program has copies
		}
		if err != nil {
			err = fmt.Errorf("start this program again: %w", err)
		}
	}()
	pipe := func() (read, write *os.File) {
		if err == nil {
			read, write, err = os.Pipe()
		}
		return read, write
	}
	stdin, send := pipe()
	out, stdout := pipe()
	said, stderr := pipe()
	left, alive := pipe()
	theirs = []*os.File{stdin, stdout, stderr, left}
	if err == nil {
		b.cmd.Stdin, b.cmd.Stdout, b.cmd.Stderr, b.Out, b.Err, b.alive = stdin, stdout, stderr, out, said, alive
		b.cmd.ExtraFiles = []*os.File{left}
		err = b.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, send.Close(), out.Close(), said.Close(), alive.Close()) // those of nil are errors, too
	}
	go func() { // ends when the program has read it, or has ended
		_, _ = send.Write(in)
		_ = send.Close()
	}()
	return b, nil
}

// Signal sends a signal. A program that has ended gets none.
func (b *Behind) Signal(s os.Signal) { _ = b.cmd.Process.Signal(s) }

// Leave gives the program up, and tells it so: nobody waits for it here.
func (b *Behind) Leave() error {
	_, err := b.alive.Write([]byte{0})
	if err != nil {
		err = fmt.Errorf("the program started again has ended: %w", err)
	}
	return errors.Join(err, b.alive.Close(), b.cmd.Process.Release(), b.Out.Close(), b.Err.Close())
}

// Wait waits for the end of the program, and returns how it ended. A program that was not left is told
// that nobody wants it.
func (b *Behind) Wait() *os.ProcessState {
	_ = b.alive.Close()
	_ = b.cmd.Wait() // its state has the status
	_ = errors.Join(b.Out.Close(), b.Err.Close())
	return b.cmd.ProcessState
}
