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
