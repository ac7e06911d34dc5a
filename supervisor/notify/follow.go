package notify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
	"agentsh/supervisor/notify/engine"
)

// follower traces the system calls of an interpreter or a dynamic loader, from its exec
// until it has opened the file that was evaluated. It changes two kinds of calls:
//   - an open by the name of the file gets the content that was evaluated;
//   - a call that reads the status of the name, or a link, gets the result of then.
//
// Arguments and environment stay, so that a script sees its own name. The dynamic loader
// of an interpreter runs without stops up to the entry point. All methods are for the
// tracing thread.
type follower struct {
	execs    *execs
	tracing  engine.Tracing
	process  target.Process // stays the same over an exec
	a        *attempt
	entry    *target.Breakpoint // at the entry point; nil: there was none
	toEntry  bool               // the process has not reached its entry point
	progress progress
	names    map[string]*named // the files by their absolute names
	bases    map[string]bool   // last elements of names and links
	sought   []byte            // the same, each with a NUL at its end
	relative relativeNames     // the files by their relative names
	calls    map[int]*followed // by thread: the call that it is stopped in
	ending   bool              // each thread is detached at its next stop
	unbind   func() bool       // from the loop's context; nil: not begun
	next     *attempt          // permitted, and not yet at the exec stop; guarded by follows.mu
}

// followed is one call whose execution or result is changed.
type followed struct {
	pathCall
	number int
	args   [6]uint64
	length int // of the path
	file   *named
	opened *installedFile
	before *target.Registers // of an open in whose place the thread makes a memory file
}

// installedFile is a file that the answer to a notification adds to a thread.
type installedFile struct {
	file   *target.Handle
	flags  int
	number atomic.Int64 // of the new descriptor; negative: none
}

// answer adds the file to the caller and answers its open. The follower compares the
// number of the descriptor, so it is stored before the call returns.
func (h *installedFile) answer() (answer, error) {
	file, err := h.file.Open()
	if err != nil {
		return noAnswer, err
	}
	return fileAnswer(&engine.Descriptor{File: file, Exec: h.flags&unix.O_CLOEXEC == 0, Added: &h.number}), nil
}

// newFollower returns what follows the program of an accepted exec. It takes over a.
func (h *execs) newFollower(a *attempt) *follower {
	f := &follower{execs: h, process: a.process.Process, calls: map[int]*followed{}}
	f.begin(a)
	return f
}

// Begin begins with the process that is stopped at its exec.
func (f *follower) Begin(first int, t engine.Tracing) error {
	f.tracing = t
	f.runToEntry(first)
	if err := f.options(first); err != nil {
		return err
	}
	f.execs.follows.add(first, f)
	// When the loop has ended, nobody answers the calls of the process.
	f.unbind = context.AfterFunc(f.execs.tasks.ctx, func() { _ = engine.Kill(f.process.PID) })
	f.resume(first, 0)
	return nil
}

// Done closes what the follower holds.
func (f *follower) Done() {
	if f.unbind != nil {
		f.unbind()
	}
	if left := f.execs.follows.remove(f); left != nil {
		left.close()
	}
	f.a.close()
}

// Ended forgets a thread that has ended.
func (f *follower) Ended(tid int) {
	f.execs.follows.removeThread(tid, f)
	delete(f.calls, tid)
}

// begin sets the files to look for.
func (f *follower) begin(a *attempt) {
	f.a, f.progress = a, a.progress()
	f.names, f.bases = map[string]*named{}, map[string]bool{}
	f.relative = newRelativeNames(a)
	for i := range a.named {
		n := &a.named[i]
		whole := n.called
		if !path.IsAbs(whole) {
			whole = a.request.Cwd + "/" + whole
		}
		for _, name := range []string{path.Clean(whole), n.content.Path, whole} {
			f.names[name], f.bases[path.Base(name)] = n, true
		}
		for link := range n.links {
			f.bases[path.Base(link)] = true
		}
	}
	f.sought = nil
	for name := range f.bases {
		f.sought = append(append(f.sought, name...), 0)
	}
}

// Stopped handles the stop of a thread.
func (f *follower) Stopped(tid int, status unix.WaitStatus) {
	const syscallStop = unix.SIGTRAP | 0x80
	if !f.execs.follows.has(tid) && !f.adopt(tid) {
		return
	}
	event, signal := engine.Event(status), status.StopSignal()
	switch {
	case signal == syscallStop:
		if err := f.syscall(tid); err != nil && target.Held(tid) { // it was not killed
			_ = engine.Kill(f.process.PID)
			f.execs.reportKilled(f.a, fmt.Errorf("follow it to its script: %w", err))
		}
		f.resume(tid, 0)
	case event == unix.PTRACE_EVENT_EXEC:
		f.executed(tid)
		f.resume(tid, 0)
	case f.toEntry && (event != 0 && event != engine.EventStop || signal == unix.SIGTRAP):
		f.resume(tid, f.atEntry(tid, event, int(signal)))
	case event == engine.EventStop && engine.StopsProcess(signal) && !f.ending:
		_ = engine.Ptrace(unix.PTRACE_LISTEN, tid, 0)
	case event != 0:
		f.resume(tid, 0)
	default:
		_ = new(target.IgnoredSignals).Stopped(tid, signal) // it may have been killed
		f.resume(tid, int(signal))
	}
}

// adopt starts to follow a new thread. It detaches from a process that only shares
// memory with the program.
func (f *follower) adopt(tid int) bool {
	if unix.Access(fmt.Sprintf("/proc/%d/task/%d", f.process.PID, tid), unix.F_OK) != nil {
		if f.entry != nil {
			_ = f.entry.Remove(tid)
		}
		_ = f.tracing.Detach(tid, 0)
		return false
	}
	f.execs.follows.add(tid, f)
	if f.toEntry {
		f.removeBreakpoint(tid)
	}
	return true
}

// resume continues a thread until its next call, or detaches from it.
func (f *follower) resume(tid, signal int) {
	if !f.ending {
		request := unix.PTRACE_SYSCALL
		if f.toEntry {
			request = unix.PTRACE_CONT
		}
		_ = engine.Ptrace(request, tid, uintptr(signal)) // it may have been killed
		return
	}
	f.execs.follows.detach(tid, signal, f)
}

// end has every thread detached at its next stop.
func (f *follower) end() {
	if f.ending {
		return
	}
	f.ending = true
	f.execs.follows.mu.Lock()
	defer f.execs.follows.mu.Unlock()
	for tid, by := range f.execs.follows.threads {
		if by == f {
			_ = engine.Interrupt(tid) // one that is stopped already stays stopped
		}
	}
}

// executed checks the new program of a process that is followed.
func (f *follower) executed(pid int) {
	clear(f.calls)
	f.execs.follows.removeOthers(f, pid)
	a := f.execs.follows.removeNext(f)
	if a == nil {
		f.execs.reportUnjudged(pid)
		_ = engine.Kill(pid)
		return
	}
	if err := f.execs.accept(engine.Program{PID: pid}, a); err != nil {
		_ = engine.Kill(pid)
		f.execs.reportKilled(a, err)
		a.close()
		return
	}
	f.a.close()
	f.begin(a)
	f.entry, f.toEntry = nil, false // it went with the memory
	f.ending = false                // it was set for the program before
	if !a.follows() {
		f.end()
		return
	}
	f.runToEntry(pid)
	if err := f.options(pid); err != nil {
		_ = engine.Kill(pid)
	}
}

// syscall handles the stop of a thread at the entry or the exit of a call.
func (f *follower) syscall(tid int) error {
	info, err := target.SyscallOf(tid)
	if err != nil {
		return err
	}
	if info.Entry {
		delete(f.calls, tid)
		if f.enterGetcwd(tid, info) {
			return nil
		}
		known, ok := pathCalls[info.Number]
		if f.ending {
			return nil
		}
		if err := f.count(info.Number); err != nil || f.ending || !ok {
			return err
		}
		return f.enter(tid, info, known)
	}
	call := f.calls[tid]
	if call == nil && f.ending {
		return target.RestartWait(tid) // it was interrupted by end
	}
	if call == nil {
		return nil
	}
	delete(f.calls, tid)
	switch call.kind {
	case callOpen:
		return f.opened(tid, call, info.Result)
	case callGetcwd:
		return f.addDirectory(tid, call, info.Result)
	}
	return f.fill(tid, call)
}

// enter handles the entry of a call with a path.
func (f *follower) enter(tid int, info target.Syscall, known pathCall) error {
	name, err := target.Text(tid, info.Args[known.path], target.MaxPath)
	if err != nil || name == "" || !f.bases[path.Base(name)] {
		return nil //nolint:nilerr // the kernel says what is wrong with the path
	}
	length := len(name)
	dir := unix.AT_FDCWD
	if known.dir >= 0 {
		dir = int(int32(info.Args[known.dir]))
	}
	var asCalled *named
	if !path.IsAbs(name) {
		if dir == unix.AT_FDCWD {
			asCalled = f.relative.file(name, f.progress.left)
		}
		t, err := target.OpenView(tid)
		if err != nil {
			return err
		}
		name = t.Directory(dir) + "/" + name
		t.Close()
	}
	call := &followed{pathCall: known, number: info.Number, args: info.Args, file: f.names[name], length: length}
	if call.file == nil {
		call.file = f.names[path.Clean(name)]
	}
	if asCalled != nil {
		call.file = asCalled
	}
	switch {
	case known.kind == callReadlink:
		return f.enterReadlink(tid, call, path.Clean(name))
	case call.file == nil:
		return nil
	case known.kind == callOpen:
		return f.enterOpen(tid, call)
	case call.noFollow() && f.isLink(path.Clean(name)):
		return nil // the status of the link itself needs no change
	}
	f.calls[tid] = call
	return nil
}

func (f *follower) isLink(name string) bool {
	for i := range f.a.named {
		if f.a.named[i].links[name] != "" {
			return true
		}
	}
	return false
}

// enterReadlink has a call return the text of a link that was evaluated.
func (f *follower) enterReadlink(tid int, call *followed, name string) error {
	for i := range f.a.named {
		if f.a.named[i].links[name] != "" {
			call.file, call.link = &f.a.named[i], name
			f.calls[tid] = call
		}
	}
	return nil
}

// enterOpen replaces an open for reading by the call whose notification installs the
// file.
func (f *follower) enterOpen(tid int, call *followed) error {
	flags := int(call.args[call.flags])
	if call.number == unix.SYS_OPENAT2 {
		how, err := target.Bytes(tid, call.args[2], 8)
		if err != nil {
			return nil //nolint:nilerr // the kernel reports it
		}
		flags = int(binary.NativeEndian.Uint64(how))
	}
	if flags&(unix.O_ACCMODE|unix.O_PATH) != 0 {
		return nil
	}
	if !f.tracing.AddsFiles() {
		var err error
		call.before, err = target.ReplaceOpen(tid, call.args[call.path], call.length, flags&unix.O_CLOEXEC != 0)
		f.calls[tid] = call
		return err
	}
	call.opened = &installedFile{file: call.file.content, flags: flags}
	call.opened.number.Store(-1)
	f.execs.follows.addOpen(tid, call.opened) // first: if the thread has ended, nothing is left behind
	if err := target.SetNumber(tid, unix.SYS_EXECVEAT); err != nil {
		_ = f.execs.follows.removeOpen(tid)
		return err
	}
	f.calls[tid] = call
	return nil
}

// Results of a call that the kernel starts again. See include/linux/errno.h.
const firstRestart, lastRestart = -512, -516

// opened checks the result of an open. A filter that the command installed may have
// answered it: then it is not the file.
func (f *follower) opened(tid int, call *followed, result int64) error {
	if call.before != nil {
		made, err := target.FillOpened(tid, int(result), call.before, call.file.content)
		if err != nil || result < 0 {
			return err
		}
		call.file.use.heldBy(f.process, made)
		f.given(call)
		return nil
	}
	_ = f.execs.follows.removeOpen(tid)
	if result <= firstRestart && result >= lastRestart {
		return target.SetNumber(tid, call.number)
	}
	if result < 0 {
		return nil
	}
	if result != call.opened.number.Load() {
		return errors.New("another filter answered an open")
	}
	call.file.use.installed(f.process, call.file.content)
	f.given(call)
	return nil
}

// given notes that the program has opened a file that was evaluated.
func (f *follower) given(call *followed) {
	if !path.IsAbs(call.file.called) {
		f.relative.given[call.file] = true
	}
	f.progress.opened()
	if f.progress.left == 0 {
		f.finish()
	}
}
