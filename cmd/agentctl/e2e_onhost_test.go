package main

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/internal/wire"
)

// hostAgent is an agent program on the host, which has the tools of its sandbox alone. It calls them over HTTP.
const hostAgent = `#!/bin/bash
call() {
	curl -sS --max-time 100 -H "Authorization: Bearer $AGENTSH_TOOLS_TOKEN" -H 'Content-Type: application/json' \
		-H 'Accept: application/json, text/event-stream' -H 'Mcp-Protocol-Version: 2026-07-28' \
		-H 'Mcp-Method: tools/call' -H "Mcp-Name: $1" --data-binary @- "$AGENTSH_TOOLS_URL" <<END
{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"$1","arguments":$2,"_meta":{
"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},
"io.modelcontextprotocol/clientCapabilities":{}}}}
END
	echo
}
try() { "$@" >/dev/null 2>&1 && echo "can: $*" || echo "cannot: $*"; }
`

// onHost makes a fixture whose agent is a script on the host, outside of the repository.
func onHost(t *testing.T, script, container, more string) *fixture {
	t.Helper()
	p := newFixture(t, "exit 1", "container: {harness: false"+container+"}\n"+more)
	for dir := p.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.write("bin/agent", hostAgent+script, 0o755)
	inside := "/sandbox/claude-config/skills/task/run.sh"
	p.write("harness.yaml", strings.Replace(p.read("harness.yaml"), inside, p.path("bin/agent"), 1), 0o644)
	return p
}

// TestAnAgentOnTheHostWorksInTheSandbox has an agent that edits and commits by tools. Nothing else of the host is there
// for it: no file, no network but its model's, no variable that the harness does not pass on.
func TestAnAgentOnTheHostWorksInTheSandbox(t *testing.T) {
	t.Parallel()
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Api-Key") != "value-of-no-use" {
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	defer model.Close()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	p := onHost(t, `
call edit '{"path": "a.txt", "old_text": "one", "new_text": "two"}'
call exec '{"command": "git commit -qam second && echo x >new.txt && echo $PASSED-$FULLSEND_ROLE >../output/said"}'
call exec '{"argv": ["kill", "1"]}'
echo "passed: $PASSED, other: ${HOST_TOKEN:-none}, here: $(ls -A | wc -l)"
try curl -sS --max-time 50 "$OTHER"
try curl -fsS -H "X-Api-Key: $PASSED" --max-time 50 "$MODEL"
try ls -d /sandbox/workspace
try cat `+"'$HARNESS'"+`
try touch /usr/lib/x
`, ", env_passthrough: [PASSED, MODEL, OTHER], model_hosts: ['"+model.Listener.Addr().String()+"']", "")
	p.write("bin/agent", strings.ReplaceAll(p.read("bin/agent"), "$HARNESS", p.path("harness.yaml")), 0o755)
	p.setenv = []string{"PASSED=value-of-no-use", "MODEL=" + model.URL, "OTHER=" + other.URL}
	r, code := p.run()
	if code != 0 || r.Status != controller.StatusDone || len(r.Commits) != 1 || p.git("show", r.Branch+":a.txt") != "two" ||
		!strings.Contains(p.read("out/files/new.txt"), "x") {
		t.Fatalf("exit %d: %+v", code, r)
	}
	log := p.read("out/agent.log")
	for _, want := range []string{
		`"replacements":1`, "block-kill", "passed: value-of-no-use, other: none, here: 0", "cannot: curl -sS --max-time 50 " + other.URL,
		"can: curl -fsS", "cannot: ls -d /sandbox/workspace", "cannot: cat " + p.path("harness.yaml"), "cannot: touch",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("agent.log has no %q:\n%s", want, log)
		}
	}
	if said := p.read("out/output/said"); said != "-tester\n" {
		t.Errorf("a command in the sandbox has the agent's variables: %q", said)
	}
	host := r.AgentHost
	if host == nil || !host.Session || host.Program != p.path("bin/agent") ||
		!slices.Equal(host.Passed, []string{"MODEL", "OTHER", "PASSED"}) ||
		!slices.Contains(host.Hosts, model.Listener.Addr().String()) || host.Refusals == 0 {
		t.Errorf("%+v", host)
	}
	audit := p.read("out/agent-audit.jsonl")
	_, port, _ := net.SplitHostPort(other.Listener.Addr().String())
	if !strings.Contains(audit, `"deny"`) || !strings.Contains(audit, port) {
		t.Error("the log of the agent's own session does not have its refusal")
	}
	if strings.Contains(p.read("out/audit.jsonl"), p.path("bin/agent")) {
		t.Error("the sandbox has run the agent")
	}
	if it := r.Iterations[0]; it.Exit.Kind != wire.ExitExited || it.Exit.Code != 0 {
		t.Errorf("%+v", it)
	}
}

// TestAnAgentOnTheHostIsToldWhatTheValidatorSaid has two iterations. What the first one left running has ended then.
func TestAnAgentOnTheHostIsToldWhatTheValidatorSaid(t *testing.T) {
	t.Parallel()
	p := onHost(t, `
call exec '{"command": "cat /proc/[0-9]*/cmdline | tr \\\\0 x | grep -c sleepx9876[5]; echo x >>../output/rounds"}'
call exec '{"argv": ["sleep", "98765"], "background": true}'
[ "$AGENTSH_ITERATION" = 1 ] || echo "$AGENTSH_TASK" | grep -c 'write it twice'
echo $AGENTSH_ITERATION >"$HOME/state"
`, "", "validation_loop: {script: check.sh, max_iterations: 3}")
	p.write("check.sh", "#!/bin/sh\n[ $(wc -l <\"$AGENTSH_OUTPUT_DIR/rounds\") = 2 ] || { echo 'write it twice'; exit 1; }\n", 0o755)
	r, code := p.run()
	if code != 0 || len(r.Iterations) != 2 || r.Iterations[1].Validation != "passed" || r.Iterations[0].Feedback != "write it twice\n" {
		t.Fatalf("exit %d: %+v", code, r)
	}
	log := p.read("out/agent.log")
	if !strings.Contains(log, "\n1\n") || strings.Count(log, `"output":"0\n"`) != 2 {
		t.Error(log)
	}
}

// TestAnAgentOnTheHostRunsWithoutASessionWhereThereIsNone takes namespaces from this machine, and has the sandbox elsewhere. The result
// says that the program had the rights of its user, unless the harness demands the session.
func TestAnAgentOnTheHostRunsWithoutASessionWhereThereIsNone(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	without := []string{"bash", "-c", `exec -a agentsh-test-without "$0" namespaces "$@"`, self}
	p := onHost(t, `
call edit '{"path": "a.txt", "old_text": "one", "new_text": "two"}'
echo "home $HOME, passed $PASSED"
[ -z "$STAY" ] || { echo agent at work $$; sleep 1000; }
`, ", env_passthrough: [PASSED, STAY]", "").listening()
	p.above, p.setenv = without, []string{"PASSED=yes", "STAY="}
	r, code := p.run()
	if code != 0 || len(r.Changed) != 1 || r.AgentHost == nil || r.AgentHost.Session || !strings.Contains(r.AgentHost.Why, "not permitted") {
		t.Fatalf("exit %d: %+v %+v", code, r, r.AgentHost)
	}
	if log := p.read("out/agent.log"); !strings.Contains(log, "home "+p.state) || !strings.Contains(log, "passed yes") {
		t.Error(log)
	}
	if _, err := os.Stat(p.path("out/agent-audit.jsonl")); err == nil {
		t.Error("there is a log of no session")
	}
	p.setenv[1] = "STAY=1"
	cmd := p.command(p.runArgs()...)
	cmd.Stdout = &watcher{want: []byte("| agent at work"), found: func() { _ = cmd.Process.Signal(os.Interrupt) }}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != 130 || !strings.Contains(said.String(), "without a session of its own") {
		t.Errorf("%v %s", err, said.String())
	}
	found := regexp.MustCompile(`agent at work (\d+)`).FindStringSubmatch(p.read("out/agent.log"))
	if found == nil {
		t.Fatal(p.read("out/agent.log"))
	}
	if _, err := os.Stat("/proc/" + found[1]); err == nil {
		t.Error("the program goes on")
	}
	p.write("harness.yaml", strings.Replace(p.read("harness.yaml"), "harness: false", "harness: false, confine_agent: always", 1), 0o644)
	if r, code := p.run(); code != controller.ExitSandbox || r.Error == nil || r.Error.Step != "agent_host" || len(r.Iterations) > 0 {
		t.Errorf("exit %d: %+v", code, r)
	}
}

// TestTheHostsSideEndsWithAKilledController kills it while it opens the session, and while the agent works with and without
// one.
func TestTheHostsSideEndsWithAKilledController(t *testing.T) {
	for name, tt := range map[string]struct{ confine, at string }{
		"in its step":       {"always", "agent_host:"},
		"in a session":      {"always", "| agent at work"},
		"without a session": {"never", "| agent at work"},
	} {
		t.Run(name, func(t *testing.T) {
			p := onHost(t, "(setsid sleep 1000 &)\necho agent at work\nsleep 1000\n", ", confine_agent: "+tt.confine, "")
			adopt(t)
			cmd := p.command(p.runArgs()...)
			cmd.Stdout = &watcher{want: []byte(tt.at), found: func() { _ = cmd.Process.Kill() }}
			cmd.Stderr = cmd.Stdout
			if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != -1 {
				t.Errorf("it was not killed: %v", err)
			}
			waitOrphans(t)
			if out, err := p.command("gc").CombinedOutput(); err != nil {
				t.Errorf("gc: %v\n%s", err, out)
			}
		})
	}
}

// TestSettingsOfTheHostsSideAreRefusedEarly has settings that would have no effect, and programs that are not there.
func TestSettingsOfTheHostsSideAreRefusedEarly(t *testing.T) {
	t.Parallel()
	p := onHost(t, "", "", "")
	base := p.read("harness.yaml")
	for _, tt := range []struct{ from, to, want string }{
		{"harness: false", "harness: false, env_passthrough: [NOT_SET]", "NOT_SET (harness.yaml:8)"},
		{"harness: false", "harness: false, env_passthrough: [PATH]", "PATH belongs to the supervisor"},
		{"harness: false", "model_hosts: [a.example]", "no effect without container.harness: false"},
		{"harness: false", "confine_agent: never", "no effect without container.harness: false"},
		{"harness: false", "harness: false, confine_agent: never, model_hosts: [a.example]", "no effect with confine_agent: never"},
		{"runtime: command", "runtime: gemini", "not supported here for the runtime gemini"},
		{p.path("bin/agent"), "nosuch-agent", "nosuch-agent is not on this machine"},
		{p.path("bin/agent"), "bin/agent", "write its absolute path"},
		{p.path("bin/agent"), p.path("policy.yaml"), "no executable file"},
	} {
		p.write("harness.yaml", strings.Replace(base, tt.from, tt.to, 1), 0o644)
		out, err := p.command(p.runArgs()...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s: %v %s", tt.to, err, out)
		}
	}
}

// TestAVariableIsPassedToAnAgentInTheSandbox has no other way into env_passthrough: a provider's credential stays outside.
func TestAVariableIsPassedToAnAgentInTheSandbox(t *testing.T) {
	t.Parallel()
	p := newFixture(t, `echo "$PASSED $HOST_TOKEN $OWN" > "$AGENTSH_OUTPUT_DIR/said"`,
		"env: {sandbox: {OWN: mine}}\ncontainer: {env_passthrough: [PASSED, HOST_TOKEN, OWN]}\nproviders: [github]")
	p.write("providers/github.yaml",
		"name: github\ntype: rest\ncredentials: {TOKEN: \"${HOST_TOKEN}\"}\nendpoints: ['api.provider.test:443']\nheader: Authorization\n", 0o644)
	p.setenv = []string{"PASSED=on", "OWN=theirs"}
	if _, code := p.run(); code != 0 {
		t.Fatalf("exit %d", code)
	}
	if said := p.read("out/output/said"); !strings.HasPrefix(said, "on agentsh-placeholder-") || !strings.HasSuffix(said, " mine\n") {
		t.Error(said)
	}
}
