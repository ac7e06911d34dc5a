package locks

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

func TestMain(m *testing.M) {
	if err := Prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// room is a table with a file to lock.
type room struct {
	t      *testing.T
	table  *Table
	path   string
	unique atomic.Uint64
	faults atomic.Int32
}

func newRoom(t *testing.T) *room {
	r := &room{t: t, path: filepath.Join(t.TempDir(), "f")}
	must(t, os.WriteFile(r.path, nil, 0o644))
	r.table = New(NewWaits(), func(string) { r.faults.Add(1) })
	return r
}

// open opens the file and returns it as a handle.
func (r *room) open(access int) File {
	r.t.Helper()
	fd, err := unix.Open(r.path, access|unix.O_CLOEXEC, 0)
	must(r.t, err)
	r.t.Cleanup(func() { _ = unix.Close(fd) })
	return File{Handle: r.unique.Add(1), FD: fd, Access: access}
}

func (r *room) request(f File, owner uint64, typ int16, start, end int64) Request {
	return Request{File: f, Unique: r.unique.Add(1), Owner: owner, Type: typ, Start: start, End: end, PID: uint32(owner)}
}

func (r *room) set(f File, owner uint64, typ int16, start, end int64) unix.Errno {
	return r.table.Set(r.request(f, owner, typ, start, end))
}

func (r *room) want(what string, got, want unix.Errno) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s: %d %v, want %d %v", what, got, got, want, want)
	}
}

// wait asks for a lock that has to wait.
func (r *room) wait(q Request) chan unix.Errno {
	r.t.Helper()
	answer := make(chan unix.Errno, 1)
	if err, later := r.table.Wait(q, func(err unix.Errno) { answer <- err }); !later {
		answer <- err
	}
	return answer
}

// outside reports whether another process of the host could take the lock.
func (r *room) outside(typ int16, start, end int64) bool {
	r.t.Helper()
	fd, err := unix.Open(r.path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(r.t, err)
	defer unix.Close(fd)
	q := Request{Type: typ, Start: start, End: end}
	must(r.t, errOf(fcntl(fd, unix.F_OFD_GETLK, &q)))
	return q.Type == unix.F_UNLCK
}

func errOf(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *room) empty() {
	r.t.Helper()
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	if len(r.table.files)+len(r.table.waiting)+r.table.ranges != 0 || r.table.inUse.Load() != 0 {
		r.t.Errorf("%d files, %d waits, %d ranges, %d owners are left",
			len(r.table.files), len(r.table.waiting), r.table.ranges, r.table.inUse.Load())
	}
}

func TestOwnersExcludeEachOther(t *testing.T) {
	r := newRoom(t)
	f := r.open(unix.O_RDWR)
	r.want("first", r.set(f, 1, unix.F_WRLCK, 0, 9), 0)
	r.want("the same owner again", r.set(f, 1, unix.F_RDLCK, 0, 4), 0)
	r.want("another owner through the same handle", r.set(f, 2, unix.F_WRLCK, 9, 9), unix.EAGAIN)
	r.want("beside it", r.set(f, 2, unix.F_WRLCK, 10, ToEnd), 0)
	r.want("both read", r.set(f, 3, unix.F_RDLCK, 0, 4), 0)
	if r.outside(unix.F_WRLCK, 4, 4) || r.outside(unix.F_RDLCK, 9, 9) ||
		!r.outside(unix.F_RDLCK, 0, 4) || r.outside(unix.F_RDLCK, 1<<40, 1<<40) {
		t.Error("the backing has other locks")
	}
	got, err := r.table.Get(r.request(f, 4, unix.F_WRLCK, 7, 20))
	if err != 0 || got.Type != unix.F_WRLCK || got.Start != 5 || got.End != 9 || got.PID != 1 {
		t.Errorf("conflict %+v, %v", got, err)
	}
	r.table.Flush(f.FD, 1)
	r.table.Flush(f.FD, 3)
	if !r.outside(unix.F_WRLCK, 0, 9) || r.outside(unix.F_WRLCK, 10, 10) {
		t.Error("a flush releases the locks of its owner")
	}
	r.table.Release(f.FD, f.Handle)
	if !r.outside(unix.F_WRLCK, 0, ToEnd) {
		t.Error("the last close releases all")
	}
	r.empty()
}

func TestAReadersDescriptorGrowsWithItsOwner(t *testing.T) {
	r := newRoom(t)
	reads, both := r.open(unix.O_RDONLY), r.open(unix.O_RDWR)
	r.want("read", r.set(reads, 1, unix.F_RDLCK, 0, 9), 0)
	r.want("write", r.set(both, 1, unix.F_WRLCK, 5, 5), 0)
	if r.outside(unix.F_WRLCK, 0, 0) || r.outside(unix.F_RDLCK, 5, 5) {
		t.Error("a lock was lost")
	}
	r.want("unlock", r.set(reads, 1, unix.F_UNLCK, 0, ToEnd), 0)
	if !r.outside(unix.F_WRLCK, 0, ToEnd) {
		t.Error("a lock stays")
	}
	r.table.Flush(both.FD, 1)
	r.empty()
}

func TestALockTakenThroughOneHandleOutlivesAnother(t *testing.T) {
	r := newRoom(t)
	a, b := r.open(unix.O_RDWR), r.open(unix.O_RDWR)
	r.want("a", r.set(a, 1, unix.F_WRLCK, 0, 0), 0)
	r.want("b", r.set(b, 1, unix.F_WRLCK, 1, 1), 0)
	r.table.Release(a.FD, a.Handle)
	if !r.outside(unix.F_WRLCK, 0, 0) || r.outside(unix.F_WRLCK, 1, 1) {
		t.Error("closing a handle releases what was locked through it")
	}
	r.table.Release(b.FD, b.Handle)
	r.empty()
}

func TestAWaitEndsWithTheLockOrAnInterrupt(t *testing.T) {
	r := newRoom(t)
	f, g := r.open(unix.O_RDWR), r.open(unix.O_RDWR)
	r.want("hold", r.set(f, 1, unix.F_WRLCK, 0, ToEnd), 0)
	q := r.request(g, 2, unix.F_WRLCK, 0, 0)
	first := r.wait(q)
	r.table.Interrupt(q.Unique)
	r.want("interrupted", <-first, unix.EINTR)
	second := r.wait(r.request(g, 2, unix.F_WRLCK, 0, 0))
	r.want("unlock", r.set(f, 1, unix.F_UNLCK, 0, ToEnd), 0)
	r.want("granted", <-second, 0)
	early := r.request(f, 1, unix.F_WRLCK, 0, 0)
	r.table.Interrupt(early.Unique)
	r.want("interrupted before it waited", <-r.wait(early), unix.EINTR)
	r.table.Flush(f.FD, 1)
	r.table.Flush(g.FD, 2)
	r.empty()
}

func TestAFlockWaits(t *testing.T) {
	r := newRoom(t)
	f, g := r.open(unix.O_RDONLY), r.open(unix.O_RDONLY)
	lock := func(f File, typ int16) Request {
		q := r.request(f, f.Handle, typ, 0, ToEnd)
		q.Flock = true
		return q
	}
	r.want("hold", r.table.Set(lock(f, unix.F_WRLCK)), 0)
	r.want("try", r.table.Set(lock(g, unix.F_RDLCK)), unix.EAGAIN)
	q := lock(g, unix.F_RDLCK)
	answer := r.wait(q)
	r.table.Interrupt(q.Unique)
	r.want("interrupted", <-answer, unix.EINTR)
	answer = r.wait(lock(g, unix.F_WRLCK))
	r.want("unlock", r.table.Set(lock(f, unix.F_UNLCK)), 0)
	r.want("granted", <-answer, 0)
	r.table.Release(f.FD, f.Handle)
	r.want("its handle is closed", r.table.Set(lock(f, unix.F_RDLCK)), unix.EAGAIN)
	r.table.Release(g.FD, g.Handle)
	r.want("after the other's close", r.table.Set(lock(f, unix.F_RDLCK)), 0)
	r.table.Release(f.FD, f.Handle)
	r.empty()
}

func TestACircleOfOwnersIsADeadlock(t *testing.T) {
	r := newRoom(t)
	f := r.open(unix.O_RDWR)
	const owners = 5
	for o := uint64(1); o <= owners; o++ {
		r.want("hold", r.set(f, o, unix.F_WRLCK, int64(o), int64(o)), 0)
	}
	var waits []chan unix.Errno
	for o := uint64(1); o < owners; o++ {
		waits = append(waits, r.wait(r.request(f, o, unix.F_WRLCK, int64(o+1), int64(o+1))))
	}
	r.want("the last", <-r.wait(r.request(f, owners, unix.F_RDLCK, 1, 1)), unix.EDEADLK)
	for o := uint64(owners); o >= 1; o-- {
		r.table.Flush(f.FD, o)
		if o > 1 {
			r.want("granted", <-waits[o-2], 0)
		}
	}
	r.empty()
}

func TestTooManyWaitsAreRefused(t *testing.T) {
	r := newRoom(t)
	f := r.open(unix.O_RDWR)
	r.want("hold", r.set(f, 1, unix.F_WRLCK, 0, ToEnd), 0)
	most := r.table.waits.most
	answers := make(chan unix.Errno, most)
	for o := range uint64(most) {
		q := r.request(f, o+2, unix.F_RDLCK, 0, 0)
		if err, later := r.table.Wait(q, func(err unix.Errno) { answers <- err }); !later {
			t.Fatalf("wait %d: %v", o, err)
		}
	}
	r.want("one more", <-r.wait(r.request(f, 1<<40, unix.F_RDLCK, 0, 0)), unix.ENOLCK)
	beside := newRoom(t)
	beside.table.waits = r.table.waits
	g := beside.open(unix.O_RDWR)
	beside.want("hold beside", beside.set(g, 1, unix.F_WRLCK, 0, ToEnd), 0)
	beside.want("one more, of another mount", <-beside.wait(beside.request(g, 2, unix.F_RDLCK, 0, 0)), unix.ENOLCK)
	beside.table.Flush(g.FD, 1)
	beside.empty()
	if r.faults.Load() != 1 {
		t.Errorf("%d faults", r.faults.Load())
	}
	r.table.Flush(f.FD, 1)
	for range most {
		r.want("granted", <-answers, 0)
	}
	r.table.Release(f.FD, f.Handle)
	r.empty()
}

func TestManyRangesAreHeld(t *testing.T) {
	r := newRoom(t)
	var h held
	const n = 10_000
	for _, i := range rand.New(rand.NewSource(1)).Perm(n) {
		h.set(span{start: int64(2 * i), end: int64(2 * i), typ: unix.F_WRLCK})
	}
	if len(h) != n {
		t.Errorf("%d ranges", len(h))
	}
	f := r.open(unix.O_RDWR)
	for i := range int64(2000) {
		r.want("lock", r.set(f, 1, unix.F_WRLCK, 2*i, 2*i), 0)
	}
	r.table.Flush(f.FD, 1)
	r.empty()
}

// TestRangesAreSplitAndMerged compares what is held with one entry for each byte.
func TestRangesAreSplitAndMerged(t *testing.T) {
	random := rand.New(rand.NewSource(2))
	for range 200 {
		var h held
		var model [64]int16
		count := 0
		for i := range model {
			model[i] = unix.F_UNLCK
		}
		for range 60 {
			start := random.Intn(64)
			s := span{start: int64(start), end: int64(start + random.Intn(64-start)), typ: int16(random.Intn(3))}
			count += h.set(s)
			for i := s.start; i <= s.end; i++ {
				model[i] = s.typ
			}
			for i, want := range model {
				got := int16(unix.F_UNLCK)
				if at := h.within(int64(i), int64(i)); len(at) > 0 {
					got = at[0].typ
				}
				if got != want {
					t.Fatalf("byte %d has %d, want %d: %v", i, got, want, h)
				}
			}
			for i := 1; i < len(h); i++ {
				if a, b := h[i-1], h[i]; a.end >= b.start || a.end+1 == b.start && a.same(b) {
					t.Fatalf("%v and %v", a, b)
				}
			}
			if count != len(h) {
				t.Fatalf("counted %d, have %d", count, len(h))
			}
		}
	}
}

// TestAStormOfLocks: a counter that only locks protect loses nothing, while waits are
// interrupted all the time.
func TestAStormOfLocks(t *testing.T) {
	r := newRoom(t)
	shared := r.open(unix.O_RDWR)
	counter, done := 0, 0
	var all sync.WaitGroup
	for o := range uint64(8) {
		f := shared
		if o%2 == 1 {
			f = r.open(unix.O_RDWR)
		}
		random := rand.New(rand.NewSource(int64(o)))
		interrupt := make([]bool, 40)
		for i := range interrupt {
			interrupt[i] = random.Intn(4) == 0
		}
		all.Go(func() {
			for _, hit := range interrupt {
				q := r.request(f, o+1, unix.F_WRLCK, 0, 0)
				answer := make(chan unix.Errno, 1)
				err, later := r.table.Wait(q, func(err unix.Errno) { answer <- err })
				if later {
					if hit {
						r.table.Interrupt(q.Unique)
					}
					select {
					case err = <-answer:
					case <-time.After(60 * time.Second):
						t.Error("a wait does not end")
						return
					}
				}
				if err == unix.EINTR && hit {
					continue
				}
				if err != 0 {
					t.Errorf("lock: %v", err)
					return
				}
				counter++
				done++
				if err := r.set(f, o+1, unix.F_UNLCK, 0, 0); err != 0 {
					t.Errorf("unlock: %v", err)
				}
			}
		})
	}
	all.Wait()
	if counter != done {
		t.Errorf("%d of %d", counter, done)
	}
	for o := range uint64(8) {
		r.table.Flush(shared.FD, o+1)
	}
	r.empty()
}

// A file that its owner may not open again has one open file description for all who got its
// descriptor. Each sees the locks of the others all the same.
func TestLocksOfAFileThatCannotBeOpenedAgainAreSeen(t *testing.T) {
	testenv.Need(t, testenv.Root) // to become somebody else
	r := newRoom(t)
	f := r.open(unix.O_RDWR)
	must(t, os.Chmod(r.path, 0))
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // it ends with the goroutine
		if err := unix.Setfsuid(60700); err != nil {
			t.Error(err)
			return
		}
		r.want("lock", r.set(f, 1, unix.F_WRLCK, 10, 19), 0)
		for _, c := range []struct {
			owner      uint64
			start, end int64
			want       int16
		}{{2, 0, 30, unix.F_WRLCK}, {2, 0, 9, unix.F_UNLCK}, {1, 0, 30, unix.F_UNLCK}} {
			found, err := r.table.Get(r.request(f, c.owner, unix.F_WRLCK, c.start, c.end))
			r.want("look", err, 0)
			if found.Type != c.want || c.want == unix.F_WRLCK && (found.PID != 1 || found.Start != 10 || found.End != 19) {
				t.Errorf("%+v: %+v", c, found)
			}
		}
	}()
	<-done
}
