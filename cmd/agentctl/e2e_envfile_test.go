package main

import (
	"strings"
	"testing"

	"agentsh/controller"
)

// envFiles makes a run whose agent prints variables that .env files set.
func envFiles(t *testing.T, files map[string]string) *fixture {
	t.Helper()
	more := "env: {sandbox: {LAST: sandbox}}\nvalidation_loop: {script: check.sh, schema: '${FULLSEND_DIR}/s.json'}\nhost_files:\n"
	for name := range files {
		more += "  - {src: env/" + name + ", dest: /sandbox/workspace/.env.d/" + name + ", expand: true}\n"
	}
	p := newFixture(t, `env | sort > "$AGENTSH_OUTPUT_DIR/env"; cat "$FULLSEND_OUTPUT_SCHEMA" > "$AGENTSH_OUTPUT_DIR/schema"`, more)
	p.write("check.sh", "#!/bin/sh\nexit 0\n", 0o755)
	p.write("s.json", `{"type": "object"}`, 0o644)
	for name, text := range files {
		p.write("env/"+name, text, 0o644)
	}
	return p
}

func TestEnvFilesWithShellAreReadInTheSandbox(t *testing.T) {
	t.Parallel()
	p := envFiles(t, map[string]string{
		"10-plain.env": "GO_PLAIN=\"it's plain\"\n",
		"20-shell.env": `# a comment with an apostrophe: it's one
if [ -d /sandbox/workspace/repo ] && [ ! -e ` + t.TempDir() + ` ]; then
  export GO_INSIDE=yes
else
  export GO_INSIDE=no
fi
GO_FROM_PLAIN="$GO_PLAIN, and more"
export GO_TOKEN="${HOST_TOKEN}" GO_DEFAULT="${GO_NOT_SET:-a default}" GO_SINGLE='<${HOST_TOKEN}>'
export LAST=file FULLSEND_ROLE_SEEN="$FULLSEND_TARGET_REPO_DIR"
echo printed; false
`,
		"30-bash.env": "[[ $GO_INSIDE == yes ]] && GO_BASH=(a b) && export GO_COUNT=${#GO_BASH[@]} && unset GO_BASH\n",
	})
	r, code := p.run()
	if code != controller.ExitDone {
		t.Fatalf("exit %d: %+v", code, r.Error)
	}
	env := "\n" + p.read("out/output/env")
	for _, want := range []string{
		"GO_PLAIN=it's plain", "GO_INSIDE=yes", "GO_FROM_PLAIN=it's plain, and more", "GO_TOKEN=value-of-no-use",
		"GO_DEFAULT=a default", "GO_SINGLE=<value-of-no-use>", "GO_COUNT=2", "LAST=sandbox",
		"FULLSEND_TARGET_REPO_DIR=/sandbox/workspace/repo", "FULLSEND_ROLE=tester",
	} {
		if !strings.Contains(env, "\n"+want+"\n") {
			t.Errorf("no %s in:\n%s", want, env)
		}
	}
	if strings.Contains(env, "agentsh_") || strings.Contains(env, "HOST_TOKEN=") {
		t.Errorf("variables of the reading shell reach the agent:\n%s", env)
	}
	if got := p.read("out/output/schema"); got != `{"type": "object"}` {
		t.Errorf("the schema in the sandbox is %q", got)
	}
}

func TestAnEnvFileThatFailsEndsTheRunBeforeTheAgent(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"if true; then export GO_A=1; fi\nexit 3\n":                "env/x.env: the shell ended before the end of the file (exited 3)",
		"if true; then eval 'export LD_PRELOAD=/x'; fi\n":          "env/x.env: LD_PRELOAD belongs to the supervisor",
		"if true; then unset HOME; fi\n":                           "env/x.env: unset HOME has no effect",
		"if true; then set -e; not-a-program; fi; export GO_A=1\n": "not-a-program",
	} {
		p := envFiles(t, map[string]string{"x.env": text})
		r, code := p.run()
		if code != controller.ExitConfiguration || r.Error == nil || !strings.Contains(r.Error.Message, want) {
			t.Errorf("%q: exit %d, %+v, want %s", text, code, r.Error, want)
		}
		if len(r.Iterations) != 0 {
			t.Errorf("%q: the agent ran", text)
		}
	}
}

func TestAShellThatThePolicyDeniesIsNamed(t *testing.T) {
	t.Parallel()
	p := envFiles(t, map[string]string{"x.env": "if true; then export GO_A=1; fi\n"})
	p.write("policy.yaml", strings.Replace(p.read("policy.yaml"), "command_rules:\n",
		"command_rules:\n  - {name: no-sh, commands: [sh, dash], context: direct, decision: deny, message: no shell here}\n", 1), 0o644)
	r, code := p.run()
	if code != controller.ExitConfiguration || r.Error == nil ||
		!strings.Contains(r.Error.Message, "env/x.env needs a shell, and the policy denies it: no shell here") {
		t.Errorf("exit %d, %+v", code, r.Error)
	}
}
