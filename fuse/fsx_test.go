package fuse

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// fsxSteps is how many operations one seed does; FSX_STEPS sets another number
// ("make fsx").
func fsxSteps(t *testing.T) int {
	text := os.Getenv("FSX_STEPS")
	if text == "" {
		return 3000
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// TestOneFileHoldsWhatWasWrittenToIt writes, cuts, grows, maps, punches, copies
// and reads one file at random through several descriptors and compares it with
// memory.
func TestOneFileHoldsWhatWasWrittenToIt(t *testing.T) {
	steps := fsxSteps(t)
	for seed := range uint64(8) {
		mode, plain := "passthrough", false
		if seed%2 == 1 {
			mode, plain = "through the server", true
		}
		t.Run(fmt.Sprintf("%d %s", seed, mode), func(t *testing.T) {
			s := start(t, options{plain: plain})
			f := &exercised{t: t, name: s.path("f"), rand: rand.New(rand.NewPCG(seed, 2))}
			f.open(unix.O_CREAT | unix.O_EXCL)
			for range 3 {
				f.open(0)
			}
			for i := range steps {
				f.step(i)
				if i%500 == 499 {
					f.compare(i)
				}
			}
			f.compare(steps)
			for _, fd := range f.fds {
				closeFD(fd)
			}
			if got, err := os.ReadFile(s.back("f")); err != nil || !bytes.Equal(got, f.want) {
				t.Errorf("the backing differs, %v", err)
			}
		})
	}
}

// exercised is a file and what it must hold.
type exercised struct {
	t    *testing.T
	name string
	rand *rand.Rand
	fds  []int
	want []byte
	buf  [exercisedBytes + 30_000]byte
}

const exercisedBytes = 200_000

func (f *exercised) open(flags int) {
	f.t.Helper()
	fd, err := unix.Open(f.name, unix.O_RDWR|unix.O_CLOEXEC|flags, 0o644)
	must(f.t, err)
	f.fds = append(f.fds, fd)
}

func (f *exercised) grow(size int) {
	if size > len(f.want) {
		f.want = append(f.want, make([]byte, size-len(f.want))...)
	}
}

// put is a write as memory does it.
func (f *exercised) put(off int, data []byte) {
	f.grow(off + len(data))
	copy(f.want[off:], data)
}

// step does one operation and looks at what it touched.
func (f *exercised) step(i int) {
	which := f.rand.IntN(len(f.fds))
	fd, off, n := f.fds[which], f.rand.IntN(exercisedBytes), 1+f.rand.IntN(20_000)
	switch f.rand.IntN(16) {
	case 0, 1, 2:
		data := bytes.Repeat([]byte{byte(i)}, n)
		_, err := unix.Pwrite(fd, data, int64(off))
		must(f.t, err)
		f.put(off, data)
	case 3:
		must(f.t, unix.Ftruncate(fd, int64(off)))
		f.grow(off)
		f.want = f.want[:off:off]
	case 4:
		must(f.t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n)))
		if off < len(f.want) {
			clear(f.want[off:min(off+n, len(f.want))])
		}
	case 5:
		must(f.t, unix.Fallocate(fd, 0, int64(off), int64(n)))
		f.grow(off + n)
	case 6, 7:
		f.mapped(fd, bytes.Repeat([]byte{byte(i)}, n), off)
	case 8:
		closeFD(fd)
		f.fds = append(f.fds[:which], f.fds[which+1:]...)
		f.open(0)
	case 9:
		must(f.t, unix.Fsync(fd))
	case 10:
		f.copied(fd, off, n)
	default:
		f.check(i, fd, off, n)
		return
	}
	f.check(i, f.fds[0], off, n)
}

// check reads a part and compares it.
func (f *exercised) check(i, fd, off, n int) {
	f.t.Helper()
	size, err := unix.Pread(fd, f.buf[:n], int64(off))
	must(f.t, err)
	var want []byte
	if off < len(f.want) {
		want = f.want[off:min(off+n, len(f.want))]
	}
	if !bytes.Equal(f.buf[:size], want) {
		f.t.Fatalf("step %d: %d bytes at %d differ from %d that were written", i, size, off, len(want))
	}
}

// compare reads everything.
func (f *exercised) compare(i int) {
	f.t.Helper()
	f.check(i, f.fds[0], 0, len(f.buf))
}

func (f *exercised) mapped(fd int, data []byte, off int) {
	if len(f.want) == 0 {
		return
	}
	mem, err := unix.Mmap(fd, 0, len(f.want), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(f.t, err)
	off %= len(f.want)
	copy(mem[off:], data)
	copy(f.want[off:], data)
	must(f.t, unix.Munmap(mem))
}

// copied copies one part of the file over another that does not overlap it.
func (f *exercised) copied(fd, off, n int) {
	to := int64(off)
	from := int64(f.rand.IntN(exercisedBytes))
	if from >= int64(len(f.want)) || max(from, to)-min(from, to) < int64(n) {
		return
	}
	data := bytes.Clone(f.want[from:min(int(from)+n, len(f.want))])
	size, err := unix.CopyFileRange(fd, &from, f.fds[0], &to, len(data), 0)
	must(f.t, err)
	f.put(off, data[:size])
}
