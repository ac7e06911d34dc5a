package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"agentsh/controller"
)

func TestABaseByURLIsFetchedWithItsFilesAndRuns(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "", "")
	base := strings.Replace(p.read("harness.yaml"), "command: [/sandbox/claude-config/skills/task/run.sh]",
		`command: [sh, -c, 'env > "$AGENTSH_OUTPUT_DIR/env"']`, 1) +
		"validation_loop: {script: check.sh}\nhost_files: [{src: more.env, dest: /sandbox/workspace/.env.d/more.env}]\n"
	p.write("served/team/harness/base.yaml", base, 0o644)
	p.write("served/team/policy.yaml", p.read("policy.yaml"), 0o644)
	p.write("served/team/agents/tester.md", "# tester\n", 0o644)
	p.write("served/team/skills/task/SKILL.md", "# task\n", 0o644)
	p.write("served/team/check.sh", "#!/bin/sh\nexit 0\n", 0o644)
	p.write("served/team/more.env", "GO_FETCHED=yes\n", 0o644)
	server := httptest.NewTLSServer(http.FileServerFS(os.DirFS(p.path("served"))))
	digest := sha256.Sum256([]byte(base))
	p.write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})), 0o644)
	p.setenv = []string{"SSL_CERT_FILE=" + p.path("ca.pem"), "XDG_CACHE_HOME=" + p.path("cache")}
	p.harness = "mine/child.yaml"
	child := "allowed_remote_resources: [" + server.URL + "/team/]\nbase: " + server.URL + "/team/harness/base.yaml#sha256=" +
		hex.EncodeToString(digest[:]) + "\nrole: mine\n"
	p.write(p.harness, child, 0o644)
	r, code := p.run()
	if code != controller.ExitDone || r.Role != "mine" || r.Agent != "tester" ||
		!strings.Contains(p.read("out/output/env"), "GO_FETCHED=yes") {
		t.Fatalf("exit %d: %+v", code, r.Error)
	}
	server.Close() // everything is stored
	if r, code = p.run(); code != controller.ExitDone {
		t.Errorf("without the server: exit %d: %+v", code, r.Error)
	}
	p.write(p.harness, strings.Replace(child, "/team/]", "/other/]", 1), 0o644)
	if r, code = p.run(); code != controller.ExitConfiguration || len(r.Error.Problems) != 1 ||
		!strings.Contains(r.Error.Problems[0].String(), "mine/child.yaml:2:7: error: the base https://127.0.0.1:") ||
		!strings.Contains(r.Error.Problems[0].Message, "is below no URL of allowed_remote_resources") {
		t.Errorf("not allowed: exit %d: %+v", code, r.Error)
	}
}
