package fuse

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOneFileHoldsWhatWasWrittenToIt writes, cuts, maps, punches and reads one
// file at random through several descriptors and compares it with memory.
func TestOneFileHoldsWhatWasWrittenToIt(t *testing.T) {
	for seed := range uint64(6) {
		for mode, plain := range map[string]bool{"passthrough": false, "through the server": true} {
			t.Run(fmt.Sprintf("%d %s", seed, mode), func(t *testing.T) {
				s := start(t, options{plain: plain})
				f := &exercised{t: t, name: s.path("f"), rand: rand.New(rand.NewPCG(seed, 2))}
				f.open(unix.O_CREAT | unix.O_EXCL)
				for range 3 {
					f.open(0)
				}
				for i := range 1200 {
					f.step(i)
				}
				for _, fd := range f.fds {
					closeFD(fd)
				}
			})
		}
	}
}

// exercised is a file and what it must hold.
type exercised struct {
	t    *testing.T
	name string
	rand *rand.Rand
	fds  []int
	want []byte
}

const exercisedBytes = 200_000

func (f *exercised) open(flags int) {
	f.t.Helper()
	fd, err := unix.Open(f.name, unix.O_RDWR|unix.O_CLOEXEC|flags, 0o644)
	must(f.t, err)
	f.fds = append(f.fds, fd)
}

func (f *exercised) grow(size int) {
	for len(f.want) < size {
		f.want = append(f.want, make([]byte, size-len(f.want))...)
	}
}

func (f *exercised) step(i int) {
	which := f.rand.IntN(len(f.fds))
	fd, off, n := f.fds[which], f.rand.IntN(exercisedBytes), 1+f.rand.IntN(20_000)
	data := bytes.Repeat([]byte{byte(i)}, n)
	switch f.rand.IntN(8) {
	case 0, 1:
		_, err := unix.Pwrite(fd, data, int64(off))
		must(f.t, err)
		f.grow(off + n)
		copy(f.want[off:], data)
	case 2:
		must(f.t, unix.Ftruncate(fd, int64(off)))
		f.grow(off)
		f.want = f.want[:off:off]
	case 3:
		if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n)); err != nil {
			f.t.Fatal(err)
		}
		if off < len(f.want) {
			clear(f.want[off:min(off+n, len(f.want))])
		}
	case 4:
		f.mapped(fd, data, off)
	case 5:
		closeFD(fd)
		f.fds = append(f.fds[:which], f.fds[which+1:]...)
		f.open(0)
	case 6:
		must(f.t, unix.Fsync(fd))
	}
	got := make([]byte, exercisedBytes+30_000)
	size, err := unix.Pread(f.fds[0], got, 0)
	must(f.t, err)
	if !bytes.Equal(got[:size], f.want) {
		f.t.Fatalf("step %d: the file differs: %d bytes, want %d", i, size, len(f.want))
	}
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
