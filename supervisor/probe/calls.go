package probe

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/seccomp"
	"agentsh/seccomp/target"
	"agentsh/supervisor/probe/trial"
)

// Taken has a traced process make each call, under a filter that stops it. It returns the
// names of the calls that did not stop. The listener of another supervisor takes those.
func Taken(attempts []seccomp.Attempt) ([]string, error) {
	var calls []trial.Call
	for _, a := range attempts {
		calls = append(calls, trial.Call{Number: a.Number, Args: a.Args})
	}
	p, a, err := startRequest(request{Trial: trialCallsParent, Calls: calls}, environment{})
	if err != nil {
		return nil, err
	}
	defer p.close()
	defer time.AfterFunc(trialTimeout, p.server.Kill).Stop()
	names := map[int]string{}
	for _, a := range attempts {
		names[a.Number] = a.Name
	}
	watch := p.watchSilence(names)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var stopped []trial.Call
	if err = ptrace(unix.PTRACE_SEIZE, a.PID, unix.PTRACE_O_TRACESECCOMP|unix.PTRACE_O_EXITKILL); err != nil {
		err = fmt.Errorf("PTRACE_SEIZE: %w", err)
	} else {
		stopped, err = stops(a.PID)
	}
	if err = watch.End(err); err != nil {
		return nil, fmt.Errorf("try calls beside another listener: %w", err)
	}
	var taken []string
	for i, c := range calls {
		if !slices.Contains(stopped, c) && !slices.Contains(taken, attempts[i].Name) {
			taken = append(taken, attempts[i].Name)
		}
	}
	return taken, nil
}

// stops traces a thread to its end and returns the calls that it stopped in. None is
// carried out.
func stops(tid int) (out []trial.Call, err error) {
	for {
		var status unix.WaitStatus
		if _, err := unix.Wait4(tid, &status, unix.WALL|unix.WNOTHREAD, nil); err != nil {
			return nil, fmt.Errorf("wait for the stop: %w", err)
		}
		if status.Signaled() {
			return nil, fmt.Errorf("the process was ended by %v", status.Signal())
		}
		if !status.Stopped() {
			return out, nil
		}
		signal := 0
		switch event := int(status) >> 16; event {
		case unix.PTRACE_EVENT_SECCOMP:
			r, err := target.ReadRegisters(tid)
			if err != nil {
				return nil, err
			}
			var c trial.Call
			c.Number, c.Args = r.Call()
			out = append(out, c)
			if err := r.Skip(tid, -int64(unix.EPERM)); err != nil {
				return nil, err
			}
		case 0:
			signal = int(status.StopSignal())
		}
		if err := ptrace(unix.PTRACE_CONT, tid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return nil, fmt.Errorf("PTRACE_CONT: %w", err)
		}
	}
}
