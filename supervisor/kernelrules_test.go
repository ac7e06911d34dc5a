package supervisor

import (
	"context"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

const kernelPolicy = `version: 1
name: test
command_rules: [{name: rest, commands: ['*'], decision: allow}]
file_rules:
  - {name: guarded, paths: ['PATHS'], operations: [OPS], decision: EFFECT}
  - {name: rest, paths: ['${WORKSPACE}/**', '/tmp/**', '/proc/**', '/dev/**'], operations: ['*'], decision: allow}
  - {name: system, paths: ['/usr/**', '/bin/**', '/lib/**', '/lib64/**', '/etc/**'], operations: [read, list, stat, execute], decision: allow}
`

func kernelRule(paths, ops, effect string) string {
	return strings.NewReplacer("PATHS", paths, "OPS", ops, "EFFECT", effect).Replace(kernelPolicy)
}

// TestRulesBelowTheKernelsDirectoriesAreHeldOrRefused: none is ignored.
func TestRulesBelowTheKernelsDirectoriesAreHeldOrRefused(t *testing.T) {
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
	}
	for _, test := range refused {
		cfg, _ := testConfig(t, kernelRule(test.paths, test.ops, test.effect))
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
		{"/sys/**", "cat /sys/kernel/ostype"},
		{"/dev/mem", "cat /dev/mem"},
	}
	for _, test := range held {
		b := openBox(t, kernelRule(test.paths, "'*'", "deny"))
		if _, out := b.run(t, "sh", "-c", test.command+" 2>/dev/null"); out != "" {
			t.Errorf("%s: %q is read", test.paths, out)
		}
	}
}
