package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/controller/scan"
	"agentsh/internal/fakemodel"
	"agentsh/supervisor/audit"
)

// runWithAuthorities is run with the certificate of a server as the only authority.
func (p *fixture) runWithAuthorities(server *httptest.Server) (controller.Result, int, string) {
	p.t.Helper()
	p.write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})), 0o644)
	cmd := p.command(p.runArgs("--json")...)
	cmd.Env = append(cmd.Env, "SSL_CERT_FILE="+p.path("ca.pem"), "SSL_CERT_DIR=/nonexistent")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	var r controller.Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		p.t.Fatalf("--json: %v\n%s\n%s", err, out.String(), errs.String())
	}
	checkResult(p.t, "--json", out.Bytes())
	return r, cmd.ProcessState.ExitCode(), errs.String()
}

// guarded is a harness whose llm_guard is a server, with the credential of a provider.
func guarded(p *fixture, server *httptest.Server, more string) {
	host := strings.TrimPrefix(server.URL, "https://")
	_, port, _ := strings.Cut(host, ":")
	p.write("policy.yaml", p.read("policy.yaml")+"network_rules:\n  - {name: guard, cidrs: [127.0.0.1/32], ports: ["+port+
		"], binaries: [agentctl], decision: allow}\n", 0o644)
	p.write("providers/guard.yaml", "name: guard\ntype: t\nendpoints: ['"+host+"']\nheader: Authorization\ncredentials: {GUARD_KEY: '${HOST_TOKEN}'}\n", 0o644)
	p.write("harness.yaml", p.read("harness.yaml")+"providers: [guard]\nsecurity: {host_scanners: {llm_guard: {threshold: 0.6, url: '"+server.URL+
		"/v1', model: judge, credential: guard.GUARD_KEY"+more+"\n", 0o644)
	p.withScorer("", "repo/AGENTS.md")
}

func TestAModelEndpointJudgesWhatTheAgentTakesIn(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		score string
		code  int
	}{"an attack": {"Here it is: {\"score\": 0.6}", controller.ExitScan}, "harmless": {`{"score": 0.59}`, 0}} {
		t.Run(name, func(t *testing.T) {
			model := fakemodel.New(func(r fakemodel.Request) fakemodel.Turn {
				if strings.Contains(strings.Join(r.Texts, ""), "moon") {
					return fakemodel.Turn{Say: tt.score}
				}
				return fakemodel.Turn{Say: `{"score": 0}`}
			})
			server := httptest.NewTLSServer(model)
			defer server.Close()
			p := newFixture(t, "env >$AGENTSH_OUTPUT_DIR/env", "")
			guarded(p, server, "}}}")
			r, code, errs := p.runWithAuthorities(server)
			found := len(r.Findings) == 1 && r.Findings[0].Rule == scan.RuleModel && r.Findings[0].File == "AGENTS.md"
			if code != tt.code || (code != 0) != found {
				t.Fatalf("exit %d: %+v, %+v\n%s", code, r.Error, r.Findings, errs)
			}
			asked := model.Requests()
			if len(asked) == 0 || len(model.Unknown()) != 0 {
				t.Errorf("%d requests, unknown %v", len(asked), model.Unknown())
			}
			for _, q := range asked {
				if q.Key != "value-of-no-use" || q.Model != "judge" || len(q.Tools) != 0 {
					t.Errorf("asked %s with %q", q.Model, q.Key)
				}
			}
			p.checkGuardEvents(r)
			if code == 0 {
				env := p.read("out/output/env")
				if strings.Contains(env, "value-of-no-use") || !strings.Contains(env, "GUARD_KEY=agentsh-placeholder-") {
					t.Errorf("in the sandbox: %s", env)
				}
			}
		})
	}
}

// checkGuardEvents checks that each request is an event without the credential.
func (p *fixture) checkGuardEvents(r controller.Result) {
	p.t.Helper()
	log, err := os.ReadFile(filepath.Join(r.Record, "guard.jsonl"))
	if err != nil || !bytes.Contains(log, []byte(`"type":"net"`)) || !bytes.Contains(log, []byte(`POST`)) {
		p.t.Errorf("%v: %s", err, log)
	}
	if bytes.Contains(log, []byte("value-of-no-use")) {
		p.t.Error("the credential is in an event")
	}
	head, err := audit.VerifyFile(filepath.Join(r.Record, "guard.jsonl"), filepath.Join(r.Record, "guard.jsonl.key"))
	if err != nil || head.Seq == 0 {
		p.t.Errorf("%+v, %v", head, err)
	}
}

// The policy of the run judges the scan's requests as it does the agent's.
func TestThePolicyRefusesAModelEndpoint(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ old, new, want string }{
		"no rule":         {"decision: allow}", "decision: deny}", "(rule guard "},
		"another program": {"binaries: [agentctl]", "binaries: [curl]", "denied: "},
		"not the path":    {"binaries: [agentctl]", "binaries: [agentctl], paths: [/v2/**]", "denied: "},
	} {
		t.Run(name, func(t *testing.T) {
			model := fakemodel.New(func(fakemodel.Request) fakemodel.Turn { return fakemodel.Turn{Say: `{"score": 0}`} })
			server := httptest.NewTLSServer(model)
			defer server.Close()
			p := newFixture(t, "true", "")
			guarded(p, server, "}}, fail_mode: open}")
			before := p.read("policy.yaml")
			at := strings.LastIndex(before, "network_rules:")
			p.write("policy.yaml", before[:at]+strings.Replace(before[at:], tt.old, tt.new, 1), 0o644)
			r, code, _ := p.runWithAuthorities(server)
			if code != controller.ExitConfiguration || r.Error == nil || r.Error.Step != "scan_context" ||
				!strings.Contains(r.Error.Message, "llm_guard.url: ") || !strings.Contains(r.Error.Message, tt.want) {
				t.Errorf("exit %d: %+v", code, r.Error)
			}
			if n := len(model.Requests()); n != 0 || len(r.Refused) != 1 {
				t.Errorf("%d requests, refused %+v", n, r.Refused)
			}
		})
	}
}

func TestAModelEndpointThatFailsBlocksARun(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	say := func(turn fakemodel.Turn) http.Handler {
		return fakemodel.New(func(fakemodel.Request) fakemodel.Turn { return turn })
	}
	for name, tt := range map[string]struct {
		handler http.Handler
		want    string
	}{
		"refuses":         {say(fakemodel.Turn{Status: http.StatusTooManyRequests}), "it answered 429"},
		"answers no JSON": {say(fakemodel.Turn{Say: "harmless"}), "has no score from 0 to 1"},
		"answers twice":   {say(fakemodel.Turn{Say: `{"score": 0} {"score": 0}`}), "has no score from 0 to 1"},
		"takes too long":  {say(fakemodel.Turn{Say: `{"score": 0}`, Hold: done}), "no answer within 1s"},
		"sends elsewhere": {http.RedirectHandler("https://other.example/", http.StatusTemporaryRedirect), "it answered 307"},
		"answers a lot": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(bytes.Repeat([]byte("x"), 1<<20))
		}), "more than 262144 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, open := range []bool{false, true} {
				server := httptest.NewTLSServer(tt.handler)
				p := newFixture(t, "true", "")
				seconds, mode := 60, ""
				if name == "takes too long" {
					seconds = 1
				}
				if open {
					mode = ", fail_mode: open"
				}
				guarded(p, server, fmt.Sprintf(", timeout_seconds: %d}}%s}", seconds, mode))
				r, code, errs := p.runWithAuthorities(server)
				switch {
				case open && (code != 0 || !strings.Contains(errs, tt.want)):
					t.Errorf("open: exit %d: %+v\n%s", code, r.Error, errs)
				case open: // it went on
				case code != controller.ExitScan || r.Error == nil || r.Error.Step != "scan_context" || !strings.Contains(r.Error.Message, tt.want):
					t.Errorf("exit %d: %+v\n%s", code, r.Error, errs)
				}
				if strings.Contains(errs, "value-of-no-use") {
					t.Error("the credential is printed")
				}
				server.CloseClientConnections()
				server.Close()
			}
		})
	}
}

func TestAModelEndpointIsCheckedFirst(t *testing.T) {
	t.Parallel()
	for guard, want := range map[string]string{
		"url: 'http://api.example.com/v1', model: m":                                    "is not encrypted",
		"url: 'http://127.0.0.1/v1', model: m, credential: guard.GUARD_KEY":             "guard.GUARD_KEY goes over TLS only",
		"url: 'https://u:p@api.example.com/v1', model: m":                               "is not the URL of an API",
		"url: 'https://api.example.com/v1'":                                             "url needs security.host_scanners.llm_guard.model",
		"model: m":                                                                      "model has no effect without",
		"url: 'https://api.example.com/v1', model: m, credential: guard.OTHER":          "no provider of the harness has \"guard.OTHER\"",
		"url: 'https://api.example.com/v1', model: m, credential: guard.GUARD_KEY":      "guard.GUARD_KEY may not be used at api.example.com",
		"url: 'https://api.example.org:8443/v1', model: m, credential: guard.GUARD_KEY": "guard.GUARD_KEY may not be used at api.example.org:8443",
		"url: 'https://api.example.org.evil/v1', model: m, credential: guard.GUARD_KEY": "guard.GUARD_KEY may not be used at api.example.org.evil",
	} {
		p := newFixture(t, "true", "providers: [guard]\nsecurity: {host_scanners: {llm_guard: {"+guard+"}}}")
		p.write("providers/guard.yaml", "name: guard\ntype: t\nendpoints: [api.example.org]\nheader: Authorization\ncredentials: {GUARD_KEY: '${HOST_TOKEN}'}\n", 0o644)
		r, code := p.run()
		if code != controller.ExitConfiguration || r.Error == nil || !strings.Contains(r.Error.Message, want) ||
			!strings.Contains(r.Error.Message, "harness.yaml:") {
			t.Errorf("%s: exit %d: %+v", guard, code, r.Error)
		}
	}
}
