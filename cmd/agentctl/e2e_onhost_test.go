package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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
	p.write("harness.yaml", strings.Replace(p.read("harness.yaml"), "/sandbox/claude-config/skills/task/run.sh", p.path("bin/agent"), 1), 0o644)
	return p
}

// TestAnAgentOnTheHostWorksInTheSandbox has an agent that edits and commits by tools. Nothing else of the host is there
// for it: no file, no network but its model's, no variable that the harness does not pass on.
func TestAnAgentOnTheHostWorksInTheSandbox(t *testing.T) {
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
	if host == nil || !host.Session || host.Program != p.path("bin/agent") || !slices.Equal(host.Passed, []string{"MODEL", "OTHER", "PASSED"}) ||
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
