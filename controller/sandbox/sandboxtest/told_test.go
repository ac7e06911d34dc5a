package sandboxtest

import (
	"fmt"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

// TestTheReasonOfAFailedStartOutlivesItsStreams cuts many streams one after the other just before the supervisor has said all why it
// fails.
func TestTheReasonOfAFailedStartOutlivesItsStreams(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	p := pipePlace{dir: t.TempDir(), program: testenv.Agentsh(t)}
	fails := func(id string, faults ...fault) *faulty {
		wrong := spec(id)
		wrong.Policy[0].Data = []byte("version: 1\nname: x\nrules: []\n")
		b, f := p.backend(t, faults...)
		box, err := b.Create(t.Context(), wrong)
		if err == nil {
			_, err = box.Ready(t.Context())
			if failed := box.Delete(t.Context()); failed != nil {
				t.Error(failed)
			}
		}
		if err == nil || !strings.Contains(err.Error(), "sandboxtest.yaml:3:1") || strings.Contains(err.Error(), "hint") {
			t.Errorf("%v: %v", faults, err)
		}
		p.nothingLeft(t)
		return f
	}
	fails("whole-0") // and the place has the program
	f := fails("whole-1")
	if f.opened != 1 {
		t.Errorf("%d streams without a fault", f.opened)
	}
	for _, before := range []int64{1, 10, 30} {
		var cuts []fault
		for range 6 {
			cuts = append(cuts, fault{faultCut, f.passed[1] - before, true})
		}
		if f := fails(fmt.Sprint("cut-", before), cuts...); f.opened < 7 {
			t.Errorf("%d bytes before the end: %d streams", before, f.opened)
		}
	}
}
