package tracer

import (
	"golang.org/x/sys/unix"

	"agentsh/seccomp"
	"agentsh/seccomp/target"
	"agentsh/supervisor/notify/engine"
)

// Beside a listener that takes execve, no SECCOMP stop comes before an execve. The filter
// ends the call by SIGSYS instead, which the thread never gets:
//
//  1. The stop of the signal is the stop of the call. It is decided as everywhere.
//  2. A call that is denied returns its errno.
//  3. A call that is allowed is made again. Its last argument, which execve does not have,
//     is a cookie that the filter lets through. The listener then takes the call.
//  4. The program is checked at its exec stop. If the call fails, the argument gets its old
//     value.
//
// A process that learns the cookie gains nothing: an exec that nobody permitted is killed
// at its exec stop.

// repeat is a trapped call that is made again.
type repeat struct {
	phase    repeatPhase
	number   int
	last     uint64 // the argument that the cookie replaces
	reported bool   // another filter has trapped the call again: its signal follows
}

type repeatPhase uint8

const (
	repeatNone  repeatPhase = iota
	repeatSet               // the thread is before the call
	repeatBegun             // it is in the call
)

// trapStopped handles a stop of a thread that has to do with a trapped call. It reports
// whether nothing is left to do.
func (t *thread) trapStopped(k *task, event int, signal unix.Signal) (bool, error) {
	const syscallStop = unix.SIGTRAP | 0x80
	if event != 0 { // an exec stop ends the repetition, the others do not concern it
		return false, nil
	}
	reported := k.repeat.reported
	k.repeat.reported = false
	if k.repeat.phase != repeatNone {
		if signal == syscallStop {
			return true, t.repeated(k)
		}
		// Before the call: it is made again after the signal's handler, and trapped again. So no
		// handler sees the cookie.
		if err := t.endRepeat(k); err != nil {
			return true, err
		}
	}
	if signal != unix.SIGSYS || reported {
		return false, nil
	}
	call, err := target.ReadTrapped(k.tid)
	if failed(err) {
		return true, describe("read the signal of", k.tid, err)
	}
	if err != nil {
		return true, nil // it was killed
	}
	if call == nil || call.Data != seccomp.TrapData || call.Arch != nativeArch || !executes(call.Number) {
		return false, nil // of another filter, or of nobody's
	}
	t.callTrapped(k, call.Number)
	return true, nil
}

// executes reports the calls that a filter traps.
func executes(number int) bool { return number == unix.SYS_EXECVE || number == unix.SYS_EXECVEAT }

// callTrapped passes a trapped call to the workers.
func (t *thread) callTrapped(k *task, number int) {
	if k.exec != nil {
		t.failedExec(k)
	}
	regs, err := target.ReadRegisters(k.tid)
	if failed(err) {
		t.strike(k.tid)
		t.engine.cfg.Log.Error("a process was killed: its call cannot be read", "error", describe("read", k.tid, err))
	}
	if err != nil {
		return
	}
	k.regs, k.trapped, k.call = regs, number, t.engine.add(t, k.tid)
	c := engine.Call{Notification: engine.Notification{ID: k.call, TID: k.tid, Arch: nativeArch, Syscall: number}}
	_, c.Args = regs.Call()
	t.send(c)
}

// answerTrapped carries out the answer to a trapped call.
func (t *thread) answerTrapped(k *task, r *reply) error {
	number := k.trapped
	k.trapped = 0
	if r.answer.Kind == engine.Continue {
		k.repeat = repeat{phase: repeatSet, number: number, last: k.regs.LastArg()}
		t.execs.set(k, r.execution)
		if err := k.regs.Repeat(k.tid, number, t.engine.cfg.Cookie); err != nil {
			return err
		}
		return t.request(unix.PTRACE_SYSCALL, k, 0)
	}
	result := r.answer.Value
	if r.answer.Kind != engine.Value {
		result = -int64(r.answer.Errno)
	}
	if err := k.regs.End(k.tid, result); err != nil {
		return err
	}
	return t.resume(k, 0)
}

// repeated handles the entry and the exit of a call that is made again.
func (t *thread) repeated(k *task) error {
	regs, err := target.ReadRegisters(k.tid)
	if err != nil {
		if failed(err) {
			return err
		}
		return nil // it was killed
	}
	number, _ := regs.Call()
	if k.repeat.phase == repeatSet && number == k.repeat.number && regs.LastArg() == t.engine.cfg.Cookie {
		k.repeat.phase = repeatBegun
		return t.request(unix.PTRACE_SYSCALL, k, 0)
	}
	// The call has failed, or the thread makes another one: the signal was not of a call. A
	// call that another filter trapped has no result.
	result := regs.Result()
	again := k.repeat.phase == repeatBegun && (result > 0 || result < -maxErrno)
	if err := t.endRepeat(k); failed(err) {
		return err
	}
	k.repeat.reported = again
	return t.resume(k, 0)
}

const maxErrno = 4095

// endRepeat gives the last argument its old value. The thread is stopped.
func (t *thread) endRepeat(k *task) error {
	last := k.repeat.last
	k.repeat = repeat{}
	if k.exec != nil {
		t.failedExec(k)
	}
	regs, err := target.ReadRegisters(k.tid)
	if err == nil && regs.LastArg() == t.engine.cfg.Cookie {
		regs.SetLastArg(last)
		err = regs.Write(k.tid)
	}
	if failed(err) {
		return err
	}
	return nil
}
