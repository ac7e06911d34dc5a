package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"agentsh/controller"
)

// counting is a helper program: each call prints the next value, which expires soon.
const counting = `#!/bin/sh
n=$(( $(cat "$COUNTER" 2>/dev/null || echo 0) + 1 ))
echo "$n" > "$COUNTER"
[ -e "$COUNTER.fails" ] && [ "$n" -gt 1 ] && { echo 'the vault is sealed' >&2; exit 1; }
printf '{"value": "real-helper-value-%04d-of-many", "expires": "%s"}\n' "$n" "$(date -u -d "+$LIFETIME seconds" +%Y-%m-%dT%H:%M:%SZ)"
`

// generations is a server that tells which value it got, and repeats it.
type generations struct {
	mu   sync.Mutex
	seen []string
}

func (g *generations) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	value := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	g.seen = append(g.seen, value)
	var n int
	_, _ = fmt.Sscanf(value, "real-helper-value-%04d-of-many", &n)
	fmt.Fprintf(w, "generation %d: %s", n, value)
	for i := range n {
		fmt.Fprintf(w, " real-helper-value-%04d-of-many", i+1)
	}
}

// newHelperFixture is a fixture whose provider has a command.
func newHelperFixture(t *testing.T, agent string) (*fixture, *generations) {
	t.Helper()
	g := &generations{}
	p, s := newProviderFixture(t, agent, "")
	s.instead = g
	p.write("helper.sh", counting, 0o755)
	p.write("providers/github.yaml", "name: github\ntype: rest\ncredentials: {TOKEN: command}\ncommand: ["+p.path("helper.sh")+
		"]\nendpoints: ['api.provider.test:"+s.port+"']\nheader: Authorization\n", 0o644)
	p.setenv = append(p.setenv, "COUNTER="+p.path("counter"), "LIFETIME=8")
	return p, g
}

func TestCredentialsOfACommandAreRenewedDuringARun(t *testing.T) {
	t.Parallel()
	p, g := newHelperFixture(t, `
until curl -sS -H "Authorization: Bearer $TOKEN" PROVIDER >answer.txt 2>&1; grep -q 'generation 3' answer.txt; do sleep 0.2; done
env >variables.txt
git add -A; git commit -q -m answers`)
	r, code := p.run("--agentsh-config", "config.yaml")
	if code != 0 {
		t.Fatalf("exit code %d: %+v", code, r.Error)
	}
	if len(r.Renewals) != 1 || r.Renewals[0].Provider != "github" || r.Renewals[0].Renewed < 2 || r.Renewals[0].Failed != "" ||
		r.Renewals[0].Expires == nil {
		t.Errorf("%+v", r.Renewals)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.IsSorted(g.seen) || g.seen[0] >= "real-helper-value-0003" || g.seen[len(g.seen)-1] != "real-helper-value-0003-of-many" {
		t.Errorf("the server saw %q", g.seen)
	}
	if answer := p.git("show", r.Branch+":answer.txt"); !strings.Contains(answer, "generation 3: ***") {
		t.Errorf("%q", answer)
	}
	p.withoutText("real-helper-value")
}

// withoutText fails the test if a text is in a file that runs leave.
func (p *fixture) withoutText(text string) {
	p.t.Helper()
	for _, dir := range []string{"out", "state", "repo"} {
		err := filepath.WalkDir(p.path(dir), func(name string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) && name == p.path(dir) {
				return nil // no run had results
			}
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(name)
			if strings.Contains(string(data), text) {
				p.t.Errorf("%s is in %s", text, name)
			}
			return err
		})
		if err != nil {
			p.t.Error(err)
		}
	}
}

func TestARunGoesOnWithItsCredentialsWhileTheirCommandFails(t *testing.T) {
	t.Parallel()
	p, _ := newHelperFixture(t, `sleep 9; curl -sS -H "Authorization: Bearer $TOKEN" PROVIDER`)
	p.write("counter.fails", "", 0o644)
	out, errs, code := p.try("", p.runArgs("--agentsh-config", "config.yaml")...)
	if code != 0 || !strings.Contains(out, "generation 1") ||
		!strings.Contains(errs, "warning: the credentials of the provider github are not renewed, and expire at ") ||
		!strings.Contains(
			errs,
			"the vault is sealed",
		) || !strings.Contains(errs, "warning: the credentials of the provider github have expired") {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
	var r controller.Result
	p.readJSON("out/result.json", &r)
	if len(r.Renewals) != 1 || !strings.Contains(r.Renewals[0].Failed, "the vault is sealed") {
		t.Errorf("%+v", r.Renewals)
	}
	p.withoutText("real-helper-value")
}

func TestACommandThatGivesNoCredentialEndsTheRunBeforeASandbox(t *testing.T) {
	t.Parallel()
	p, _ := newHelperFixture(t, "true")
	for script, want := range map[string]struct {
		code int
		says string
	}{
		"echo real-helper-value >&1; echo 'permission denied: login first' >&2; exit 2": {controller.ExitSandbox, "exit status 2: permission denied: login first"},
		"echo real-helper-value-1; echo real-helper-value-2":                            {controller.ExitConfiguration, "more than one line"},
		"sleep 1000": {controller.ExitSandbox, "did not end within 1s"},
	} {
		p.write("helper.sh", "#!/bin/sh\n"+script+"\n", 0o755)
		provider := strings.Split(p.read("providers/github.yaml"), "timeout_seconds")[0]
		p.write("providers/github.yaml", provider+"timeout_seconds: 1\n", 0o644)
		_, errs, code := p.try("", p.runArgs("--agentsh-config", "config.yaml")...)
		if code != want.code || !strings.Contains(errs, "providers/github.yaml:4:11: command of the provider github: ") ||
			!strings.Contains(errs, want.says) || !strings.Contains(errs, "hint: ") || strings.Contains(errs, "real-helper-value") {
			t.Errorf("%s: %d %s", script, code, errs)
		}
	}
	if out, _, code := p.try("", "lint", "--repo", "repo", "--agentsh-config", "config.yaml", "-o", "json", "harness.yaml"); code != 0 ||
		!strings.Contains(out, "preflight: the command of a provider may fail") {
		t.Errorf("lint: %d %s", code, out)
	}
	p.withoutText("real-helper-value")
}
