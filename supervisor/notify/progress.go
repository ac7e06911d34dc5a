package notify

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/internal/lazy"
	"agentsh/policy"
	"agentsh/seccomp/target"
	"agentsh/supervisor/notify/engine"
)

// anyNumberOfOpens says that the number of opens of a script before it runs is not known.
const anyNumberOfOpens = -1

// scriptOpens is the number of times that an interpreter opens its script before it runs
// it. 0: it does not open it, but executes another program with it.
var scriptOpens = map[string]int{
	"sh": 1, "bash": 1, "dash": 1, "ash": 1, "rbash": 1, "ksh": 1, "mksh": 1, "zsh": 1, "fish": 1,
	"awk": 1, "mawk": 1, "gawk": 1, "sed": 1, "make": 1, "gmake": 1, "perl": 1, "tclsh": 1, "expect": 1, "ruby": 1, "php": 1, "gnuplot": 1,
	"python": 2, // the first time to check whether it is an archive
	"env":    0, "nice": 0, "nohup": 0, "timeout": 0, "setsid": 0, "stdbuf": 0, "ionice": 0, "chrt": 0, "taskset": 0, "Rscript": 0,
}

// opens is the number of times that the program opens the file that it is given before
// that runs.
func (s *subject) opens() int {
	if len(s.named) != 1 {
		return anyNumberOfOpens
	}
	if !s.named[0].script {
		return 1 // the dynamic loader
	}
	if s.givenToScript() {
		return anyNumberOfOpens
	}
	name := s.interpreterName()
	n, known := scriptOpens[name]
	switch {
	case known:
		return n
	case name == "node" && s.readOnceByNode(), strings.HasPrefix(name, "lua") && s.readOnceByLua():
		return 1
	}
	return anyNumberOfOpens
}

// givenToScript reports whether the program runs a script, and all of s.named are
// arguments of that. This is so with an interpreter that is a shell script.
func (s *subject) givenToScript() bool {
	for i := range s.named {
		if !s.named[i].separate {
			return false
		}
	}
	return len(s.prefix) > 0
}

// interpreterName is the name of the program without its version.
func (s *subject) interpreterName() string {
	name := path.Base(s.files[len(s.files)-1].Path)
	if argv := s.finalArgv(); policy.MultiCallName(name) {
		name = path.Base(argv[0])
		if policy.MultiCallName(name) && len(argv) > 1 {
			name = path.Base(argv[1])
		}
	}
	return strings.TrimRight(name, "0123456789.")
}

// Node compiles a file as a CommonJS module. If it finds the syntax of an ES module, it
// opens the file again as one. Options can load the file with other code.
var (
	moduleSyntax = lazy.Regexp(`\b(?:import|export|await)\b`)
	moduleNames  = lazy.Regexp(`\.[cm]js$`)
)

// readOnceByNode reports whether node opens the script exactly once.
func (s *subject) readOnceByNode() bool {
	n := &s.named[0]
	if argv := s.finalArgv(); len(argv) < 2 || argv[1] != n.called || s.nodeOptions {
		return false
	}
	return moduleNames().MatchString(n.content.Path) || n.contentOpensOnce(func(text []byte) bool { return !moduleSyntax().Match(text) })
}

// readOnceByLua reports whether lua opens the script exactly once. It opens a compiled
// one again, which may begin with a first line for the shell.
func (s *subject) readOnceByLua() bool {
	return s.named[0].contentOpensOnce(func(text []byte) bool { return !bytes.Contains(text, []byte("\x1b")) })
}

// maxScanned is the longest script whose content is searched, in bytes.
const maxScanned = 1 << 20

// contentOpensOnce reports whether the content passes a test. The result is kept:
// neither the content nor the program that the test is for changes.
func (n *named) contentOpensOnce(test func([]byte) bool) bool {
	if n.scanned {
		return n.once
	}
	n.scanned = true
	f, err := n.content.Open()
	if err != nil {
		return false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxScanned+1))
	n.once = err == nil && len(text) <= maxScanned && test(text)
	return n.once
}

// follows reports whether the program must be followed until it opens its files.
func (s *subject) follows() bool { return len(s.named) > 0 && s.opens() != 0 }

// progress counts what a program did until it opened the files that it was given.
type progress struct {
	left     int // opens that are still to come; negative: not known
	seen     int
	again    int  // system calls that it may make for each further open
	budget   int  // system calls that it may make until the next open
	optional bool // the files are arguments of a script, which may never open them
}

// System calls that a program may make. Node 20 makes 5 between its opens of a module,
// and one for each directory. Other programs made at most 600 before the first open.
const (
	callsBefore  = 1 << 20
	callsBetween = 256
)

func (s *subject) progress() progress {
	p := progress{left: s.opens(), again: callsBetween, budget: callsBefore, optional: s.givenToScript()}
	for i := range s.named {
		p.again += 4 * (len(s.request.Cwd) + len(s.named[i].called) + len(s.named[i].content.Path))
	}
	return p
}

// opened notes an open that was answered.
func (p *progress) opened() {
	p.seen++
	if p.left < 0 {
		p.budget = p.again
	} else {
		p.left--
	}
}

// errNeverOpened says that a program was given a file and did not open it.
var errNeverOpened = errors.New("it has not opened the file that it was started for")

// count counts a system call against the budget. If the budget is used up, a program
// that opened its file is detached: later opens are its own business. A program that
// never opened the file is killed.
func (f *follower) count(number int) error {
	if uncounted[number] {
		return nil
	}
	if f.progress.budget--; f.progress.budget > 0 {
		return nil
	}
	if f.progress.left < 0 && (f.progress.seen > 0 || f.progress.optional) {
		f.finish()
		return nil
	}
	return fmt.Errorf("%w in %d system calls (give it as an argument: interpreter FILE)", errNeverOpened, callsBefore)
}

// Skips are all calls but those with a name that the follower looks for, once the program
// runs. While the result of a call is to be changed, no stop is skipped.
func (f *follower) Skips() engine.Skips {
	if f.toEntry || f.ending || len(f.calls) > 0 {
		return engine.Skips{Rare: f.toEntry}
	}
	return engine.Skips{Calls: skippedCalls(), Most: f.progress.budget - 1, Names: f.sought}
}

// Skipped counts calls that were skipped.
func (f *follower) Skipped(counted int) { f.progress.budget -= counted }

// skippedCalls has all calls but those that [follower.syscall] looks at.
var skippedCalls = sync.OnceValue(func() *[engine.CallNumbers]engine.CallUse {
	use := &[engine.CallNumbers]engine.CallUse{}
	for number := range use {
		switch call, named := pathCalls[number]; {
		case named:
			use[number] = engine.NamedFirst + engine.CallUse(call.path)
		case number == unix.SYS_GETCWD:
		case uncounted[number]:
			use[number] = engine.Skipped
		default:
			use[number] = engine.Counted
		}
	}
	return use
})

// finish detaches from a program that has opened its files. It passes them to no other
// program.
func (f *follower) finish() {
	if f.a.arrived != nil {
		f.a.arrived.Store(f.progress.seen > 0)
	}
	f.end()
}

// uncounted are calls that say nothing about the progress of a program. Their number
// depends on memory, threads and the size of a file.
var uncounted = map[int]bool{
	unix.SYS_READ: true, unix.SYS_PREAD64: true, unix.SYS_LSEEK: true, unix.SYS_FSTAT: true, unix.SYS_CLOSE: true,
	unix.SYS_MMAP: true, unix.SYS_MUNMAP: true, unix.SYS_MPROTECT: true, unix.SYS_MADVISE: true, unix.SYS_MREMAP: true, unix.SYS_BRK: true,
	unix.SYS_FUTEX: true, unix.SYS_SCHED_YIELD: true, unix.SYS_CLONE: true, unix.SYS_CLONE3: true, unix.SYS_SET_ROBUST_LIST: true,
	unix.SYS_RSEQ:  true,
	unix.SYS_PRCTL: true, unix.SYS_EXIT: true, unix.SYS_EXIT_GROUP: true, unix.SYS_GETTID: true, unix.SYS_CLOCK_GETTIME: true,
	unix.SYS_RT_SIGPROCMASK: true, unix.SYS_RT_SIGACTION: true, unix.SYS_RT_SIGRETURN: true, unix.SYS_SIGALTSTACK: true,
}

// runToEntry lets a program that is stopped at its exec run to its entry point, past its
// dynamic loader. It does nothing if the loader itself opens the file. If the breakpoint
// cannot be set, all calls of the program are traced. They all are if processes that the
// program makes are traced too, because these would have the breakpoint.
func (f *follower) runToEntry(pid int) {
	if !f.tracing.AddsFiles() {
		return
	}
	for i := range f.a.named {
		if !f.a.named[i].script {
			return
		}
	}
	at, err := target.EntryOf(pid)
	if err != nil {
		return
	}
	if b, err := target.SetBreakpoint(pid, at); err == nil {
		f.entry, f.toEntry = b, true
	}
}

// options sets the events that stop a program. A process that it forks before its entry
// point has the breakpoint too.
func (f *follower) options(tid int) error {
	options := unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE
	if f.toEntry {
		options |= unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK
	}
	return f.tracing.SetOptions(tid, options)
}

// atEntry handles a stop before the entry point, and returns the signal for the thread.
// It ends this phase at the entry point, or when the program makes a thread or process.
func (f *follower) atEntry(tid, event, signal int) int {
	if event == 0 {
		if reached, err := f.entry.Reached(tid); err == nil && !reached {
			return signal
		}
	}
	f.removeBreakpoint(tid)
	return 0
}

// removeBreakpoint makes all calls of the process stop from here on.
func (f *follower) removeBreakpoint(tid int) {
	err := f.entry.Remove(tid)
	f.toEntry = false
	if err == nil {
		err = f.options(tid)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		_ = engine.Kill(f.process.PID)
		f.execs.reportKilled(f.a, fmt.Errorf("follow it to its script: %w", err))
	}
}

// lookForNodeOptions notes whether node has options in its environment. With them it
// may load its script in another way.
func (a *attempt) lookForNodeOptions(s *target.Stopped) error {
	if len(a.named) == 0 || a.interpreterName() != "node" {
		return nil
	}
	env, err := s.Env()
	if err != nil {
		return fmt.Errorf("read the environment: %w", err)
	}
	a.nodeOptions = slices.ContainsFunc(slices.Concat(env, a.rules.Inject), func(e string) bool {
		return strings.HasPrefix(e, "NODE_OPTIONS=") && e != "NODE_OPTIONS="
	})
	return nil
}
