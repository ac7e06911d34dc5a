package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// Again is this program, started once more with the same standard streams. It outlives this
// process, whatever ends that.
type Again struct {
	cmd   *exec.Cmd
	alive *os.File // the other program has the other end
	ended chan struct{}
	once  sync.Once
}

// AliveFD is the descriptor from which a program of [StartAgain] reads the end of file when the
// program that started it calls [Again.Ask] or has ended.
const AliveFD = 3

// StartAgain starts this program with other arguments in a session of its own: signals of a
// terminal and of a process group do not reach it.
func StartAgain(args []string) (*Again, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start this program again: %w", err)
	}
	defer read.Close()
	a := &Again{alive: write, ended: make(chan struct{})}
	a.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{os.Args[0]}, args...), Env: os.Environ(),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, ExtraFiles: []*os.File{read},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := a.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start this program again: %w", err), write.Close())
	}
	go func() { // ends with the program
		defer close(a.ended)
		_ = a.cmd.Wait() // its state has the status
	}()
	return a, nil
}

// Behind is this program, started once more without a terminal, in a session of its own. It outlives this
// process.
type Behind struct {
	Out, Err *os.File // its standard output and error; the caller closes them
	cmd      *exec.Cmd
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
	theirs = []*os.File{stdin, stdout, stderr}
	if err != nil {
		return nil, errors.Join(err, send.Close(), out.Close(), said.Close()) // those of nil are errors, too
	}
	b.cmd.Stdin, b.cmd.Stdout, b.cmd.Stderr, b.Out, b.Err = stdin, stdout, stderr, out, said
	if err := b.cmd.Start(); err != nil {
		return nil, errors.Join(err, send.Close(), out.Close(), said.Close())
	}
	go func() { // ends when the program has read it, or has ended
		_, _ = send.Write(in)
		_ = send.Close()
	}()
	return b, nil
}

// Signal sends a signal. A program that has ended gets none.
func (b *Behind) Signal(s os.Signal) { _ = b.cmd.Process.Signal(s) }

// Leave gives the program up: nobody waits for it here.
func (b *Behind) Leave() error {
	return errors.Join(b.cmd.Process.Release(), b.Out.Close(), b.Err.Close())
}

// Wait waits for the end of the program, and returns its exit status.
func (b *Behind) Wait() int {
	_ = b.cmd.Wait() // its state has the status
	_ = errors.Join(b.Out.Close(), b.Err.Close())
	return b.cmd.ProcessState.ExitCode()
}

// Ask asks the program to end its work.
func (a *Again) Ask() { a.once.Do(func() { _ = a.alive.Close() }) }

// Signal sends a signal. A program that has ended gets none.
func (a *Again) Signal(s os.Signal) { _ = a.cmd.Process.Signal(s) }

// Ended is closed when the program has ended.
func (a *Again) Ended() <-chan struct{} { return a.ended }

// Code is its exit status after the end, or 128 plus the number of a signal.
func (a *Again) Code() int {
	if status, ok := a.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return a.cmd.ProcessState.ExitCode()
}
