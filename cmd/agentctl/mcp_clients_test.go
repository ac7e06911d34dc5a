package main

import (
	"context"
	"encoding/base64"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentsh/controller"
)

// authorized adds a token to requests.
type authorized struct{ token string }

func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+a.token)
	return http.DefaultTransport.RoundTrip(r)
}

// TestARunServesItsToolsOverHTTP has clients with a token of a file and with a new one. SIGTERM has the work taken out.
func TestARunServesItsToolsOverHTTP(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]bool{"a token of a file": true, "a new token": false} {
		t.Run(name, func(t *testing.T) {
			p := newFixture(t, "exit 1", "")
			token := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
			flags := []string{"mcp", "--policy", "policy.yaml", "--repo", "repo", "--out", "out", "--listen", "127.0.0.1:0"}
			if own {
				p.write("token", token+"\n", 0o600)
				flags = append(flags, "--token-file", "token")
			}
			log, err := os.Create(p.path("log"))
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			cmd := p.command(flags...)
			cmd.Stderr = log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			said := func(pattern string) string {
				found := regexp.MustCompile(`(?m)^agentctl: ` + pattern + `$`).FindStringSubmatch(p.read("log"))
				if found == nil {
					return ""
				}
				return found[1]
			}
			last := `tools at (http://127\.0\.0\.1:\d+/mcp)`
			if !own {
				last = `token: (\S+)`
			}
			eventually(t, func() bool { return said(last) != "" || strings.Contains(p.read("log"), "hint:") })
			if !own {
				token = said(last)
			} else if strings.Contains(p.read("log"), token) {
				t.Error("the token of a file is printed")
			}
			client, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(context.Background(),
				&mcp.StreamableClientTransport{
					Endpoint: said(`tools at (\S+)`), HTTPClient: &http.Client{Transport: authorized{token}}, DisableStandaloneSSE: true,
				}, nil)
			if err != nil {
				t.Fatalf("%v\n%s", err, p.read("log"))
			}
			b := &toolbox{t: t, session: client}
			b.says("edit", args{"path": "a.txt", "old_text": "one", "new_text": "two"}, "/sandbox/workspace/repo/a.txt")
			b.says("exec", args{"command": "git commit -qam second && git log --oneline"}, "second")
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v\n%s", err, p.read("log"))
			}
			var r controller.Result
			p.readJSON("out/result.json", &r)
			if r.Status != controller.StatusDone || len(r.Commits) != 1 || p.git("show", r.Branch+":a.txt") != "two" {
				t.Errorf("%+v\n%s", r, p.read("log"))
			}
		})
	}
}

// TestAnOpenAddressNeedsAnExplicitFlag holds what --listen and its flags refuse, before there is a sandbox.
func TestAnOpenAddressNeedsAnExplicitFlag(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "exit 1", "")
	p.write("open", base64.StdEncoding.EncodeToString(make([]byte, 32)), 0o644)
	p.write("short", "c2hvcnQ=", 0o600)
	for flags, want := range map[string]string{
		"--listen 0.0.0.0:0":                       "add --listen-remote",
		"--listen [::]:0":                          "add --listen-remote",
		"--listen 192.0.2.1:0":                     "add --listen-remote",
		"--listen 192.0.2.1:0 --listen-remote":     "assign requested address",
		"--listen localhost:0":                     "as in 127.0.0.1:8080",
		"--listen :0":                              "as in 127.0.0.1:8080",
		"--listen-remote":                          "belong to --listen",
		"--token-file open":                        "belong to --listen",
		"--listen 127.0.0.1:0 --token-file open":   "chmod 600",
		"--listen 127.0.0.1:0 --token-file short":  "32 bytes",
		"--listen 127.0.0.1:0 --token-file nosuch": "no such file",
	} {
		cmd := p.command(append([]string{"mcp", "--policy", "policy.yaml", "--repo", "repo"}, strings.Fields(flags)...)...)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v %s", flags, err, out)
		}
	}
}
