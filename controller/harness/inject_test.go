package harness

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestNamesThatThePolicyInjectsAreReserved(t *testing.T) {
	dir := lay(t, tests{
		"a.yaml": head + `policy: p.yaml
env: {sandbox: {FREE: 1, INJECTED: 1}, runner: {INJECTED: 1}}
host_files: [{src: t.env, dest: /sandbox/workspace/.env.d/t.env}]
`,
		"p.yaml":    "version: 1\nname: p\nextends: [base.yaml]\nfile_rules: [{name: w, paths: ['${WORKSPACE}/**'], operations: [read], decision: allow}]\n",
		"base.yaml": "version: 1\nname: b\nenv_inject: {INJECTED: x, OTHER: y}\n",
		"t.env":     "OTHER=1\n",
	})
	_, ps := Load(filepath.Join(dir, "a.yaml"), Options{})
	equalText(t, "problems", short(dir, ps), `a.yaml:4:26: error: env.sandbox: INJECTED is set by env_inject of the policy p.yaml
t.env:1:1: error: OTHER is set by env_inject of the policy p.yaml`)
}

// TestVariablesThatThePolicyFiltersAreReported has a harness, whose variables env_policy only denies, and a
// specification, whose variables it allows too.
func TestVariablesThatThePolicyFiltersAreReported(t *testing.T) {
	dir := lay(t, tests{
		"a.yaml": head + `policy: p.yaml
env: {sandbox: {FREE: 1, OPEN: 1, DENIED_A: 1}}
host_files: [{src: t.env, dest: /sandbox/workspace/.env.d/t.env}]
container: {env_passthrough: [DENIED_B, OTHER]}
`,
		"p.yaml": "version: 1\nname: p\nenv_policy: {allow: [OPEN, 'DENIED_*'], deny: ['DENIED_*']}\n" +
			"file_rules: [{name: w, paths: ['${WORKSPACE}/**'], operations: [read], decision: allow}]\n",
		"t.env": "DENIED_C=1\nFILED=1\n",
	})
	const of = " of the policy p.yaml"
	denied := `a.yaml:4:35: error: env.sandbox: commands would not get DENIED_A: it is denied by env_policy pattern DENIED_*` + of
	for requested, want := range map[bool]string{
		false: denied + `
a.yaml:6:31: error: container.env_passthrough: commands would not get DENIED_B: it is denied by env_policy pattern DENIED_*` + of + `
t.env:1:1: warning: commands do not get DENIED_C: it is denied by env_policy pattern DENIED_*` + of,
		true: `a.yaml:4:17: error: env.sandbox: commands would not get FREE: it is not in the allow list of env_policy` + of + "\n" + denied + `
a.yaml:6:31: error: container.env_passthrough: commands would not get DENIED_B: it is denied by env_policy pattern DENIED_*` + of + `
a.yaml:6:41: error: container.env_passthrough: commands would not get OTHER: it is not in the allow list of env_policy` + of + `
t.env:1:1: warning: commands do not get DENIED_C: it is denied by env_policy pattern DENIED_*` + of,
	} {
		_, ps := Load(filepath.Join(dir, "a.yaml"), Options{Requested: requested})
		equalText(t, "problems", short(dir, ps), want)
	}
}

func TestAPolicyThatDoesNotLoadIsReported(t *testing.T) {
	dir := lay(t, tests{"a.yaml": head + "policy: p.yaml\n", "p.yaml": "version: 1\nname: p\nx: y\n"})
	_, ps := loaded(t, dir, "a.yaml", Options{})
	if len(ps) != 1 || ps[0].At.Line != 3 || !strings.Contains(ps[0].Message, "policy: p.yaml is no policy that can be enforced here: ") ||
		!strings.Contains(ps[0].Hint, "agentsh policy check ") {
		t.Errorf("%v", ps)
	}
}

func TestAPolicyOfOpenShellIsCheckedWithItsLines(t *testing.T) {
	dir := lay(t, tests{"a.yaml": head + "policy: p.yaml\n", "p.yaml": "version: 1\nfilesystem_policy: {}\nx: y\n"})
	_, ps := Load(filepath.Join(dir, "a.yaml"), Options{})
	equalText(t, "problems", short(dir, ps), "p.yaml:3:1: error: a policy of OpenShell has no key \"x\"")
}
