package notify

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/policy"
	"agentsh/seccomp/target"
)

// anyNumberOfOpens says that it is not known how often a program opens a script
// before it runs it.
const anyNumberOfOpens = -1

// scriptOpens is how often an interpreter opens its script before it runs it; 0:
// it never does, but executes another program that is given the script.
var scriptOpens = map[string]int{
	"sh": 1, "bash": 1, "dash": 1, "ash": 1, "rbash": 1, "ksh": 1, "mksh": 1, "zsh": 1, "fish": 1,
	"awk": 1, "mawk": 1, "gawk": 1, "sed": 1, "make": 1, "gmake": 1, "perl": 1, "tclsh": 1, "expect": 1, "ruby": 1, "php": 1, "gnuplot": 1,
	"python": 2, // once to see whether it is an archive
	"env":    0, "nice": 0, "nohup": 0, "timeout": 0, "setsid": 0, "stdbuf": 0, "ionice": 0, "chrt": 0, "taskset": 0, "Rscript": 0,
}

// opens is how often the program opens what it is named before that runs.
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

// givenToScript reports whether all that the program is named are arguments of the
// script that it runs, as with an interpreter that is a shell script.
func (s *subject) givenToScript() bool {
	for i := range s.named {
		if !s.named[i].own {
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

// Node compiles a file as a CommonJS module and opens it again, as an ES module,
// when it finds the syntax of one. Options can have other code load it.
var (
	moduleSyntax = regexp.MustCompile(`\b(?:import|export|await)\b`)
	moduleNames  = regexp.MustCompile(`\.[cm]js$`)
)

// readOnceByNode reports whether node opens the script once.
func (s *subject) readOnceByNode() bool {
	n := &s.named[0]
	if argv := s.finalArgv(); len(argv) < 2 || argv[1] != n.called || s.nodeOptions {
		return false
	}
	return moduleNames.MatchString(n.held.Path) || n.plain(func(text []byte) bool { return !moduleSyntax.Match(text) })
}

// readOnceByLua reports whether a script is no compiled one behind its first line,
// which Lua opens again.
func (s *subject) readOnceByLua() bool {
	return s.named[0].plain(func(text []byte) bool { return !bytes.Contains(text, []byte("\x1b")) })
}

// maxScanned is the longest script that is looked through, in bytes.
const maxScanned = 1 << 20

// plain reports whether its content is as a test says. The content and the program
// that the test is for stay, so the first answer holds.
func (n *named) plain(test func([]byte) bool) bool {
	if n.looked {
		return n.isPlain
	}
	n.looked = true
	f, err := n.held.Open()
	if err != nil {
		return false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxScanned+1))
	n.isPlain = err == nil && len(text) <= maxScanned && test(text)
	return n.isPlain
}

// follows reports whether the program has to be followed to its files.
func (s *subject) follows() bool { return len(s.named) > 0 && s.opens() != 0 }

// progress is how far a program is on the way to what it is named.
type progress struct {
	left   int // opens that are still to come; negative: not known
	seen   int
	again  int  // calls that it has for each further open
	budget int  // of calls until the next open
	free   bool // what is named is an argument of a script, which may never open it
}

// Calls that a program has. Node 20 makes 5 between its opens of a module, and one
// for each directory; up to the first open those that were looked at make 600.
const (
	callsBefore  = 1 << 20
	callsBetween = 256
)

func (s *subject) progress() progress {
	p := progress{left: s.opens(), again: callsBetween, budget: callsBefore, free: s.givenToScript()}
	for i := range s.named {
		p.again += 4 * (len(s.request.Cwd) + len(s.named[i].called) + len(s.named[i].held.Path))
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

// spend counts a call. A program that opened its file, and has done much since, is
// let go: what it opens now is its own reading. One that never opened it is killed.
func (f *follower) spend(number int) error {
	if uncounted[number] {
		return nil
	}
	if f.progress.budget--; f.progress.budget > 0 {
		return nil
	}
	if f.progress.left < 0 && (f.progress.seen > 0 || f.progress.free) {
		f.done()
		return nil
	}
	return fmt.Errorf("%w in %d system calls (give it as an argument: interpreter FILE)", errNeverOpened, callsBefore)
}

// done lets go of a program that has what it was named: it gives nothing of it on.
func (f *follower) done() {
	if f.a.arrived != nil {
		f.a.arrived.Store(f.progress.seen > 0)
	}
	f.end()
}

// uncounted are calls that a program makes as often as memory, threads and the
// size of a file want it, and that say nothing about how far it is.
var uncounted = map[int]bool{
	unix.SYS_READ: true, unix.SYS_PREAD64: true, unix.SYS_LSEEK: true, unix.SYS_FSTAT: true, unix.SYS_CLOSE: true,
	unix.SYS_MMAP: true, unix.SYS_MUNMAP: true, unix.SYS_MPROTECT: true, unix.SYS_MADVISE: true, unix.SYS_MREMAP: true, unix.SYS_BRK: true,
	unix.SYS_FUTEX: true, unix.SYS_SCHED_YIELD: true, unix.SYS_CLONE: true, unix.SYS_CLONE3: true, unix.SYS_SET_ROBUST_LIST: true,
	unix.SYS_RSEQ:  true,
	unix.SYS_PRCTL: true, unix.SYS_EXIT: true, unix.SYS_GETTID: true, unix.SYS_CLOCK_GETTIME: true,
	unix.SYS_RT_SIGPROCMASK: true, unix.SYS_RT_SIGACTION: true, unix.SYS_RT_SIGRETURN: true, unix.SYS_SIGALTSTACK: true,
}

// runToEntry has a program that is held at its exec stop run to its entry, past
// its dynamic loader, unless that is what opens the file. Where the instruction
// cannot be replaced, all of its calls are looked at.
func (f *follower) runToEntry(pid int) {
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
		f.entry, f.armed = b, true
	}
}

// options sets what a program is stopped for. A process that it forks before its
// entry has the breakpoint too.
func (f *follower) options(tid int) error {
	options := unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE
	if f.armed {
		options |= unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK
	}
	return ptrace(unix.PTRACE_SETOPTIONS, tid, uintptr(options))
}

// atEntry looks at a stop on the way to the entry. From the entry on, and from the
// first thread or process on that the program makes before it, calls are looked
// at. It returns the signal that the thread gets.
func (f *follower) atEntry(tid, event, signal int) int {
	if event == 0 {
		if reached, err := f.entry.Reached(tid); err == nil && !reached {
			return signal
		}
	}
	f.disarm(tid)
	return 0
}

// disarm has the calls of the process looked at from here on.
func (f *follower) disarm(tid int) {
	err := f.entry.Remove(tid)
	f.armed = false
	if err == nil {
		err = f.options(tid)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		_ = unix.Kill(f.process.PID, unix.SIGKILL)
		f.execs.reportKilled(f.a, fmt.Errorf("follow it to its script: %w", err))
	}
}

// lookForNodeOptions sees whether the environment of a program that is node holds
// options, with which it may load its script otherwise.
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
