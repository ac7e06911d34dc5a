package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/notify"
)

// execFromPolicy lets programs run from /usr/bin alone.
var execFromPolicy = strings.Replace(testPolicy, "command_rules:\n", "exec_from: [/usr/bin]\ncommand_rules:\n", 1)

// allowAll has the notification loop allow every program: what is refused then
// is refused by the kernel.
func (b *box) allowAll(t *testing.T) {
	t.Helper()
	err := b.loop.Reload(notify.Rules{Evaluate: func(policy.Request) (policy.Decision, policy.Diagnostic) {
		return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{}
	}}, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
}

// copyProgram puts a program of the machine into the workspace.
func copyProgram(t *testing.T, b *box, from, name string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.workspace, name), data, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestProgramsRunFromNamedDirectoriesOnly(t *testing.T) {
	b := openBox(t, execFromPolicy)
	copyProgram(t, b, "/usr/bin/true", "tool")
	if err := os.WriteFile(filepath.Join(b.workspace, "script"), []byte("#!/usr/bin/sh\necho script\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if exit, out := b.run(t, "sh", "-c", "echo $(uname -s)"); exit.Code != 0 || out != "Linux\n" {
		t.Errorf("a program of /usr/bin: %+v, %q", exit, out)
	}
	for _, argv := range [][]string{{"./tool"}, {"./script"}, {"/usr/sbin/ldconfig", "-p"}} {
		if exit, _ := b.run(t, argv...); exit.Kind != wire.ExitDenied {
			t.Errorf("%q: %+v", argv, exit)
		}
	}
	if _, out := b.run(t, "sh", "-c", "/usr/bin/sh ./script"); out != "script\n" {
		t.Errorf("a script that its interpreter reads: %q", out)
	}
}

func TestTheKernelEnforcesExecFrom(t *testing.T) {
	b := openBox(t, execFromPolicy)
	copyProgram(t, b, "/usr/bin/true", "tool")
	if err := os.WriteFile(filepath.Join(b.workspace, "script"), []byte("#!/usr/bin/sh\necho script\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.allowAll(t)
	script := `cp tool /tmp/tool; for f in ./tool ./script /tmp/tool /usr/sbin/ldconfig /dev/shm/tool; do
	[ $f = /dev/shm/tool ] && cp tool $f
	$f -p >/dev/null 2>&1; echo $f $?
done; /usr/bin/true; echo true $?`
	_, out := b.run(t, "sh", "-c", script)
	if want := "./tool 126\n./script 126\n/tmp/tool 126\n/usr/sbin/ldconfig 126\n/dev/shm/tool 126\ntrue 0\n"; out != want {
		t.Errorf("printed %q, want %q", out, want)
	}
	_, mounts := b.run(t, "cat", "/proc/self/mounts")
	for _, place := range []string{b.workspace, "/tmp", "/dev/shm"} {
		found := false
		for line := range strings.Lines(mounts) {
			f := strings.Fields(line)
			found = found || len(f) > 3 && f[1] == place && strings.Contains(","+f[3]+",", ",noexec,")
		}
		if !found {
			t.Errorf("%s is not mounted noexec: %s", place, mounts)
		}
	}
	_, out = b.run(
		t,
		"perl",
		"-e",
		`use constant NR => `+memfdCreate+`; my $n = "x"; printf "%d %d\n", syscall(NR, $n, 1), syscall(NR, $n, 9) >= 0`,
	)
	if out != "-1 1\n" {
		t.Errorf("memfd_create without and with MFD_NOEXEC_SEAL: %q", out)
	}
	told := b.events(t, func(e wire.Event) bool { return e.Op == "memfd_create" })
	if len(told) != 1 || told[0].Decision != "deny" || told[0].Command == "" || !strings.HasSuffix(told[0].Process.Exe, "/perl") {
		t.Errorf("events: %+v", told)
	}
}
