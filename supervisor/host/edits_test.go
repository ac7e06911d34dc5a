package host

import (
	"os"
	"strings"
	"testing"

	"agentsh/fuse/watch"
	"agentsh/internal/testenv"
	"agentsh/supervisor/probe"
)

// TestDetectionSaysHowHostEditsAreSeen detects again in processes that lack fanotify, or
// inotify too, and on a filesystem that is not watched.
func TestDetectionSaysHowHostEditsAreSeen(t *testing.T) {
	const limitedEnv = "AGENTSH_TEST_EDITS"
	if want := os.Getenv(limitedEnv); want != "" {
		r := detect(t)
		h := r.HostEdits
		if h.Mechanism != want || h.Why == "" || h.Told || !r.Session.Opens {
			t.Errorf("%+v, session %+v", h, r.Session)
		}
		err := probe.Require([]probe.Setting{{Name: "host_edits", At: "c.yaml:1:1"}}, probe.Session{Governed: true}, nil)
		if err == nil || !strings.Contains(err.Error(), "c.yaml:1:1: require host_edits: not proven here: fanotify") {
			t.Errorf("require: %v", err)
		}
		t.Logf("seen by %s within %v s", h.Mechanism, h.Seconds)
		return
	}
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Landlock)
	t.Chdir(t.TempDir())
	if h := detect(t).HostEdits; h.Mechanism != watch.Fanotify.String() || !h.Told || h.Seconds != 0.1 || h.Why != "" {
		t.Errorf("%+v", h)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		without   []string
		mechanism string
		line      string
	}{
		{[]string{testenv.WithoutFanotify}, "inotify", "seen by inotify within 0.1 s"},
		{[]string{testenv.WithoutFanotify, testenv.WithoutInotify}, "none", "seen by none within 1 s"},
	} {
		cmd := testenv.Without(t, c.without, self, "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), limitedEnv+"="+c.mechanism)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), c.line) {
			t.Errorf("without %v: %v\n%s", c.without, err, out)
		}
	}
	t.Chdir("/proc")
	h := hostEdits(nil, Trial{Opens: true}, 5)
	if h.Mechanism != "none" || h.Seconds != 5 || !strings.Contains(h.Why, "filesystem of type 0x9fa0") {
		t.Errorf("%+v", h)
	}
}

// TestASessionIsRefusedWhereHostEditsAreNotSeen requires what a filesystem cannot do.
func TestASessionIsRefusedWhereHostEditsAreNotSeen(t *testing.T) {
	required := []probe.Setting{{Name: "host_edits", At: "c.yaml:1:1"}}
	err := probe.Require(required, probe.Session{Governed: true, Unwatched: "/net: filesystem of type 0x6969"}, nil)
	if err == nil || !strings.Contains(err.Error(), "c.yaml:1:1: require host_edits: /net: filesystem of type 0x6969") {
		t.Errorf("%v", err)
	}
}
