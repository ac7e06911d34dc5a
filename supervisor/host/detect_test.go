package host

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor"
	"agentsh/supervisor/probe"
)

func detect(t *testing.T) *Report {
	t.Helper()
	r, err := Detect(context.Background(), supervisor.DefaultOperator)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestACapableMachineNeedsNoFallback(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Landlock)
	scratch := t.TempDir()
	for _, dir := range []string{scratch, filepath.Dir(scratch)} { // commands of another user work below it
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TMPDIR", scratch)
	r := detect(t)
	for _, p := range r.Primitives {
		if !p.Works && !slices.Contains([]string{"cgroup", "vsock", "fuse_passthrough", "oom_score"}, p.Name) {
			t.Errorf("%s: %s", p.Name, p.Why)
		}
	}
	for _, g := range r.Groups {
		if g.EnforcedBy == NotEnforced {
			t.Errorf("%s is not held: %v %s", g.Group, g.Missing, g.Failed)
		}
	}
	if !r.Session.Opens || len(r.Session.Proofs) == 0 || len(r.Session.Checks) != len(checks) {
		t.Errorf("session: %+v", r.Session)
	}
	i := slices.IndexFunc(r.Shells, func(s Shell) bool { return s.Path == "/bin/bash" })
	if i < 0 || !r.Shells[i].BashEnv {
		t.Errorf("shells: %+v", r.Shells)
	}
	if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// The same test binary runs again with something taken away.
func TestAMissingMechanismIsDetected(t *testing.T) {
	if os.Getenv("AGENTSH_TEST_TAKEN") != "" {
		testTaken(t, strings.Split(os.Getenv("AGENTSH_TEST_TAKEN"), " "))
		return
	}
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Landlock)
	tests := []struct {
		name, how string
		missing   []string
	}{
		{"no /dev/fuse", "mount --bind /dev/null /dev/fuse; exec \"$@\"", []string{"fuse", "fuse_passthrough"}},
		{"root without CAP_SYS_ADMIN", "exec setpriv --bounding-set -sys_admin --inh-caps -sys_admin \"$@\"",
			[]string{
				"mount_namespace",
				"pid_namespace",
				"net_namespace",
				"net_redirect",
				"other_namespaces",
				"mount_api",
				"overlayfs",
				"fuse",
				"fuse_passthrough",
				"new_root",
				"session_root",
			}},
		{"root without CAP_SYS_PTRACE", "exec setpriv --bounding-set -sys_ptrace --inh-caps -sys_ptrace \"$@\"", []string{"session_root"}},
		{"root without CAP_NET_ADMIN", "exec setpriv --bounding-set -net_admin --inh-caps -net_admin \"$@\"",
			[]string{"net_namespace", "net_redirect"}},
		{
			"no user namespaces",
			"exec unshare -U -r sh -c 'echo 0 >/proc/sys/user/max_user_namespaces && exec \"$@\"' sh \"$@\"",
			[]string{"user_namespace"},
		},
		{"a hard limit on real time", "ulimit -R 1000000; exec \"$@\"", []string{"limits"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("unshare", "-m", "bash", "-ec", tt.how, "bash", self, "-test.run=^TestAMissingMechanismIsDetected$", "-test.v")
			cmd.Env = append(os.Environ(), "AGENTSH_TEST_TAKEN="+strings.Join(tt.missing, " "), "AGENTSH_TEST_STRICT=")
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "looked at what is left") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// testTaken checks that all of missing is missing, with what to change, and that
// what needs it is not said to be held.
func testTaken(t *testing.T, missing []string) {
	r := detect(t)
	for _, p := range r.Primitives {
		if slices.Contains(missing, p.Name) && (p.Works || p.Why == "" || p.Change == "") {
			t.Errorf("%s is gone, and detection says %+v", p.Name, p)
		}
	}
	for _, g := range groupTable {
		i := slices.IndexFunc(r.Groups, func(found Group) bool { return found.Group == g.name })
		lost := slices.ContainsFunc(g.needs, func(n string) bool { return slices.Contains(missing, n) })
		if lost && r.Groups[i].EnforcedBy != NotEnforced {
			t.Errorf("%s: %+v", g.name, r.Groups[i])
		}
	}
	if r.Session.Opens && !slices.Equal(missing, []string{"user_namespace"}) {
		t.Error("a session opened all the same")
	}
	for _, word := range []string{"exec_verify", "file_governed", "host_edits", "net_namespace"} {
		lost := slices.ContainsFunc(probe.Primitives(word), func(n string) bool { return slices.Contains(missing, n) })
		require := []probe.Setting{{Name: word, At: "c.yaml:1:1"}}
		if err := probe.Require(require, probe.Session{Governed: true}, nil); (err != nil) != lost {
			t.Errorf("require %s with %v missing: %v", word, missing, err)
		}
	}
	t.Log("looked at what is left")
}

func TestWhatAGroupNeedsCanBeTried(t *testing.T) {
	for _, g := range groupTable {
		for _, name := range g.needs {
			if !probe.Known(name) {
				t.Errorf("%s needs %s, which nothing tries", g.name, name)
			}
		}
		if _, known := checks[g.check]; g.check != "" && !known {
			t.Errorf("%s is checked by %s, which does not exist", g.name, g.check)
		}
	}
}

func TestDetectionSaysWhyNoFallbackHelps(t *testing.T) {
	if os.Getenv("AGENTSH_TEST_LIMITED") == "" {
		testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Landlock)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := testenv.Without(
			t,
			[]string{testenv.WithoutNamespaces, testenv.WithoutLandlock},
			self,
			"-test.run=^TestDetectionSaysWhyNoFallbackHelps$",
			"-test.v",
		)
		cmd.Env = append(os.Environ(), "AGENTSH_TEST_LIMITED=both")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "no fallback helps") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	r, err := Detect(context.Background(), supervisor.OperatorConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Session.Opens || len(r.Session.Fallbacks) > 0 ||
		!strings.Contains(r.Session.Why, "\nwith every fallback of degraded: neither namespaces nor Landlock are here") {
		t.Fatalf("%+v", r.Session)
	}
	t.Log("no fallback helps")
}

// What detect says about limits agrees with the settings that it says are refused.
func TestLimitsAreSaidWithoutControlGroups(t *testing.T) {
	for _, have := range []bool{true, false} {
		works := map[string]bool{"cgroup": have}
		for _, g := range groupTable {
			for _, need := range g.needs {
				works[need] = true
			}
		}
		found := groups(works, Trial{}, nil)
		g := found[slices.IndexFunc(found, func(g Group) bool { return g.Group == wire.GroupLimits })]
		if strings.Contains(g.How, "and control groups") != have || slices.Contains(g.Refused, "resource_limits.max_memory_mb") == have {
			t.Errorf("control groups %v: %+v", have, g)
		}
	}
}
