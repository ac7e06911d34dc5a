package device

import (
	"encoding/binary"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// stub answers GETATTR; of node 2 when it is told to, of node 3 beside the loop.
type stub struct {
	gofuse.RawFileSystem
	loop    *Loop
	release chan struct{}
}

func (s *stub) GetAttr(_ <-chan struct{}, in *gofuse.GetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	switch in.NodeId {
	case 2:
		<-s.release
	case 3:
		s.loop.StepAside()
		<-s.release
	}
	out.Ino = in.NodeId
	return gofuse.OK
}

func (s *stub) Interrupt(uint64) {}

func (s *stub) ReadInto(*gofuse.ReadIn, []byte) (int, func(), gofuse.Status) {
	return 0, nil, gofuse.ENOSYS
}

// kernelSide plays the kernel: a packet is a request or an answer.
type kernelSide struct {
	t    *testing.T
	fd   int
	loop *Loop
}

func playKernel(t *testing.T) (*kernelSide, *stub) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	fs := &stub{RawFileSystem: gofuse.NewDefaultRawFileSystem(), release: make(chan struct{})}
	l := &Loop{
		fd: pair[1], config: Config{Handler: fs, Caching: (&sync.RWMutex{}).RLocker(), Observed: func(*gofuse.InHeader) {}},
		protocol: gofuse.NewProtocolServer(fs, &gofuse.MountOptions{}),
		ended:    make(chan struct{}),
	}
	must(t, l.timer.open())
	fs.loop = l
	w, err := l.newWorker(4096)
	must(t, err)
	l.reader.Store(w)
	go l.Serve()
	k := &kernelSide{t: t, fd: pair[0], loop: l}
	t.Cleanup(func() {
		unix.Close(pair[0]) // the reader gets an empty packet, which is the end here
		<-l.ended
		unix.Close(pair[1])
	})
	return k, fs
}

func (k *kernelSide) ask(unique, node uint64) {
	k.t.Helper()
	const getattr = 3
	in := gofuse.GetAttrIn{
		InHeader: gofuse.InHeader{Length: uint32(unsafe.Sizeof(gofuse.GetAttrIn{})), Opcode: getattr, Unique: unique, NodeId: node},
	}
	_, err := unix.Write(k.fd, unsafe.Slice((*byte)(unsafe.Pointer(&in)), unsafe.Sizeof(in)))
	must(k.t, err)
}

// answered is the number of the request that is answered next.
func (k *kernelSide) answered() uint64 {
	k.t.Helper()
	must(k.t, unix.SetsockoptTimeval(k.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}))
	buf := make([]byte, 4096)
	n, err := Retry(func() (int, error) { return unix.Read(k.fd, buf) })
	must(k.t, err)
	if n < 16 {
		k.t.Fatalf("an answer of %d bytes", n)
	}
	return binary.NativeEndian.Uint64(buf[8:])
}

func TestAWaitingRequestDelaysNoOther(t *testing.T) {
	for name, node := range map[string]uint64{"found by the watch": 2, "says so": 3} {
		t.Run(name, func(t *testing.T) {
			k, fs := playKernel(t)
			for i := range uint64(10) {
				k.ask(100+i, node)
				for j := range uint64(3) {
					k.ask(10*i+j, 7)
					if got := k.answered(); got != 10*i+j {
						t.Fatalf("answer to %d, want %d", got, 10*i+j)
					}
				}
			}
			close(fs.release)
			seen := map[uint64]bool{}
			for range 10 {
				seen[k.answered()] = true
			}
			for i := range uint64(10) {
				if !seen[100+i] {
					t.Errorf("request %d has no answer", 100+i)
				}
			}
			for guard := time.Now().Add(60 * time.Second); k.loop.workers.Load() != 1; {
				if time.Now().After(guard) {
					t.Fatalf("%d workers are left", k.loop.workers.Load())
				}
				k.ask(1, 7) // who is not the reader ends after its answer
				k.answered()
			}
		})
	}
}

// Linux before 5.17 has a shorter first request. See fuse_init_in in
// linux/fuse.h.
func TestTheFirstRequestOfOldKernels(t *testing.T) {
	for _, size := range []int{56, 60, 104} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		const initialize = 26
		in := gofuse.InitIn{
			InHeader: gofuse.InHeader{Length: uint32(size), Opcode: initialize, Unique: 9},
			Major:    7,
			Minor:    32,
			Flags:    gofuse.CAP_ASYNC_READ,
			Flags2:   1,
		}
		_, err = unix.Write(pair[0], unsafe.Slice((*byte)(unsafe.Pointer(&in)), size))
		must(t, err)
		stub := &stub{RawFileSystem: gofuse.NewDefaultRawFileSystem()}
		config := Config{Handler: stub, Caching: (&sync.RWMutex{}).RLocker(), Observed: func(*gofuse.InHeader) {}}
		l, err := New(pair[1], config, &gofuse.MountOptions{MaxWrite: 4096})
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		want := uint64(gofuse.CAP_ASYNC_READ)
		if size > 56 {
			want |= 1 << 32
		}
		if l.offered != want {
			t.Errorf("%d bytes: flags %#x, want %#x", size, l.offered, want)
		}
		if got := (&kernelSide{t: t, fd: pair[0]}).answered(); got != 9 {
			t.Errorf("%d bytes: answer to %d", size, got)
		}
		unix.Close(pair[0])
		unix.Close(pair[1])
		l.timer.file.Close()
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRequestsThatAreNotWhole: none is answered as if it were.
func TestRequestsThatAreNotWhole(t *testing.T) {
	k, _ := playKernel(t)
	const lookup, write = 1, 16
	name := gofuse.InHeader{Opcode: lookup, Unique: 1, NodeId: 7}
	data := gofuse.WriteIn{InHeader: gofuse.InHeader{Opcode: write, Unique: 2, NodeId: 7}, Size: 5}
	for what, packet := range map[string][]byte{
		"a name without end": append(unsafe.Slice((*byte)(unsafe.Pointer(&name)), unsafe.Sizeof(name)), "name"...),
		"missing data":       append(unsafe.Slice((*byte)(unsafe.Pointer(&data)), unsafe.Sizeof(data)), "data"...),
		"half a structure":   unsafe.Slice((*byte)(unsafe.Pointer(&data)), unsafe.Sizeof(data)-8),
	} {
		_, err := unix.Write(k.fd, packet)
		must(t, err)
		buf := make([]byte, 4096)
		n, err := Retry(func() (int, error) { return unix.Read(k.fd, buf) })
		must(t, err)
		out := (*gofuse.OutHeader)(unsafe.Pointer(&buf[0]))
		if n != outHeader || out.Status != -int32(unix.EINVAL) && out.Status != -int32(unix.EIO) {
			t.Errorf("%s: %d bytes, status %d", what, n, out.Status)
		}
	}
}

// TestNoticesAboutManyNodesHaveFewGoroutines: the kernel takes none of them for a while,
// and then each of them once.
func TestNoticesAboutManyNodesHaveFewGoroutines(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	const most = 5000
	l := &Loop{fd: pair[1]}
	before := runtime.NumGoroutine()
	var taken [most]atomic.Int32
	var all sync.WaitGroup
	all.Add(most)
	for id := range uint64(most) {
		l.InodeLater(id, func() {
			taken[id].Add(1)
			all.Done()
		})
	}
	if n := runtime.NumGoroutine() - before; n > maxWorkers {
		t.Errorf("%d goroutines", n)
	}
	received := map[uint64]int{}
	for range most {
		var message struct {
			gofuse.OutHeader
			gofuse.NotifyInvalInodeOut
		}
		n, err := unix.Read(pair[0], unsafe.Slice((*byte)(unsafe.Pointer(&message)), unsafe.Sizeof(message)))
		if err != nil || n != int(unsafe.Sizeof(message)) {
			t.Fatalf("%d bytes: %v", n, err)
		}
		received[message.Ino]++
	}
	all.Wait()
	for id := range uint64(most) {
		if received[id] != 1 || taken[id].Load() != 1 {
			t.Errorf("node %d: %d notices, taken %d times", id, received[id], taken[id].Load())
		}
	}
}

// A call about a node waits until the thread that got the last answer has used it: until
// the thread's next request, or until the time is over.
func TestACallWaitsForItsThread(t *testing.T) {
	var l Loop
	l.soon.calls, l.soon.threads = map[uint64]soonCall{}, map[uint32][]uint64{} // as while the timer runs
	var called []string
	note := func(what string) func() { return func() { called = append(called, what) } }
	l.Soon(1, 7, note("older answer"))
	l.Soon(1, 8, note("answer"))
	l.Soon(2, 8, note("other node"))
	l.Soon(3, 0, note("unknown thread"))
	request := func(thread, opcode uint32) {
		l.callUsed(&gofuse.InHeader{Opcode: opcode, Caller: gofuse.Caller{Pid: thread}})
	}
	const opGetAttr = 3
	request(7, opGetAttr)
	request(0, opGetAttr)
	request(9, opGetAttr)
	request(8, OpRead)
	if len(called) != 0 {
		t.Errorf("another thread's request called %v", called)
	}
	request(8, opGetAttr)
	request(8, opGetAttr)
	if want := []string{"answer", "other node"}; !slices.Equal(called, want) {
		t.Errorf("called %v, want %v", called, want)
	}
	l.callSoon()
	if last := len(called) - 1; last != 2 || called[last] != "unknown thread" || l.soon.waiting.Load() != 0 {
		t.Errorf("called %v in the end, %d wait still", called, l.soon.waiting.Load())
	}
}
