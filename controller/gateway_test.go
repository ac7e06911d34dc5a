package controller

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/controller/harness"
)

// TestAGatewayThatTheKeyMayNotGoToIsRefused has an agent on the host whose model is elsewhere than its provider says.
func TestAGatewayThatTheKeyMayNotGoToIsRefused(t *testing.T) {
	for name, tt := range map[string]struct{ url, container, endpoints, want, hint string }{
		"another host": {"https://gw.example/v1", "", "api.anthropic.com", "harness.yaml:6:47: error: container.env_passthrough: ANTHROPIC_BASE_URL is " +
			"gw.example, and no credential of the agent's program may go there",
			"write endpoints: ['api.anthropic.com', 'gw.example'] in the provider model at model.yaml:3:13"},
		"another port": {"https://gw.example:8443", "", "gw.example", "ANTHROPIC_BASE_URL is gw.example:8443, and", "'gw.example:8443']"},
		"no TLS":       {"http://gw.example", "", "gw.example", "ANTHROPIC_BASE_URL is an address without TLS", "https"},
		"its endpoint": {"https://gw.example:8443/x", "", "gw.example:8443", "", ""},
		"a pattern":    {"https://eu.gw.example", "", "*.gw.example", "", ""},
		"no session":   {"http://gw.example", ", confine_agent: never", "api.anthropic.com", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{
				"harness.yaml": "agent: a.md\npolicy: p.yaml\nruntime: claude\nrole: x\nproviders: [model.yaml]\n" +
					"container: {harness: false, env_passthrough: [ANTHROPIC_BASE_URL]" + tt.container + "}\n",
				"a.md": "# a\n", "p.yaml": "version: 1\nname: p\n",
				"model.yaml": "name: model\ntype: model\nendpoints: ['" + tt.endpoints + "']\nheader: X-Api-Key\ncredentials: {ANTHROPIC_API_KEY: '${KEY}'}\n",
			} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			h, ps := harness.Load(filepath.Join(dir, "harness.yaml"), harness.Options{})
			if ps.HasErrors() {
				t.Fatal(ps)
			}
			_, err := expand(h, lookupIn([]string{"KEY=a-long-value-of-a-key", "ANTHROPIC_BASE_URL=" + tt.url}))
			said, hint := "", ""
			if err != nil {
				f := asFailure(t.Context(), "expand", err)
				for _, p := range f.Problems {
					said, hint = strings.ReplaceAll(p.String(), dir+"/", ""), strings.ReplaceAll(p.Hint, dir+"/", "")
				}
			}
			if (err == nil) != (tt.want == "") || !strings.Contains(said, tt.want) || !strings.Contains(hint, tt.hint) {
				t.Errorf("%v: %q, %q", err, said, hint)
			}
		})
	}
}
