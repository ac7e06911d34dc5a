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
