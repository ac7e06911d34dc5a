package openshell

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/policy"
	"agentsh/policy/syntax"
)

var update = flag.Bool("update", false, "write the golden files")

// inSandbox are the variables of policies in a sandbox.
var inSandbox = map[string]string{
	"WORKSPACE": "/sandbox/workspace", "PROJECT_ROOT": "/sandbox/workspace", "GIT_ROOT": "/sandbox/workspace",
	"HOME": "/sandbox", "TMPDIR": "/tmp",
}

func loaded(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := syntax.Load(policy.Source{Name: "p.yaml", Data: []byte(text)}, syntax.Options{Vars: inSandbox})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return p
}

const held = `version: 1
name: held
command_rules:
  - {name: all, commands: ['*'], decision: allow}
file_rules:
  - {name: system, paths: ['/usr/**', '/lib/**', '/etc/**', '/app/**', '/var/log/**', '/proc/**', /dev/urandom], operations: [read, list, stat, execute], decision: allow}
  - {name: work, paths: ['${WORKSPACE}/**', '/tmp/**'], operations: ['*'], decision: allow}
network_rules:
  - {name: no-admin, domains: [api.example.com], ports: [443, 8443], methods: [DELETE], decision: deny}
  - {name: api, domains: [api.example.com], ports: [443, 8443], methods: [GET, HEAD, POST, DELETE], decision: allow}
  - {name: upload, domains: ['*.files.example.com'], ports: [443], methods: [PUT], paths: ['/v1/**'], decision: allow}
  - {name: inside, cidrs: [10.1.0.0/16], ports: [5432], decision: allow}
  - {name: rest, domains: ['*'], decision: deny}
`

func TestAPolicyIsRendered(t *testing.T) {
	r, problems := Render(loaded(t, held), []string{"file_metadata", "private_addresses", "path_readings"})
	if r == nil {
		t.Fatal(problems)
	}
	text, err := r.Text()
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "rendered.yaml")
	if *update {
		if err := os.WriteFile(golden, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || string(want) != string(text) {
		t.Errorf("%v\n%s", err, text)
	}
	parseTheirs(t, text)
}

// TestWhatOpenShellCannotHoldIsRejected: each of these has a rule at line 4 that is rejected.
func TestWhatOpenShellCannotHoldIsRejected(t *testing.T) {
	for _, c := range []struct{ name, rules, word, message string }{
		{"a program", "command_rules:\n  - {name: x, commands: [curl], decision: deny}", "commands", "does not judge commands"},
		{"arguments", "command_rules:\n  - {name: x, commands: ['*'], args: [push], decision: deny}", "commands", "does not judge commands"},
		{"an approval", "network_rules:\n  - {name: x, domains: [a.example], ports: [443], decision: approve}", "approvals", "asks nobody"},
		{"a redirect", "file_rules:\n  - {name: x, paths: ['/srv/**'], operations: [write], decision: redirect, redirect_to: /tmp/x}", "redirect", "redirects nothing"},
		{"a trash", "file_rules:\n  - {name: x, paths: ['/srv/**'], operations: [delete], decision: soft_delete}", "soft_delete", "no deleted files"},
		{"an audit", "file_rules:\n  - {name: x, paths: ['/srv/**'], operations: ['*'], decision: audit}", "audit", "a log of its own"},
		{"signals", "signal_rules:\n  - {name: x, signals: [TERM], target: {type: external}, decision: deny}", "signals", "no rules about signals"},
		{"a Unix socket", "unix_socket_rules:\n  - {name: x, paths: ['/run/**'], decision: deny}", "unix_sockets", "no rules about Unix sockets"},
		{"one operation", "file_rules:\n  - {name: x, paths: ['/srv/**'], operations: [read, list, stat, execute, create], decision: allow}", "file_operations", "only reading"},
		{"no execution", "file_rules:\n  - {name: x, paths: ['/srv/**'], operations: [read, list, stat], decision: allow}", "file_operations", "only reading"},
		{"a pattern", "file_rules:\n  - {name: x, paths: ['/srv/*.key'], operations: [read], decision: allow}", "file_parts", "no patterns"},
		{"a file in a tree", "file_rules:\n  - {name: x, paths: ['/srv/key'], operations: ['*'], decision: deny}\n  - {name: y, paths: ['/srv/**'], operations: ['*'], decision: allow}", "file_parts", "cannot take away"},
		{"a tree in a tree", "file_rules:\n  - {name: x, paths: ['/srv/key/**'], operations: [write, create, delete, rename, link, symlink, mkdir, rmdir, mknod], decision: deny}\n  - {name: y, paths: ['/srv/**'], operations: ['*'], decision: allow}", "file_parts", "cannot take away"},
		{"every port", "network_rules:\n  - {name: x, domains: [a.example], decision: allow}", "", "needs ports"},
		{"a port of a control plane", "network_rules:\n  - {name: x, domains: [a.example], ports: [6443], decision: allow}", "", "refuses port 6443"},
		{"every host", "network_rules:\n  - {name: x, domains: ['*'], ports: [443], decision: allow}", "", "every host"},
		{"a top-level domain", "network_rules:\n  - {name: x, domains: ['*.com'], ports: [443], decision: allow}", "", "cannot hold the host"},
		{"GET alone", "network_rules:\n  - {name: x, domains: ['*.a.example'], ports: [443], methods: [GET], decision: allow}", "", "also about HEAD"},
		{"a pattern in a path", "network_rules:\n  - {name: x, domains: ['*.a.example'], ports: [443], paths: ['/a/*'], decision: allow}", "", "matches slashes"},
		{"a wide network", "network_rules:\n  - {name: x, cidrs: [8.0.0.0/5], ports: [443], decision: allow}", "", "is wider than 10.0.0.0/8"},
		{"loopback", "network_rules:\n  - {name: x, cidrs: [127.0.0.0/8], ports: [443], decision: allow}", "loopback", "loopback"},
		{"a denial of a part", "network_rules:\n  - {name: x, domains: [b.a.example], decision: deny}\n  - {name: y, domains: ['*.a.example'], ports: [443], decision: allow}", "", "cannot deny this before y"},
		{"a private address of a name", "network_rules:\n  - {name: x, domains: [a.example], ports: [443], decision: allow}", "private_addresses", "private address"},
		{"what a program starts", "network_rules:\n  - {name: x, domains: ['*.a.example'], ports: [443], binaries: [git], decision: allow}", "binary_descendants", "what a program starts"},
		{"a path", "network_rules:\n  - {name: x, domains: ['*.a.example'], ports: [443], paths: [/a], decision: allow}", "path_readings", "in several ways"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := loaded(t, "version: 1\nname: x\n"+c.rules+"\n")
			all := []string{}
			for _, g := range Guarantees() {
				if g.Word != c.word {
					all = append(all, g.Word)
				}
			}
			r, problems := Render(p, all)
			at := slices.IndexFunc(problems, func(x policy.Problem) bool { return x.Pos.Line == 4 && strings.Contains(x.Message, c.message) })
			if r != nil || at < 0 || problems[at].Hint == "" {
				t.Fatalf("%v", problems)
			}
			if c.word == "" {
				return
			}
			if !strings.Contains(problems[at].Hint, "give up "+c.word) {
				t.Errorf("the hint is %q", problems[at].Hint)
			}
			r, problems = Render(p, append(all, c.word))
			if r == nil || !slices.Contains(r.Without, c.word) {
				t.Errorf("with %s: %v", c.word, problems)
			}
		})
	}
}

// TestRulesAboutOneHostAreCompared: the rules of OpenShell have no order.
func TestRulesAboutOneHostAreCompared(t *testing.T) {
	for _, c := range []struct{ name, rules, want string }{
		{"a denial between two rules", `
  - {name: a, domains: ['*.a.example'], ports: [443], methods: [POST], decision: allow}
  - {name: b, domains: ['*.a.example'], ports: [443], methods: [POST], decision: deny}
  - {name: c, domains: ['x.a.example'], ports: [443], methods: [POST, PUT], decision: allow}`, "p.yaml:6:5: c: what is denied before it"},
		{"two networks", `
  - {name: a, domains: ['*.a.example'], ports: [443], cidrs: [203.0.113.0/24], decision: allow}
  - {name: b, domains: ['x.a.example'], ports: [443], decision: allow}`, "p.yaml:5:5: b: OpenShell needs the cidrs of a"},
		{"a network alone", `
  - {name: a, domains: ['*.a.example'], ports: [443], decision: allow}
  - {name: b, cidrs: [10.0.0.0/8], ports: [443], decision: allow}`, "p.yaml:5:5: b: OpenShell needs the cidrs of a"},
		{"requests and everything", `
  - {name: a, domains: ['*.a.example'], ports: [443], methods: [POST], decision: allow}
  - {name: b, domains: ['x.a.example'], ports: [443], decision: allow}`, "p.yaml:5:5: b: OpenShell judges either all HTTP requests or none"},
		{"a denial of some requests of everything", `
  - {name: a, domains: ['x.a.example'], methods: [POST], decision: deny}
  - {name: b, domains: ['x.a.example'], ports: [443], decision: allow}`, "p.yaml:5:5: b: a (p.yaml:4:5) denies some of its HTTP requests"},
	} {
		p := loaded(t, "version: 1\nname: x\nnetwork_rules:"+c.rules+"\n")
		r, problems := Render(p, Words())
		if r != nil || !strings.Contains(problems.Error(), c.want) {
			t.Errorf("%s: %v", c.name, problems)
		}
	}
}

// TestThePackagedPolicyForContainersIsRendered: it says once for each rule what is not held.
func TestThePackagedPolicyForContainersIsRendered(t *testing.T) {
	text, err := os.ReadFile("../../packaging/policies/plain.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p := loaded(t, string(text))
	without := []string{"commands", "env", "signals", "file_metadata"}
	_, problems := Render(p, without)
	var hints []string
	for _, x := range problems {
		hints = append(hints, strings.TrimPrefix(x.Hint, "take it out, or give up "))
	}
	want := []string{"file_parts", "file_operations", "file_operations", "file_operations", "loopback"}
	if !slices.Equal(hints, want) {
		t.Errorf("%v\n%v", hints, problems)
	}
	r, problems := Render(p, append(without, "file_parts", "file_operations", "loopback"))
	if r == nil {
		t.Fatal(problems)
	}
	for name, want := range map[string]int{"/usr/bin/env": reads, "/etc/hosts": reads, "/tmp/x": writes, "/root": nothing} {
		if got := level(r.Policy, name); got != want {
			t.Errorf("%s has the rights %d, not %d", name, got, want)
		}
	}
}

// TestWhatIsNeededIsEnough: with all words of Needed a policy is rendered, or what remains cannot be given up.
func TestWhatIsNeededIsEnough(t *testing.T) {
	packs, err := filepath.Glob("../../packaging/policies/*.yaml")
	if err != nil || len(packs) == 0 {
		t.Fatal(packs, err)
	}
	for _, name := range append(packs, "../../test/platforms/openshell/policy.yaml") {
		if strings.HasSuffix(name, "_test.yaml") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := syntax.Load(policy.Source{Name: name, Data: text}, syntax.Options{ReadFile: os.ReadFile, Vars: inSandbox})
		if err != nil {
			t.Fatal(err)
		}
		words, whole := Needed(p, []string{"commands"})
		r, problems := Render(p, words)
		if whole != (r != nil) {
			t.Errorf("%s: enough: %v, %v", name, whole, problems)
		}
		for _, x := range problems {
			if strings.Contains(x.Hint, "give up") {
				t.Errorf("%s: %v is not among %v", name, x, words)
			}
		}
		if r == nil {
			continue
		}
		if !slices.Equal(words, r.Without) {
			t.Errorf("%s: %v is needed, and %v is given up", name, words, r.Without)
		}
		for _, list := range [][]string{r.Policy.ReadOnly, r.Policy.ReadWrite} {
			if sorted := slices.Sorted(slices.Values(list)); len(slices.Compact(sorted)) != len(list) {
				t.Errorf("%s: a path is there twice: %q", name, list)
			}
		}
	}
}

// TestTheCommandOfThePageRenders compares the words of doc/platforms/openshell.md for plain.yaml with what it needs.
func TestTheCommandOfThePageRenders(t *testing.T) {
	page, err := os.ReadFile("../../doc/platforms/openshell.md")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../packaging/policies/plain.yaml")
	if err != nil {
		t.Fatal(err)
	}
	words, whole := Needed(loaded(t, string(text)), nil)
	if want := "--without \\\n        " + strings.Join(words, ",") + " >openshell.yaml\n"; !whole || !strings.Contains(string(page), want) {
		t.Errorf("the page has no %q", want)
	}
}

func TestAnUnknownGuaranteeIsRejected(t *testing.T) {
	_, problems := Render(loaded(t, held), []string{"everything"})
	if len(problems) == 0 || !strings.Contains(problems.Error(), "one of approvals, audit") {
		t.Error(problems)
	}
}

// pick returns one of some values.
func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// some returns a part of values, in their order, at least one.
func some(r *rand.Rand, from ...string) []string {
	var out []string
	for _, x := range from {
		if r.IntN(3) == 0 {
			out = append(out, x)
		}
	}
	if len(out) == 0 {
		out = append(out, pick(r, from...))
	}
	return out
}

func quoted(words []string) string { return "['" + strings.Join(words, "', '") + "']" }

// generated returns a policy. Most of its rules are of the kinds that OpenShell can hold.
func generated(r *rand.Rand) string {
	var out strings.Builder
	out.WriteString("version: 1\nname: generated\ncommand_rules:\n  - {name: all, commands: ['*'], decision: allow}\nfile_rules:\n")
	if r.IntN(8) > 0 {
		fmt.Fprintf(&out, "  - {name: base, paths: %s, operations: [read, list, stat, execute], decision: allow}\n",
			quoted([]string{"/usr/**", "/lib/**", "/etc/**", "/app/**", "/var/log/**", "/proc/**", "/dev/urandom"}))
		out.WriteString("  - {name: tmp, paths: ['/tmp/**'], operations: ['*'], decision: allow}\n")
	}
	for i := range 1 + r.IntN(4) {
		operations := "'*'"
		if r.IntN(2) == 0 {
			operations = "read, list, stat, execute"
		}
		if r.IntN(12) == 0 {
			operations = pick(r, "read, list", "write, create", "delete")
		}
		paths := quoted(some(r, "/srv/**", "/srv/a/**", "/srv/a/b/**", "/opt/**", "/opt/x/**", "/home/*/c", "/srv/a/file"))
		fmt.Fprintf(&out, "  - {name: f%d, paths: %s, operations: [%s], decision: %s}\n",
			i, paths, operations, pick(r, "allow", "allow", "allow", "allow", "deny"))
	}
	out.WriteString("network_rules:\n")
	for i := range 1 + r.IntN(4) {
		fmt.Fprintf(&out, "  - {name: n%d, decision: %s", i, pick(r, "allow", "allow", "deny"))
		if r.IntN(6) == 0 {
			fmt.Fprintf(&out, ", cidrs: %s", quoted(some(r, "10.1.0.0/16", "203.0.113.0/24", "192.168.7.0/24")))
		}
		if r.IntN(8) > 0 || strings.HasSuffix(out.String(), "allow") || strings.HasSuffix(out.String(), "deny") {
			fmt.Fprintf(&out, ", domains: %s", quoted(some(r,
				"a.example.com", "b.example.com", "*.example.com", "*.b.example.com", "x.b.example.com", "other.example.org")))
		}
		if r.IntN(8) > 0 {
			fmt.Fprintf(&out, ", ports: %s", strings.ReplaceAll(quoted(some(r, "443", "80", "8080")), "'", ""))
		}
		if r.IntN(2) == 0 {
			fmt.Fprintf(&out, ", methods: %s", pick(r, "[GET, HEAD]", "[POST]", "[GET, HEAD, POST, DELETE]", "[GET]"))
			if r.IntN(3) == 0 {
				fmt.Fprintf(&out, ", paths: %s", quoted(some(r, "/v1/**", "/v1/admin", "/**", "/v1/admin/**", "/health")))
			}
		}
		if r.IntN(8) == 0 {
			fmt.Fprintf(&out, ", binaries: %s", quoted(some(r, "git", "/usr/bin/curl", "/opt/tool/**")))
		}
		out.WriteString("}\n")
	}
	return out.String()
}

// TestTheRenderedPolicyDecidesLikeTheOriginal: for generated policies that are rendered, 1,000
// generated requests each, both evaluators agree. The requests avoid what the guarantees that are
// given up are about: attributes of files, several readings of a path, and what a program starts.
func TestTheRenderedPolicyDecidesLikeTheOriginal(t *testing.T) {
	rendered, requests, allowed := 0, 0, 0
	for seed := uint64(1); rendered < 150; seed++ {
		if seed > 20_000 {
			t.Fatalf("only %d policies were rendered", rendered)
		}
		r := rand.New(rand.NewPCG(seed, 23))
		private := r.IntN(2) == 0 // addresses of names may be private
		without := []string{"file_metadata", "path_readings", "binary_descendants"}
		if !private {
			without = append(without, "private_addresses")
		}
		text := generated(r)
		p := loaded(t, text)
		out, _ := Render(p, without)
		if out == nil {
			continue
		}
		rendered++
		data, err := out.Text()
		if err != nil {
			t.Fatal(err)
		}
		other := parseTheirs(t, data)
		for range 1000 {
			q := request(r, private)
			d, _ := p.Evaluate(q)
			got := other.allows(q)
			requests++
			if got {
				allowed++
			}
			if d.Permits() != got {
				t.Fatalf("seed %d: %+v: ours %v, theirs %v\n%s\n%s", seed, q, d.Effect, got, text, data)
			}
		}
	}
	if allowed < requests/20 {
		t.Errorf("of %d requests %d are allowed: nothing is compared", requests, allowed)
	}
	t.Logf("%d policies, %d requests, %d allowed", rendered, requests, allowed)
}

func (x theirs) allows(q policy.Request) bool {
	switch q := q.(type) {
	case *policy.FileRequest:
		return x.fileAllowed(q.Path, q.Op)
	case *policy.NetworkRequest:
		return x.networkAllowed(q)
	}
	return false
}

func request(r *rand.Rand, private bool) policy.Request {
	if r.IntN(2) == 0 {
		name := pick(r, "/srv", "/srv/a", "/srv/a/b", "/srv/a/b/c", "/srv/ab", "/srv/a/file", "/opt", "/opt/x", "/opt/x/y", "/home/u/c",
			"/tmp", "/tmp/x", "/usr/bin/env", "/proc/1/stat", "/etc", "/", "/dev/urandom", "/dev/null", "/var/log/x")
		op := pick(r, policy.OpRead, policy.OpWrite, policy.OpExecute, policy.OpCreate, policy.OpDelete, policy.OpRename, policy.OpMkdir,
			policy.OpList)
		if name == "/srv/a/file" || name == "/dev/urandom" {
			op = pick(r, policy.OpRead, policy.OpWrite, policy.OpExecute) // a file has no names in it
		}
		return &policy.FileRequest{Path: name, Op: op}
	}
	addresses := []string{"203.0.113.9", "198.20.0.1", "2606:4700::1"}
	if private {
		addresses = append(addresses, "10.1.2.3", "10.9.9.9", "192.168.7.7", "127.0.0.1", "169.254.169.254", "100.64.0.1")
	}
	q := &policy.NetworkRequest{
		Domain: pick(r, "a.example.com", "b.example.com", "x.b.example.com", "c.example.com", "example.com", "other.example.org",
			"deep.x.b.example.com"),
		Addr: netip.MustParseAddr(pick(r, addresses...)), Port: pick(r, 443, 80, 8080, 22), Protocol: "tcp",
		Binary: pick(r, "/usr/bin/git", "/usr/bin/curl", "/opt/tool/a/b", "/bin/sh"),
	}
	if r.IntN(4) > 0 {
		q.Method = pick(r, "GET", "HEAD", "POST", "PUT", "DELETE")
		q.Path = pick(r, "/", "/v1", "/v1/x", "/v1/admin", "/v1/admin/y", "/health", "/healthy")
	}
	return q
}

// TestThePageNamesAllGuarantees compares doc/platforms/openshell.md with the list.
func TestThePageNamesAllGuarantees(t *testing.T) {
	page, err := os.ReadFile("../../doc/platforms/openshell.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range Guarantees() {
		if !strings.Contains(string(page), "| `"+g.Word+"` | "+g.Meaning+" |\n") {
			t.Errorf("the page has no row for %s: %s", g.Word, g.Meaning)
		}
	}
}

// TestAProblemIsWhereItsKeyIs has a policy behind the rules that a run adds, and one that it extends.
func TestAProblemIsWhereItsKeyIs(t *testing.T) {
	files := map[string]string{
		"p.yaml":    "version: 1\nname: p\nextends: [base.yaml]\nenv_inject: {A: b}\n",
		"base.yaml": "version: 1\nname: base\nenv_policy: {allow: [A]}\nenv_inject: {C: d}\ndefaults: {network: allow}\n",
	}
	first := policy.Source{Name: "agentctl-run.yaml", Data: []byte("version: 1\nname: run\nextends: [p.yaml]\n" +
		"file_rules: [{name: own, paths: [/sandbox], operations: [delete], decision: deny}]\n")}
	read := func(name string) ([]byte, error) { return []byte(files[name]), nil }
	p, err := syntax.Load(first, syntax.Options{Vars: inSandbox, ReadFile: read})
	if err != nil {
		t.Fatal(err)
	}
	_, problems := Render(p, nil)
	var got []string
	for _, x := range problems {
		got = append(got, x.Pos.String()+" "+strings.SplitN(x.Message, ":", 2)[0])
	}
	for _, want := range []string{"p.yaml:4:1 env_inject", "base.yaml:3:1 env_policy", "base.yaml:5:1 the default of command_rules",
		"base.yaml:5:1 defaults", "p.yaml:1:1 attributes of files"} {
		if !slices.Contains(got, want) {
			t.Errorf("no problem %s in\n%s", want, strings.Join(got, "\n"))
		}
	}
}
