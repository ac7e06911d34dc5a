// Package device serves one FUSE mount through its descriptor of /dev/fuse. It reads
// requests, calls a [Handler] and writes the answers. It sends invalidations to the
// kernel. It registers files for passthrough, in which the kernel reads and writes
// them itself.
//
// [Loop] has the workers (loop.go). The frequent requests are decoded here
// (requests.go). All others go through go-fuse. The package knows no paths and no
// rules.
package device

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Limits of a loop.
const (
	maxWorkers   = 256                  // requests that wait at one time; further requests stay in the kernel
	keptBuffers  = 4                    // pairs of buffers that are stored for the next worker
	watchPeriod  = 2 * time.Millisecond // after that time another worker takes over the reading
	messageSpace = 4096                 // headers beside the data of a request or an answer
)

// Loop reads and answers the kernel's requests of one mount. One worker reads at a
// time and also answers. So the kernel always wakes the same thread. Another worker
// starts to read if the present one is about to block, or if the watch finds it
// blocked. The blocked worker ends after its answer.
type Loop struct {
	fd       int
	config   Config
	protocol *gofuse.ProtocolServer // decodes requests that are not in quickOps
	offered  uint64                 // capabilities that the kernel offered
	notices  bool                   // the kernel takes notices

	reader  atomic.Pointer[worker]
	workers atomic.Int32
	timer   timer

	mu   sync.Mutex
	free []buffers

	later later // notices that may wait
	soon  soon  // notices that follow answers

	ended chan struct{} // closed when no worker reads any more
	end   sync.Once
}

// buffers contain a request and its answer, at most 1 MiB of data each. They are
// mapped memory: pages that no request has used take no memory.
type buffers struct{ in, out []byte }

// worker answers requests, one at a time.
type worker struct {
	buffers
	msg      message       // the present request if it is one of quickOps
	prompt   int           // requests in turn that came at once
	requests atomic.Uint64 // odd while the worker answers a request
}

// Handler answers requests. It is a file system of go-fuse with two more methods.
type Handler interface {
	gofuse.RawFileSystem
	// ReadInto reads into a given buffer. sent is called after the answer was sent, if it
	// is not nil.
	ReadInto(in *gofuse.ReadIn, buf []byte) (size int, sent func(), code gofuse.Status)
	// Interrupt ends the wait of a request, which then answers EINTR. It has no effect
	// on a request that does not wait for a lock.
	Interrupt(unique uint64)
}

// Config has the functions that a loop calls.
type Config struct {
	Handler Handler
	// Caching is locked while a request whose answer the kernel caches is answered.
	Caching sync.Locker
	// Observed is called before the answer to a request that shows what is in the backing.
	Observed func(h *gofuse.InHeader)
	// Fault reports a request that could not be decoded.
	Fault func(message string)
	// Panicked returns the answer to a request during which the handler panicked.
	Panicked func(cause any) gofuse.Status
}

// New takes over the FUSE descriptor and answers the kernel's first request. On an
// error the caller must still close the descriptor.
func New(fd int, config Config, opts *gofuse.MountOptions) (*Loop, error) {
	l := &Loop{
		fd:       fd,
		config:   config,
		protocol: gofuse.NewProtocolServer(config.Handler, opts),
		ended:    make(chan struct{}),
	}
	w, err := l.newWorker(opts.MaxWrite)
	if err != nil {
		return nil, err
	}
	n, err := Retry(func() (int, error) { return unix.Read(l.fd, w.in) })
	if err != nil {
		return nil, fmt.Errorf("read the first request: %w", err)
	}
	first := (*gofuse.InitIn)(unsafe.Pointer(&w.in[0]))
	if n < int(unsafe.Offsetof(first.Flags2)) { // the field is zero before Linux 5.17
		return nil, fmt.Errorf("the first request has %d bytes", n)
	}
	l.offered = first.Flags64()
	if err := l.answer(w, n); err != nil {
		return nil, fmt.Errorf("answer the first request: %w", err)
	}
	if err := l.timer.open(); err != nil {
		return nil, err
	}
	l.notices = l.tryNotice()
	l.reader.Store(w)
	return l, nil
}

func (l *Loop) newWorker(maxWrite int) (*worker, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &worker{}
	if n := len(l.free); n > 0 {
		w.buffers, l.free = l.free[n-1], l.free[:n-1]
		return w, nil
	}
	var err error
	for _, b := range []*[]byte{&w.in, &w.out} {
		if *b, err = unix.Mmap(-1, 0, maxWrite+messageSpace, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
			return nil, fmt.Errorf("buffers of a worker: %w", err)
		}
	}
	return w, nil
}

// Serve reads and answers requests until the mount has ended.
func (l *Loop) Serve() {
	w := l.reader.Load()
	l.workers.Add(1)
	go l.watch() // ends with the loop
	l.work(w)
	<-l.ended
}

// work reads and answers until another worker has taken over.
func (l *Loop) work(w *worker) {
	defer l.drop(w)
	for l.reader.Load() == w {
		n, err := w.read(l.fd)
		switch {
		case err == nil && n >= int(unsafe.Sizeof(gofuse.InHeader{})):
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOENT): // ENOENT: the request was aborted
			continue
		default: // ENODEV: the mount has ended
			l.end.Do(func() {
				close(l.ended)
				l.timer.start() // the watch ends
			})
			return
		}
		w.requests.Add(1)
		if l.timer.stopped.Load() && l.timer.stopped.CompareAndSwap(true, false) {
			l.timer.start()
		}
		l.callUsed((*gofuse.InHeader)(unsafe.Pointer(&w.in[0])))
		_ = l.answer(w, n) // ENOENT: the caller has ended; ENODEV: the next read returns it too
		w.requests.Add(1)
	}
}

// answer handles the request of n bytes in w.
func (l *Loop) answer(w *worker, n int) error {
	if cached((*gofuse.InHeader)(unsafe.Pointer(&w.in[0])).Opcode) {
		l.config.Caching.Lock()
		defer l.config.Caching.Unlock()
	}
	size, quick := l.quick(w, n)
	if !quick {
		var code gofuse.Status
		if size, code = l.protocol.HandleRequest([][]byte{w.in[:n]}, [][]byte{w.out}); !code.Ok() {
			l.config.Fault(fmt.Sprintf("a request of %d bytes: %v", n, code))
			size = l.refusal(w)
		}
	}
	if size == 0 {
		return nil
	}
	if in := (*gofuse.InHeader)(unsafe.Pointer(&w.in[0])); observes(in.Opcode) && (!quick || in.Opcode != opGetXAttr) {
		l.config.Observed(in)
	}
	_, err := unix.Write(l.fd, w.out[:size])
	if quick && w.msg.sent != nil {
		w.msg.sent()
	}
	return err
}

// refusal answers a request that could not be decoded.
func (l *Loop) refusal(w *worker) int {
	in, out := (*gofuse.InHeader)(unsafe.Pointer(&w.in[0])), (*gofuse.OutHeader)(unsafe.Pointer(&w.out[0]))
	*out = gofuse.OutHeader{Length: uint32(unsafe.Sizeof(*out)), Status: -int32(unix.EIO), Unique: in.Unique}
	return int(out.Length)
}

// StepAside lets another worker read while the present one blocks. A handler calls it
// before an operation that may take long.
func (l *Loop) StepAside() { l.replace(l.reader.Load()) }

// replace starts another worker as the reader instead of w. w ends after its answer.
func (l *Loop) replace(w *worker) {
	if l.workers.Load() >= maxWorkers {
		return
	}
	next, err := l.newWorker(len(w.in) - messageSpace)
	if err != nil {
		return // w continues to read after its answer
	}
	l.workers.Add(1)
	if !l.reader.CompareAndSwap(w, next) {
		l.drop(next)
		return
	}
	go l.work(next) // ends with the mount or the process
}

// drop frees or stores the buffers of a worker that ends.
func (l *Loop) drop(w *worker) {
	l.workers.Add(-1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.free) < keptBuffers {
		l.free = append(l.free, w.buffers)
		return
	}
	_ = unix.Munmap(w.in) // made by newWorker
	_ = unix.Munmap(w.out)
}

// Answer answers a request for which the handler returned [Later].
func (l *Loop) Answer(unique uint64, code gofuse.Status) {
	l.config.Observed(&gofuse.InHeader{Opcode: opSetLkw})
	head := gofuse.OutHeader{Length: uint32(outHeader), Status: -int32(code), Unique: unique}
	_, _ = unix.Write(l.fd, unsafe.Slice((*byte)(unsafe.Pointer(&head)), outHeader)) // ENOENT and ENODEV: nobody waits for it
}

// Calls of the FUSE device. See FUSE_DEV_IOC_BACKING_OPEN and _CLOSE in
// uapi/linux/fuse.h.
const (
	backingOpen  = 0x4010e501
	backingClose = 0x4004e502
)

// OpenBacking registers a file for passthrough: the kernel then reads and writes it
// itself. It returns the kernel's number for the file.
func (l *Loop) OpenBacking(fd int) (int32, unix.Errno) {
	b := gofuse.BackingMap{Fd: int32(fd)}
	id, _, err := unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), backingOpen, uintptr(unsafe.Pointer(&b)))
	return int32(id), err
}

// CloseBacking ends the registration. It fails only if the mount has ended.
func (l *Loop) CloseBacking(id int32) {
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), backingClose, uintptr(unsafe.Pointer(&id)))
}

// cached reports whether the kernel caches the answers to a request. See fuse_opcode
// in uapi/linux/fuse.h.
func cached(opcode uint32) bool {
	const lookup, getattr, readlink, readdir, readdirplus = 1, 3, 5, 28, 44
	switch opcode {
	case lookup, getattr, readlink, readdir, readdirplus:
		return true
	}
	return false
}

// Opcodes of the kernel. See fuse_opcode in uapi/linux/fuse.h.
const (
	OpOpen     = 14
	OpRead     = 15
	opGetXAttr = 22 // a quick answer has nothing of the backing
	opSetLkw   = 33
	opHighest  = 63
)

// observes reports whether the answer to a request shows what is in the backing, or that
// somebody released a lock. READLINK does not: the text of a link never changes. While it
// waits, the kernel holds the page that [Loop.NotifyInode] drops.
func observes(opcode uint32) bool {
	const (
		names      = 1<<1 | 1<<6 | 1<<8 | 1<<9 | 1<<10 | 1<<11 | 1<<12 | 1<<13 | 1<<35 | 1<<45 // LOOKUP, and what makes, moves and removes
		content    = 1<<OpOpen | 1<<OpRead | 1<<47                                             // OPEN, READ, COPY_FILE_RANGE
		attributes = 1<<3 | 1<<4 | 1<<21 | 1<<22 | 1<<23 | 1<<24 | 1<<52                       // those of stat, and extended ones
		listings   = 1<<27 | 1<<28 | 1<<44                                                     // OPENDIR, READDIR, READDIRPLUS
		locks      = 1<<31 | 1<<32 | 1<<opSetLkw
	)
	return opcode <= opHighest && (names|content|attributes|listings|locks)>>opcode&1 != 0
}

// Passthrough reports whether the kernel supports passthrough.
func (l *Loop) Passthrough() bool { return l.offered&gofuse.CAP_PASSTHROUGH != 0 }

// MapsDirect reports whether the kernel maps files that were opened with FOPEN_DIRECT_IO
// (since Linux 6.6).
func (l *Loop) MapsDirect() bool { return l.offered&gofuse.CAP_DIRECT_IO_ALLOW_MMAP != 0 }

// Retry repeats a system call that a signal interrupted.
func Retry(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
