package supervisor

import "testing"

var sink []byte

func TestMemoryIsReturnedOnceAfterABurst(t *testing.T) {
	w := newHeapWatch()
	looks := func() (quiet int) {
		for range 10 {
			if w.quiet() {
				quiet++
			}
		}
		return quiet
	}
	looks() // what the program allocated before
	if n := looks(); n != 0 {
		t.Errorf("without a burst memory is given back %d times", n)
	}
	for range 3 {
		for range 10 {
			for range 100 {
				sink = make([]byte, worthBytes/4)
			}
			if w.quiet() {
				t.Error("memory is given back in a burst")
			}
		}
		if n := looks(); n != 1 {
			t.Errorf("after a burst memory is given back %d times, not once", n)
		}
	}
}
