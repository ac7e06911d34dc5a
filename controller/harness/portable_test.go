package harness

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// portable is a harness like those of public agent collections. It has overlays
// and forge blocks, provider profiles, credentials as files, and settings that
// no step reads.
var portable = tests{
	"harness/triage.yaml": `---
agent: agents/a.md
doc: docs/a.md
model: opus
effort: high
image: registry.example.com/sandbox@sha256:0011
policy: policies/base.yaml
openshell:
  profiles:
    - profiles/model.yaml
providers:
  - providers/model.yaml
role: triage
slug: example-triage
host_files:
  - src: env/cloud.env
    dest: /sandbox/workspace/.env.d/cloud.env
    expand: true
  - src: ${CLOUD_CREDENTIALS_FILE}
    dest: /tmp/.credentials.json
  - src: ${OIDC_FILE}
    dest: /sandbox/workspace/.oidc
    optional: true
skills:
  - skills/estimate
pre_script: scripts/pre.sh
post_script: scripts/post.sh
validation_loop:
  script: scripts/validate.sh
  schema: schemas/result.json
  max_iterations: 2
  feedback_mode: append
  preflight_check: 'python3 -c "import json"'
timeout_minutes: 10
trigger: "event.entity.kind == 'work_item'"
steer:
  enabled: true
  max_steers: 2
env:
  runner:
    AUTO: "on"
  sandbox:
    MAX_TOKENS: 100
overlays:
  - when: 'runtime.forge == "github"'
    providers:
      - providers/github.yaml
    openshell:
      profiles:
        - profiles/github.yaml
    skills:
      - skills/labels/github
    host_files:
      - src: env/github.env
        dest: /sandbox/workspace/.env.d/forge.env
        expand: true
    env:
      runner:
        ISSUE: ${GITHUB_ISSUE_URL}
      sandbox:
        ISSUE: "${GITHUB_ISSUE_URL}"
  - when: 'has(event.source) && event.source.system == "jira"'
    pre_script: scripts/pre-jira.sh
`,
	"harness/fix.yaml": `base: triage.yaml
role: fixer
readonly_repo: true
steer: {enabled: false}
privilege_levels: {pre_script: write, runtime: read}
plugins:
  - plugins/lsp
  - path: plugins/ext
    env: {MODE: "1"}
    pi: {args: ["--mode"]}
runner_env:
  PR: ${PR_NUMBER}
forge:
  github:
    runner_env:
      TOKEN: ${GH_TOKEN}
  gitlab:
    policy: policies/gitlab.yaml
api_servers:
  - {name: api, script: scripts/pre.sh, port: 8080, env: {KEY: "${KEY}"}}
security:
  enabled: true
  fail_mode: closed
  sandbox_hooks: {tirith: {enabled: true, fail_on: high}}
`,
	"policies/base.yaml": "version: 1\nname: base\n", "policies/gitlab.yaml": "version: 1\nname: gitlab\n",
	"env/cloud.env": "export PROJECT=\"${CLOUD_PROJECT}\"\n", "env/github.env": "export REPO=${REPO}\n",
	"skills/estimate/SKILL.md": "", "skills/labels/github/SKILL.md": "", "scripts/pre.sh": "", "scripts/pre-jira.sh": "",
	"scripts/post.sh": "", "scripts/validate.sh": "", "schemas/result.json": "{}",
	"providers/model.yaml": "name: model\ntype: example-model\n", "providers/github.yaml": "name: github\ntype: example-github\n",
	"profiles/model.yaml":     "id: example-model\nendpoints: [{host: model.example.com, port: 443, access: read-write}]\n",
	"profiles/github.yaml":    "id: example-github\nendpoints: [{host: api.github.com, port: 443, access: read-only}]\n",
	"plugins/lsp/plugin.json": "{}", "plugins/ext/index.js": "",
}

func TestAPortableHarnessLoadsAndUnsupportedKeysAreReported(t *testing.T) {
	dir := lay(t, portable)
	h, ps := loaded(t, dir, "harness/triage.yaml", Options{Forge: "github"})
	for _, p := range ps {
		if p.Severity == Error || p.At.IsZero() {
			t.Errorf("not expected: %v", p)
		}
	}
	equalText(t, "problems", short(dir, ps), strings.TrimSpace(`
harness/triage.yaml:6:8: note: image has no meaning here: without a path to it the sandbox has this machine's programs, as far as the policy shows them
harness/triage.yaml:35:10: note: trigger has no meaning here: agentctl does not wait for events: a run starts when it is called
harness/triage.yaml:37:12: warning: steer.enabled is not supported here: a running agent takes no updates
harness/triage.yaml:38:15: warning: steer.max_steers is not supported here: a running agent takes no updates`))
	if len(h.Profiles) != 2 || h.Profiles[1].ID != "example-github" {
		t.Errorf("profiles: %+v", h.Profiles)
	}
	equalText(t, "skills", skillNames(h), "skills/estimate skills/labels/github")
	equalText(t, "providers", list(h.Providers), "providers/model.yaml providers/github.yaml")
	equalText(t, "sandbox", show(h.Env.Sandbox), "ISSUE=${GITHUB_ISSUE_URL} MAX_TOKENS=100")
	if r := h.Refusals(); len(r) != 2 || len(r.Errors()) != len(r) {
		t.Errorf("a run refuses %v", r)
	}
}

func TestAPortableHarnessOnABaseLoads(t *testing.T) {
	dir := lay(t, portable)
	h, ps := loaded(t, dir, "harness/fix.yaml", Options{Forge: "github"})
	rules := map[string]int{}
	for _, p := range ps {
		rules[p.Rule]++
	}
	if rules[RuleUnknownKey] != 0 || rules[RuleDeprecated] != 2 {
		t.Errorf("%v", ps)
	}
	for _, want := range []string{"plugins.env is", "plugins.pi.args is", "privilege_levels is", "api_servers.name is"} {
		if !strings.Contains(short(dir, ps), want+" not supported here: ") {
			t.Errorf("%s not supported is not said", want)
		}
	}
	if strings.Contains(short(dir, ps), "steer.enabled") {
		t.Error("what is switched off asks for nothing")
	}
	equalText(t, "runner", show(h.Env.Runner), "AUTO=on ISSUE=${GITHUB_ISSUE_URL} PR=${PR_NUMBER} TOKEN=${GH_TOKEN}")
	equalText(
		t,
		"host files",
		hostFiles(h),
		"env/cloud.env>/sandbox/workspace/.env.d/cloud.env ${CLOUD_CREDENTIALS_FILE}>/tmp/.credentials.json "+
			"${OIDC_FILE}>/sandbox/workspace/.oidc env/github.env>/sandbox/workspace/.env.d/forge.env",
	)
}

func TestResourcesByURLAreRefused(t *testing.T) {
	dir := lay(
		t,
		tests{
			"a.yaml": "agent: https://example.com/a.md#sha256=00\nrole: r\nproviders: ['https://example.com/p.yaml#sha256=00']\nskills: ['https://example.com/tree/s#sha256=00']\n",
		},
	)
	h, ps := Load(filepath.Join(dir, "a.yaml"), Options{})
	if h == nil || len(ps) != 3 {
		t.Fatalf("%v", ps)
	}
	if r := h.Refusals(); len(r.Errors()) != 3 {
		t.Errorf("%v", r)
	}
}

// The harness of testdata uses what public collections of agents use.
func TestAWholeCollectionLintsAndRendersToItsValues(t *testing.T) {
	const name = "testdata/portable/harness/review.yaml"
	h, ps := Load(name, Options{Forge: "github"})
	if h == nil {
		t.Fatal(ps)
	}
	host := map[string]string{
		"REPO_FULL_NAME": "o/r", "API_TOKEN": "value-of-no-use", "CHANGE_URL": "https://example.com/1", "RESULT_KIND": "review",
	}
	x, problems := h.Expand(hostEnv(host))
	if problems != nil {
		t.Fatal(problems)
	}
	var text bytes.Buffer
	if err := x.Render(&text); err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		fmt.Fprintln(&text, "#", p)
	}
	got := strings.ReplaceAll(text.String(), h.Root, "ROOT")
	const golden = "testdata/portable.golden"
	if os.Getenv("UPDATE") != "" {
		put(t, golden, got)
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	equalText(t, "rendered", got, string(want))
	_, ps = h.Expand(hostEnv(nil))
	if len(ps) != 1 || !strings.Contains(ps[0].Message, "4 variables are not set on the host: API_TOKEN (") ||
		!strings.Contains(ps[0].Message, "CHANGE_URL (testdata/portable/env/github/review.env:1)") {
		t.Errorf("not all missing variables in one round: %v", ps)
	}
	if h, ps = Load(name, Options{Forge: "gitlab"}); h == nil || h.Env.Runner["INHERITED"].IsSet() {
		t.Errorf("the block of the base for gitlab is not removed: %v", ps)
	}
}
