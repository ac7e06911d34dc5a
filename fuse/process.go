package fuse

import (
	"bytes"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/device"
	"agentsh/fuse/tree"
	"agentsh/internal/wire"
	seccomptarget "agentsh/seccomp/target"
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
// target.Tag. 0 means none. known is false if the process has ended.
func markOf(file string) (mark uint64, known bool) {
	limits, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	mark, _ = seccomptarget.Tag(limits)
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
			if len(ids) == 0 && task.Name() == queue[i] { // gVisor tells the numbers of processes only
				if status, err := os.ReadFile(dir + "/status"); err == nil {
					ids, _ = seccomptarget.Numbers(status)
				}
			}
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

// retries are the threads whose call gets ESTALE, because the host removed or replaced the
// file after the kernel had looked it up. The kernel then looks the path up once more. The
// file that it finds this time is kept open, so that the call succeeds even if the host
// removes that file too. Without that, a call fails beside a host that often changes a name.
type retries struct {
	tree *tree.Tree
	some atomic.Int32 // length of byThread

	mu       sync.Mutex
	byThread map[uint32]*kept

	refusals refusals
}

// refusals are the threads whose last call got ESTALE. The kernel repeats such a call once,
// and looks its path up again. If it comes to the same node again, the path starts at a
// descriptor or a working directory, and has lost its name for good.
type refusals struct {
	some atomic.Bool

	mu       sync.Mutex
	byThread map[uint32]refusal
}

type refusal struct {
	node uint64
	at   time.Time
}

// final returns the answer to a call that the kernel repeats after ESTALE. A second ESTALE
// for the same node would reach the command. It becomes ENOENT, which a plain directory
// that was removed gives.
func (r *refusals) final(h *gofuse.InHeader, code gofuse.Status) gofuse.Status {
	if code != gofuse.Status(unix.ESTALE) {
		if r.some.Load() && code != device.Later && code != statusAsk {
			r.mu.Lock()
			delete(r.byThread, h.Pid)
			r.some.Store(len(r.byThread) > 0)
			r.mu.Unlock()
		}
		return code
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.byThread[h.Pid]; ok && last.node == h.NodeId && time.Since(last.at) < retryTime {
		delete(r.byThread, h.Pid)
		return gofuse.ENOENT
	}
	if r.byThread == nil || len(r.byThread) >= maxRetries {
		r.byThread = map[uint32]refusal{}
	}
	r.byThread[h.Pid] = refusal{h.NodeId, time.Now()}
	r.some.Store(true)
	return code
}

// repeats reports whether a thread repeats a call that got ESTALE for the same node.
func (r *refusals) repeats(tid uint32, node uint64) bool {
	if !r.some.Load() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.byThread[tid]
	return ok && last.node == node && time.Since(last.at) < retryTime
}

// kept is the file that a thread found at its second lookup.
type kept struct {
	tree *tree.Tree
	node *tree.Node // nil: none yet
	rel  string
	fd   int // O_PATH
	at   time.Time
}

const (
	maxRetries = 256
	retryTime  = time.Second // after that a thread uses the path in another call
)

// answered records the answer to an open or to the reading of a link. After the second
// ESTALE the call fails: what is kept must not be used for another call, as the path may
// lead to another file by then.
func (r *retries) answered(tid uint32, code gofuse.Status) {
	if code != gofuse.Status(unix.ESTALE) {
		return
	}
	if !r.end(tid) {
		r.begin(tid)
	}
}

// permission records the answer to a request for attributes. If the thread opens a file,
// the kernel wants them for its check of the mode, and retries the open.
func (r *retries) permission(tid uint32, code gofuse.Status) {
	if code == gofuse.Status(unix.ESTALE) && inOpen(tid) {
		r.answered(tid, code)
	}
}

// inOpen reports whether a thread that waits for an answer is in open(2) or a call like it.
// See proc(5), /proc/pid/syscall. Where Landlock confines the server, that cannot be read,
// and the answer is no.
func inOpen(tid uint32) bool {
	text, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(tid), 10) + "/syscall")
	if err != nil {
		return false
	}
	number, _, _ := strings.Cut(string(text), " ")
	switch n, err := strconv.Atoi(number); {
	case err != nil:
		return false
	case n == unix.SYS_OPENAT || n == unix.SYS_OPENAT2:
		return true
	default:
		return runtime.GOARCH == "amd64" && (n == 2 || n == 85) // open, creat
	}
}

// byPath reports whether a thread that waits for an answer about a node's attributes is in
// a call that takes a path, and that the kernel will repeat after ESTALE. Where the call
// cannot be read, as for [inOpen], the answer is no.
func (r *retries) byPath(tid uint32, n *tree.Node) bool {
	if r.refusals.repeats(tid, n.ID()) {
		return false // the path is that of a descriptor in proc(5)
	}
	text, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(tid), 10) + "/syscall")
	if err != nil {
		return false
	}
	fields := strings.Fields(string(text))
	if len(fields) < 3 {
		return false
	}
	switch n, err := strconv.Atoi(fields[0]); {
	case err != nil:
		return false
	case n == unix.SYS_UTIMENSAT:
		return fields[2] != "0x0" // without a path it is futimens(3)
	default:
		return !slices.Contains([]int{
			unix.SYS_FCHMOD, unix.SYS_FCHOWN, unix.SYS_FTRUNCATE, unix.SYS_FSETXATTR, unix.SYS_FGETXATTR, unix.SYS_FLISTXATTR,
			unix.SYS_FREMOVEXATTR,
		}, n)
	}
}

// inFstat reports whether a thread that waits for an answer is known to be in fstat(2).
func inFstat(tid uint32) bool {
	text, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(tid), 10) + "/syscall")
	return err == nil && strings.HasPrefix(string(text), strconv.Itoa(unix.SYS_FSTAT)+" ")
}

// begin makes the next lookups of a thread keep what they find.
func (r *retries) begin(tid uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byThread == nil {
		r.byThread = map[uint32]*kept{}
	}
	if len(r.byThread) == 0 {
		time.AfterFunc(retryTime, r.expire)
	}
	if r.byThread[tid] != nil || len(r.byThread) < maxRetries {
		r.put(tid, &kept{tree: r.tree, at: time.Now()})
	}
}

// end forgets what is kept for a thread. It reports whether the thread retried a call.
func (r *retries) end(tid uint32) bool {
	if r.some.Load() == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.byThread[tid]
	k.close()
	delete(r.byThread, tid)
	r.some.Store(int32(len(r.byThread)))
	return k != nil
}

// put replaces what is kept for a thread. The caller holds mu.
func (r *retries) put(tid uint32, k *kept) {
	r.byThread[tid].close()
	r.byThread[tid] = k
	r.some.Store(int32(len(r.byThread)))
}

// stat returns the attributes of an entry. For a thread that retries it also returns a
// descriptor of the entry, which the caller closes; otherwise -1.
func (r *retries) stat(tid uint32, p tree.Entry, st *unix.Stat_t) (fd int, err error) {
	if r.some.Load() == 0 || !r.retrying(tid) {
		return -1, p.Stat(st)
	}
	if fd, err = p.Pin(); err != nil {
		return -1, err
	}
	return fd, unix.Fstat(fd, st)
}

func (r *retries) retrying(tid uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byThread[tid] != nil
}

// found keeps the file that a retrying thread has looked up. It takes fd over if that is
// not -1.
func (r *retries) found(tid uint32, n *tree.Node, rel string, fd int) {
	if fd < 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n.Kind() == unix.S_IFDIR || r.byThread[tid] == nil {
		tree.CloseFD(fd)
		return
	}
	r.tree.Open(n)
	r.put(tid, &kept{tree: r.tree, node: n, rel: rel, fd: fd, at: time.Now()})
}

// take returns the file that was kept for a thread if it is that of n, or nil. The caller
// closes it. last says that the call needs no further file.
func (r *retries) take(tid uint32, n *tree.Node, last bool) *kept {
	if r.some.Load() == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.byThread[tid]
	if k == nil || k.node != n || time.Since(k.at) > retryTime {
		return nil
	}
	delete(r.byThread, tid)
	if !last {
		r.byThread[tid] = &kept{tree: r.tree, at: k.at}
	}
	r.some.Store(int32(len(r.byThread)))
	return k
}

// paths is [kept.paths] of what was kept for a thread.
func (r *retries) paths(tid uint32, n *tree.Node, all []string) []string {
	if len(all) > 0 || r.some.Load() == 0 {
		return all
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.byThread[tid]; k != nil && k.node == n {
		return k.paths(all)
	}
	return all
}

// attributes returns in st the attributes of the file that is kept for a thread, if it is
// that of n. The kernel asks for them when it checks the mode at an open.
func (r *retries) attributes(tid uint32, n *tree.Node, st *unix.Stat_t) bool {
	if r.some.Load() == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.byThread[tid]
	return k != nil && k.node == n && unix.Fstat(k.fd, st) == nil && r.tree.Same(n, st)
}

// expire forgets threads whose call has ended in another way.
func (r *retries) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for tid, k := range r.byThread {
		if time.Since(k.at) > retryTime {
			k.close()
			delete(r.byThread, tid)
		}
	}
	r.some.Store(int32(len(r.byThread)))
	if len(r.byThread) > 0 {
		time.AfterFunc(retryTime, r.expire)
	}
}

func (k *kept) close() {
	if k != nil && k.node != nil {
		k.tree.Close(k.node)
		tree.CloseFD(k.fd)
	}
}

// paths returns the paths whose rules apply: all, or if the file has lost its name that by
// which it was looked up. k may be nil.
func (k *kept) paths(all []string) []string {
	if k != nil && len(all) == 0 {
		return []string{k.rel}
	}
	return all
}

// open opens the kept file, which may have lost its name.
func (k *kept) open(flags int, st *unix.Stat_t) (int, error) {
	if err := unix.Fstat(k.fd, st); err != nil {
		return -1, err
	}
	if !k.tree.Same(k.node, st) {
		return -1, unix.ESTALE
	}
	return tree.Reopen(k.fd, flags)
}
