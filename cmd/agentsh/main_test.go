package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"agentsh/internal/layout"
	"agentsh/internal/testenv"
	"agentsh/supervisor"
)

func TestMain(m *testing.M) {
	supervisor.Reexec()
	testscript.Main(building{m}, map[string]func(){"agentsh": main})
}

// building runs the tests, and removes the programs that they built.
type building struct{ m *testing.M }

func (b building) Run() int { return testenv.Run(b.m) }

// TestScripts runs the command line as a person would. Commands really run
// under a policy, as root and, where a script says so, as another user.
func TestScripts(t *testing.T) {
	runScripts(t, "testdata/script")
}

// strace and gdb end, and their user reads why.
func TestDebuggersAreRefusedWithAReason(t *testing.T) {
	testenv.Need(t, testenv.Program("strace"), testenv.Program("gdb"))
	runScripts(t, "testdata/debuggers")
}

func runScripts(t *testing.T, dir string) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Setup: func(e *testscript.Env) error {
			state := e.WorkDir + "-state" // the workspace does not hold it
			e.Setenv("XDG_STATE_HOME", state)
			if err := os.Mkdir(state, 0o755); err != nil {
				return err
			}
			e.Defer(func() { _ = os.RemoveAll(state) })
			e.Setenv("NO_COLOR", "1")
			packs, err := filepath.Abs("../../packaging/policies")
			if err != nil {
				return err
			}
			e.Setenv("PACKS", packs)
			outside, err := os.MkdirTemp("/var/lib", "agentsh-test-") // of what sessions have of their own, as /tmp
			if err != nil {
				return err
			}
			e.Setenv("OUTSIDE", outside)
			e.Defer(func() { _ = os.RemoveAll(outside) })
			run := e.WorkDir + "-run" // no workspace may hold it
			e.Setenv("XDG_RUNTIME_DIR", run)
			if err := os.Mkdir(run, 0o700); err != nil {
				return err
			}
			e.Defer(func() { destroyAll(t, run) })
			own := layout.State(filepath.Join(state, "agentsh"))
			e.Setenv("KEY", own.AuditKey())
			e.Setenv("STATE", string(own))
			// The work directory belongs to the test; commands of another user
			// have to be able to reach what lies in it.
			for dir := e.WorkDir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
				if err := os.Chmod(dir, 0o755); err != nil {
					return err
				}
			}
			return nil
		},
	})
}

// destroyAll ends the sessions that a script which failed left.
func destroyAll(t testing.TB, run string) {
	left, _ := filepath.Glob(filepath.Join(run, "agentsh", "*", "session.json"))
	for _, record := range left {
		cmd := program(t, run, "session", "destroy", filepath.Base(filepath.Dir(record)))
		cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR="+run)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}
