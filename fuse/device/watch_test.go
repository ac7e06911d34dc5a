package device

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"agentsh/internal/testenv"

	"golang.org/x/sys/unix"
)

func TestAWaitForARequestKeepsNoProcessor(t *testing.T) {
	testenv.GivesProcessorUp(t, func(plain bool) time.Duration {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(pair[1])
		var begun atomic.Bool
		ended := make(chan error)
		go func() {
			w := &worker{buffers: buffers{in: make([]byte, 8)}}
			if plain {
				w.prompt = inTurn
			}
			begun.Store(true)
			_, err := w.read(pair[1])
			ended <- err
		}()
		began := time.Now()
		for !begun.Load() {
			runtime.Gosched()
		}
		took := time.Since(began)
		unix.Close(pair[0])
		must(t, <-ended)
		return took
	})
}

// A worker that has one request after the other keeps its processor between two of them.
func TestRequestsInTurnAreExpected(t *testing.T) {
	var w worker
	for i := range 2 * inTurn {
		if want := min(i, inTurn); w.prompt != want {
			t.Errorf("after %d requests in turn it expects %d", i, w.prompt)
		}
		w.came(atOnce - 1)
	}
	if w.came(atOnce); w.prompt != 0 {
		t.Errorf("after a pause it expects %d", w.prompt)
	}
}

// While no request is answered the watch has nothing to do.
func TestTheWatchSleepsBetweenRequests(t *testing.T) {
	k, _ := playKernel(t)
	k.ask(1, 7)
	k.answered()
	for guard := time.Now().Add(time.Minute); !k.loop.timer.stopped.Load(); runtime.Gosched() {
		if time.Now().After(guard) {
			t.Fatal("it goes on")
		}
	}
	var left unix.ItimerSpec
	must(t, unix.TimerfdGettime(k.loop.timer.fd, &left))
	if left != (unix.ItimerSpec{}) {
		t.Errorf("its timer runs: %+v", left)
	}
}
