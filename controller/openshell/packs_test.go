package openshell

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/policy"
	"agentsh/policy/syntax"
)

// TestEachPackIsRenderedOrRejectedByLine has the policies of the packages. What is rejected has
// its file and line. For those that are rendered, without what OpenShell cannot hold, both
// evaluators agree on 1,000 requests each, apart from requests that a rule decides which the
// table calls not held.
func TestEachPackIsRenderedOrRejectedByLine(t *testing.T) {
	packs, err := filepath.Glob("../../packaging/policies/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rendered := 0
	for _, file := range packs {
		if strings.HasSuffix(file, "_test.yaml") {
			continue
		}
		p := loadPack(t, file)
		if r, problems := Render(p, nil); r != nil || len(problems) == 0 {
			t.Errorf("%s: nothing is rejected: OpenShell judges no commands", file)
		} else {
			checkPositions(t, file, problems)
		}
		r, problems := Render(p, Words())
		if r == nil {
			checkPositions(t, file, problems)
			t.Logf("%s is rejected: %v", file, problems)
			continue
		}
		rendered++
		comparePack(t, file, p, r)
	}
	if rendered == 0 {
		t.Error("no pack is rendered")
	}
}

func loadPack(t *testing.T, file string) *policy.Policy {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p, err := syntax.Load(policy.Source{Name: file, Data: text}, syntax.Options{ReadFile: os.ReadFile, OutsideWorkspace: true,
		Vars: map[string]string{"WORKSPACE": "/sandbox/workspace", "PROJECT_ROOT": "/sandbox/workspace", "GIT_ROOT": "/sandbox/workspace",
			"HOME": "/sandbox/home", "TMPDIR": "/tmp"}})
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return p
}

func checkPositions(t *testing.T, file string, problems policy.Problems) {
	t.Helper()
	for _, x := range problems {
		if x.Pos.File == "" || x.Pos.Line == 0 || x.Hint == "" {
			t.Errorf("%s: a problem without a line or a hint: %s", file, x)
		}
	}
}

func comparePack(t *testing.T, file string, p *policy.Policy, r *Rendered) {
	t.Helper()
	data, err := r.Text()
	if err != nil {
		t.Fatal(err)
	}
	notHeld := map[policy.Position]bool{}
	for _, row := range r.Rows {
		if strings.HasPrefix(row.Held, "not held") {
			notHeld[row.Pos] = true
		}
	}
	other, random := parseTheirs(t, data), rand.New(rand.NewPCG(1, 23))
	compared, allowed := 0, 0
	for range 20_000 {
		if compared == 1000 {
			break
		}
		q := packRequest(random, p)
		d, why := p.Evaluate(q)
		if notHeld[why.Pos] {
			continue
		}
		compared++
		got := other.allows(q)
		if got {
			allowed++
		}
		if d.Permits() != got {
			t.Errorf("%s: %+v: ours %v by %+v, theirs %v", file, q, d.Effect, why, got)
			return
		}
	}
	if compared < 1000 {
		t.Errorf("%s: only %d requests are compared", file, compared)
	}
	t.Logf("%s: %d requests, %d allowed", file, compared, allowed)
}

// packRequest is a request about something that rules of a policy name, or about something else.
func packRequest(r *rand.Rand, p *policy.Policy) policy.Request {
	if r.IntN(2) == 0 {
		return &policy.FileRequest{
			Path: pick(r, "/usr/bin/env", "/usr/lib/x", "/opt/x/y", "/etc/hosts", "/etc/ssl/x", "/etc/shadow", "/srv/x", "/root/x", "/tmp/x",
				"/tmp/a/b", "/dev/null", "/proc/1/stat", "/sys/x", "/boot/x", "/home/other/x"),
			Op: pick(r, policy.OpRead, policy.OpWrite), // finer ones are given up
		}
	}
	domains := []string{"unknown.example.org"}
	for _, rule := range p.Rules(policy.GroupNetwork) {
		for _, d := range rule.Network.Domains {
			domains = append(domains, strings.ReplaceAll(d.String(), "*", "x"))
		}
	}
	q := &policy.NetworkRequest{
		Domain: pick(r, domains...), Addr: netip.MustParseAddr(pick(r, "203.0.113.9", "198.20.0.1")), Port: pick(r, 443, 80, 22), Protocol: "tcp",
		Binary: pick(r, "/usr/bin/git", "/usr/bin/curl"),
	}
	if r.IntN(2) == 0 {
		q.Method, q.Path = pick(r, "GET", "HEAD", "POST", "DELETE"), pick(r, "/", "/v1/x")
	}
	return q
}
