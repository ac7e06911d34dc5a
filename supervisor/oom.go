package supervisor

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/launch"
)

// protectedScore is the oom_score_adj of a supervisor and of file servers, where the
// machine allows it. The kernel then ends nearly everything else first when memory
// runs out. Commands have the higher value that the session init gives itself. See
// proc_pid_oom_score_adj(5).
const protectedScore = -800

// protect makes the kernel spare this process and the file server when memory runs
// out. It needs CAP_SYS_RESOURCE; detect tells where that is missing. A lower value
// that the operator set stays.
func protect(fileServer int) {
	processes := []string{"self"}
	if fileServer != 0 {
		processes = append(processes, strconv.Itoa(fileServer))
	}
	for _, p := range processes {
		name := fmt.Sprintf("/proc/%s/oom_score_adj", p)
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		score, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || score <= protectedScore {
			continue
		}
		launch.KeepScore(score) // of programs that are no part of sessions
		_ = os.WriteFile(name, []byte(strconv.Itoa(protectedScore)), 0)
	}
}

// preferredNice is the nice value of a supervisor, its file servers and session inits,
// where the machine allows it. Each command waits for them. When a supervisor is killed
// on a machine with much load, each of their threads needs a processor to end.
const preferredNice = -10

// ownScheduling is the scheduling that this process was started with.
var ownScheduling = sync.OnceValues(func() (*unix.SchedAttr, error) { return unix.SchedGetAttr(0, 0) })

// prefer gives this process, the file server and the session init a processor before
// others, unless the operator chose another scheduling. It needs CAP_SYS_NICE. Commands have
// the value that the supervisor was started with.
func prefer(fileServer, init int) {
	if own, err := ownScheduling(); err != nil || own.Policy != unix.SCHED_NORMAL || own.Nice != 0 {
		return
	}
	launch.KeepNice(0) // of programs that are no part of sessions
	// New threads of these have the value of the thread that starts them.
	setNice(os.Getpid(), 0)
	if fileServer != 0 {
		setNice(fileServer, 0)
	}
	setNice(init, unix.SCHED_FLAG_RESET_ON_FORK) // what it starts has 0
}

// setNice gives each thread of a process the preferred nice value. The threads change
// meanwhile, so the list is read until it has no other thread.
func setNice(pid int, flags uint64) {
	done := map[string]bool{}
	for again := true; again; {
		again = false
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return // it has ended
		}
		for _, thread := range threads {
			tid, err := strconv.Atoi(thread.Name())
			if err != nil || done[thread.Name()] {
				continue
			}
			a := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Flags: flags, Nice: preferredNice}
			if err := unix.SchedSetAttr(tid, &a, 0); err == unix.EPERM || err == unix.EACCES {
				return
			}
			done[thread.Name()], again = true, true
		}
	}
}
