package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// Service is a program of the operator that outlives this process. No guard stands above it, and nothing here ends it.
type Service struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// StartService starts a program in a session of its own. It inherits nothing; what it prints goes to a file.
func StartService(argv, env []string, output *os.File) (*Service, error) {
	if len(argv) == 0 {
		return nil, errors.New("start service: no program given")
	}
	program, err := LookPath(argv[0], env)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	s := &Service{ended: make(chan struct{}), cmd: &exec.Cmd{
		Path: program, Args: argv, Dir: "/", Env: env, Stdout: output, Stderr: output, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	go func() { // ends with the program, or with this process
		defer close(s.ended)
		_ = s.cmd.Wait() // its state has the status
	}()
	return s, nil
}

// Ended is closed when the program has ended.
func (s *Service) Ended() <-chan struct{} { return s.ended }

// Err is how the program ended, after the end: nil if its status is 0.
func (s *Service) Err() error {
	if s.cmd.ProcessState.Success() {
		return nil
	}
	return fmt.Errorf("%s: %s", s.cmd.Args[0], s.cmd.ProcessState)
}
