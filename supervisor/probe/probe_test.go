package probe

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/probe/trial"
)

func TestMain(m *testing.M) {
	if os.Args[0] == ProcessName {
		if err := Serve(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[0], err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestATrialWhoseProcessDiesIsAnError(t *testing.T) {
	if _, err := try("no such trial", environment{}); err == nil || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("%v", err)
	}
	if _, err := try(trial.Nothing, environment{namespaces: unix.CLONE_NEWNS}); err != nil && os.Geteuid() == 0 {
		t.Errorf("%v", err)
	}
}

// In gVisor the tracer would wait for a minute.
func TestTheFirstThreadOfAProcessMakesNoTracedCalls(t *testing.T) {
	for range 5 {
		p, a, err := startRequest(request{Trial: trialCallsParent}, environment{})
		if err != nil {
			t.Fatal(err)
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.PID))
		p.close()
		if err != nil || strings.Contains(string(status), fmt.Sprintf("\nTgid:\t%d\n", a.PID)) {
			t.Fatalf("thread %d makes the calls, %v:\n%s", a.PID, err, status)
		}
	}
}

func TestEveryRequirementCanBeTried(t *testing.T) {
	for name, r := range requirements {
		for _, primitive := range r.primitives {
			if !Known(primitive) {
				t.Errorf("%s asks for %s, which nothing tries", name, primitive)
			}
		}
	}
}

func TestEveryMechanismCanBeTried(t *testing.T) {
	for name, f := range fallbacks {
		for _, primitive := range f.primitives {
			if err := Try(primitive); errors.Is(err, trial.ErrUnknown) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestAnUnknownMechanismIsRefused(t *testing.T) {
	_, err := Survey(WithFallbacks(nil, []string{"nothing"}), Session{})
	if err == nil || !strings.HasPrefix(err.Error(), `--degraded: degraded has no mechanism "nothing"`) {
		t.Errorf("%v", err)
	}
}

func TestAMechanismIsNotMissingWithoutATrialResult(t *testing.T) {
	undecided := candidate{
		"undecided",
		"a trial",
		func() (string, error) { return "", fmt.Errorf("no result: %w", ErrUndecided) },
		"less load",
	}
	candidates = append(candidates, undecided)
	fallbacks["undecided"] = fallback{[]string{"undecided"}, "nothing"}
	defer func() {
		candidates = candidates[:len(candidates)-1]
		delete(fallbacks, "undecided")
	}()
	if missing, err := Survey([]Setting{{"undecided", "c.yaml:1:1"}}, Session{}); !errors.Is(err, ErrUndecided) || missing != nil {
		t.Errorf("%v, %v", missing, err)
	}
}
