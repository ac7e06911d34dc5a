package fuse

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"

	"agentsh/internal/wire"
)

// maxScanned bounds the processes that are examined to find one.
const maxScanned = 4096

// resolver finds the process behind the thread id of a request. The kernel reports
// that id in the pid namespace in which the mount was made. The resolver reads no
// memory that a process could have mapped from our own mounts.
type resolver struct {
	mu   sync.Mutex
	init int // pid of the namespace's first process, as the server sees it; 0: the server's own namespace
}

func (r *resolver) setInit(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.init = pid
}

// process describes a thread's process as far as the process still exists.
func (r *resolver) process(tid uint32) *wire.Process {
	r.mu.Lock()
	first := r.init
	r.mu.Unlock()
	p := &wire.Process{Inside: int(tid)}
	id := strconv.Itoa(int(tid))
	if first == 0 {
		p.PID, _ = strconv.Atoi(statusField("/proc/"+id+"/status", "Tgid:"))
	} else {
		p.PID = findInside(first, id)
	}
	if p.PID == 0 {
		return p
	}
	dir := "/proc/" + strconv.Itoa(p.PID)
	p.StartTime = startTime(dir + "/stat")
	p.Mark, _ = markOf(dir + "/limits")
	return p
}

// showProcess adds the working directory and the executable of a process. Only the
// supervisor may read them: Landlock denies that to the server. See ptrace(2), access
// mode checking.
func showProcess(p *wire.Process) {
	if p == nil || p.PID == 0 {
		return
	}
	dir := "/proc/" + strconv.Itoa(p.PID)
	exe, _ := os.Readlink(dir + "/exe")
	cwd, _ := os.Readlink(dir + "/cwd")
	if startTime(dir+"/stat") == p.StartTime { // otherwise the process has ended
		p.Exe, p.Cwd = exe, cwd
	}
}

// markOf reads the resource limit that identifies the processes of one command, see
// seccomp.TagLimit. 0 means none. known is false if the process has ended.
func markOf(file string) (mark uint64, known bool) {
	limits := strings.Fields(statusField(file, "Max realtime timeout"))
	if len(limits) < 2 {
		return 0, false
	}
	mark, err := strconv.ParseUint(limits[1], 10, 64)
	if err != nil {
		return 0, true // unlimited
	}
	return mark, true
}

// findInside searches the process tree below first for the thread whose id is tid in
// the innermost namespace. It returns the thread's process.
func findInside(first int, tid string) int {
	queue := []string{strconv.Itoa(first)}
	for i := 0; i < len(queue) && i < maxScanned; i++ {
		tasks, err := os.ReadDir("/proc/" + queue[i] + "/task")
		if err != nil {
			continue
		}
		for _, task := range tasks {
			dir := "/proc/" + queue[i] + "/task/" + task.Name()
			ids := strings.Fields(statusField(dir+"/status", "NSpid:"))
			if len(ids) > 0 && ids[len(ids)-1] == tid {
				pid, _ := strconv.Atoi(queue[i])
				return pid
			}
			children, err := os.ReadFile(dir + "/children")
			if err == nil {
				queue = append(queue, strings.Fields(string(children))...)
			}
		}
	}
	return 0
}

// statusField returns one field of proc_pid_status(5).
func statusField(file, name string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// startTime returns field 22 of proc_pid_stat(5). It follows the name in parentheses.
func startTime(file string) uint64 {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 20 {
		return 0
	}
	n, _ := strconv.ParseUint(string(fields[19]), 10, 64)
	return n
}
