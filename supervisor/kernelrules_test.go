package supervisor

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

const kernelPolicy = `version: 1
name: test
command_rules: [{name: rest, commands: ['*'], decision: allow}]
file_rules:
  - {name: guarded, paths: ['PATHS'], operations: [OPS], decision: EFFECT}
  - {name: rest, paths: ['${WORKSPACE}/**', '/tmp/**', '/dev/**'], operations: ['*'], decision: allow}
  - {name: kernel, paths: ['/proc/**', '/sys/**'], operations: [read, list, stat], decision: allow}
  - {name: system, paths: ['/usr/**', '/bin/**', '/lib/**', '/lib64/**', '/etc/**'], operations: [read, list, stat, execute], decision: allow}
`

func kernelRule(paths, ops, effect string) string {
	return strings.NewReplacer("PATHS", paths, "OPS", ops, "EFFECT", effect).Replace(kernelPolicy)
}

// TestRulesBelowTheKernelsDirectoriesAreEnforcedOrRefused: none is ignored.
func TestRulesBelowTheKernelsDirectoriesAreEnforcedOrRefused(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	refused := []struct{ paths, ops, effect, why string }{
		{"/proc/self/environ", "'*'", "deny", "differs for each process"},
		{"/proc/[0-9]*/environ", "'*'", "deny", "name one file or directory"},
		{"/p*/cpuinfo", "'*'", "deny", "name one file or directory"},
		{"/{proc,srv}/cpuinfo", "'*'", "deny", "name one file or directory"},
		{"/proc/cpuinfo", "read, stat", "audit", "name read as its operation"},
		{"/proc/cpuinfo", "'*'", "approve", "name read as its operation"},
		{"/proc/*/maps", "list", "audit", "name read as its operation"},
		{"/proc/cpuinfo", "read, stat", "deny", "deny every operation"},
		{"/proc/self/environ", "read", "deny", "write /proc/*/environ"},
		{"/proc/thread-self/maps", "read", "audit", "write /proc/*/maps"},
		{"/proc/net/tcp", "read", "audit", "write /proc/*/net/tcp"},
		{"/dev/zero", "read", "audit", "nothing decides on single operations"},
		{"/proc/tty", "'*'", "deny", "write /proc/tty/**"},
		{"/proc/mounts", "'*'", "deny", "differs for each process"},
		{"/proc/**", "'*'", "deny", "name one file or directory"},
		{"/dev/tty", "'*'", "deny", "devices of a session"},
		{"/dev/shm/**", "'*'", "deny", "devices of a session"},
		{"/sys/kernel/**", "read", "audit", "nothing decides on single operations"},
		{"/sys/devices/system/cpu/*/online", "'*'", "deny", "name one file or directory"},
		{"/sys/class/net/**", "read", "allow", "of /sys a session has /sys/devices/system/cpu"},
		{"/sys/class/*/address", "read", "allow", "of /sys a session has /sys/devices/system/cpu"},
		{"/sys/devices/system/cpu/**", "read, write", "allow", "read-only in every session"},
		{"/proc/self/oom_score_adj", "write", "allow", "read-only in every session"},
		{"/proc/*/comm", "read, write", "allow", "name read, list and stat"},
		{"/proc/**", "'*'", "allow", "read-only in every session"},
	}
	for _, test := range refused {
		cfg, _ := wholeConfig(t, kernelRule(test.paths, test.ops, test.effect))
		s, err := Open(context.Background(), cfg)
		if err == nil {
			s.Close()
			t.Errorf("%s of %s: the session opened", test.effect, test.paths)
			continue
		}
		if !strings.Contains(err.Error(), "test.yaml:5:") || !strings.Contains(err.Error(), test.why) {
			t.Errorf("%s of %s: %v", test.effect, test.paths, err)
		}
	}
	held := []struct{ paths, command string }{
		{"/proc/cpuinfo", "cat /proc/cpuinfo"},
		{"/proc/tty/**", "cat /proc/tty/drivers"},
		{"/sys/**", "cat /sys/kernel/ostype /sys/devices/system/cpu/online"},
		{"/sys/devices/system/cpu/online", "cat /sys/devices/system/cpu/online"},
		{"/sys/devices/system/cpu/**", "cat /sys/devices/system/cpu/possible"},
		{"/dev/mem", "cat /dev/mem"},
	}
	for _, test := range held {
		b := openBox(t, kernelRule(test.paths, "'*'", "deny"))
		if _, out := b.run(t, "sh", "-c", test.command+" 2>/dev/null"); out != "" {
			t.Errorf("%s: %q is read", test.paths, out)
		}
	}
}

// TestASessionSeesTheProcessorsOfTheMachine read-only, and nothing else of /sys.
func TestASessionSeesTheProcessorsOfTheMachine(t *testing.T) {
	testenv.Need(t, testenv.Program("lscpu"), testenv.Program("nproc"))
	policy := kernelRule("/dev/mem", "'*'", "deny")
	b := openEither(t, asBoth(t), policy, nil)
	want, err := exec.Command("sh", "-c", processors).CombinedOutput()
	if err != nil {
		t.Fatalf("outside: %v\n%s", err, want)
	}
	if _, out := b.run(t, "sh", "-c", processors); out != string(want) {
		t.Errorf("inside:\n%s\noutside:\n%s", out, want)
	}
	_, out := b.run(t, "sh", "-c", `ls /sys /sys/devices /sys/devices/system /sys/kernel /sys/kernel/mm | LC_ALL=C sort -u | tr '\n' ' '
echo x 2>/dev/null >/sys/devices/system/cpu/cpu0/new || echo -n closed
cat /sys/class/net/lo/address 2>/dev/null`)
	if out != " /sys/devices/system: /sys/devices: /sys/kernel/mm: /sys/kernel: /sys: cpu devices hugepages kernel mm node system transparent_hugepage closed" {
		t.Errorf("it printed %q", out)
	}
	if _, out := openEither(t, os.Geteuid() != 0, strings.Replace(policy, ", '/sys/**'", "", 1), nil).run(t, "sh", "-c",
		"ls /sys 2>/dev/null"); out != "" {
		t.Errorf("a policy that does not allow it shows %q", out)
	}
}

// processors prints what programs find out about processors, as far as they are here.
const processors = `export LC_ALL=C; lscpu | grep -v MHz; nproc; getconf _NPROCESSORS_CONF
command -v node >/dev/null && node -e 'console.log(os.cpus().length, os.cpus()[0].model)'
true`
