package policy_test

import (
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"

	"agentsh/policy"
	"agentsh/policy/glob"
	"agentsh/policy/internal/fixture"
	"agentsh/policy/syntax"
)

const adminClosed = `
network_rules:
  - {name: no-admin, domains: [a.test], paths: ["/admin/**", "/Exact/"], decision: deny}
  - {name: no-writes, domains: [a.test], methods: [POST, PROPFIND], decision: deny}
  - {name: rest, domains: [a.test], methods: [GET], decision: allow}
  - {name: api, domains: [b.test], paths: ["/v1/**"], decision: allow}
  - {name: asked, domains: [c.test], paths: ["/admin/**"], decision: approve}
  - {name: free, domains: [c.test], decision: allow}
  - {name: whole, domains: [d.test], methods: [GET], decision: allow}
`

func toPath(host, method, path string) *policy.NetworkRequest {
	return &policy.NetworkRequest{Domain: host, Addr: netip.MustParseAddr("192.0.2.1"), Port: 443, Protocol: "tcp", Method: method, Path: path}
}

func TestAPathIsJudgedByEveryReadingOfIt(t *testing.T) {
	p := load(t, adminClosed)
	denied := []string{
		"/admin", "/admin/", "/admin/x", "//admin", "/./admin", "/x/../admin", "/x/%2e%2e/admin", "/x/%2E./admin/y", "/%61dmin/x", "/ADMIN/x",
		"/Admin",
		"/x/..;/admin", "/x/..;a=b/admin/y", "/admin;x/y", "/admin;", "/a;/../admin", "/;x/admin", "/x/..%3b/admin", "/x/%2e%2e%3Ba/admin",
		`/admin\x`, `/x\..\admin`, "/x%5c..%5cadmin", "/admin%5cx", "/x/..%5cadmin",
		"/%2561dmin", "/x/%252e%252e/admin", "/x%252f..%252fadmin", "/%252561dmin", "/x/..%25%33%62/admin", "/%25zz/..%252fadmin",
		"/%zz%", // malformed
		"/admin%2fx", "/x/..%2fadmin", "/admin%00", "/admin%0a", "/x/..%c0%afadmin", "/%c1%a1dmin", "/x/%e0%80%ae./admin", "/%25u0061dmin",
		"/%ef%bd%81dmin", "/x/%ef%bc%8e%ef%bc%8e/admin", "/x/..%ef%bc%8fadmin", "/%ef%bc%85%36%31dmin", "/\uff41dmin",
		"/admin.", "/admin%20", "/admin./x", "/admin%3fx", "/admin%23x", "/admin/../x", "/x//../../admin", "/.//admin", "/x/../%2e/admin",
		"/exact", "/Exact", "/EXACT/", "/exact/.", "/%252525252561dmin",
	}
	for _, text := range denied {
		if d, g := p.Evaluate(toPath("a.test", "GET", text)); d.Permits() || text != "/%zz%" && g.Rule != "no-admin" {
			t.Errorf("%q: %s by %s: %s", text, d.Effect, g.Rule, g.Message)
		}
		// A rule that asks is met in the same way.
		if d, _ := p.Evaluate(toPath("c.test", "GET", text)); d.Permits() && !strings.HasPrefix(strings.ToLower(text), "/exact") {
			t.Errorf("%q is not asked about", text)
		}
	}
	for _, text := range []string{"/", "/administrator", "/x/admin", "/a%20b/c", "/a;b=c/d", "/100%25", "/%25zz", "/x%2fy", "/über",
		"/%c3%bcber", "/a.b/c.d", "/a?/admin", "/~user/", "/exactly"} {
		if d, g := p.Evaluate(toPath("a.test", "GET", text)); !d.Permits() {
			t.Errorf("%q: denied by %s: %s", text, g.Rule, g.Message)
		}
	}
}

func TestARuleThatPermitsAPathMeansEveryReadingOfIt(t *testing.T) {
	p := load(t, adminClosed)
	for text, good := range map[string]bool{
		"/v1": true, "/v1/": true, "/v1/x": true, "/v1/a%20b": true, "/v1/%61": true, "/v1/a;b=c/d": true, "/v1//x": true, "/v1/x/../y": true,
		"/v1/a%252fb": true,
		"/v1/100%25":  true, "/v1/a%5cb": true, "/v1/Admin.": true, "/v1/%ef%bd%81": true,
		"/V1/x": false, "/v1/../admin": false, "/v1/..;/admin": false, "/v1/%2e%2e/x": false, "/v1/..%5cx": false, "/v1/..%2fx": false,
		"/v1/..%252fx":             false,
		"/v1/%ef%bc%8e%ef%bc%8e/x": false, "/v1/%ff": false, "/v1/%00": false, "//v1/x": false, "/x/../v1/y": false, "/v1;/../../x": false,
		"/v1/%25u002e": false,
	} {
		if d, g := p.Evaluate(toPath("b.test", "GET", text)); d.Permits() != good {
			t.Errorf("%q: %s: %s", text, d.Effect, g.Message)
		}
	}
}

func TestARefusalNamesTheReadingOfThePath(t *testing.T) {
	p := load(t, adminClosed)
	for _, test := range []struct{ host, path, want string }{
		{"a.test", "/admin/x", "is denied by rule no-admin"},
		{"a.test", "/x/..;/admin", "no-admin; a server may read the path as /admin"},
		{"a.test", "/%2561dmin", "no-admin; a server may read the path as /admin"},
		{"a.test", "/%ff", "no-admin; servers do not agree on how to read the path /%ff"},
		{"b.test", "/v1/..%2fx", "; a server may read the path as /x"},
		{"b.test", "/v2", "no rule allows GET of /v2 at b.test port 443"},
	} {
		if _, g := p.Evaluate(toPath(test.host, "GET", test.path)); !strings.HasSuffix(g.Message, test.want) {
			t.Errorf("%s %s: %s", test.host, test.path, g.Message)
		}
	}
}

func TestAMethodIsATokenInCapitals(t *testing.T) {
	p := load(t, adminClosed)
	for method, want := range map[string]string{
		"GET": "allow by rest", "POST": "deny by no-writes", "PROPFIND": "deny by no-writes", "MKCOL": "deny by default",
		"post": "deny by default", "Get": "deny by default",
		"GET\x20": "deny by default", "G\tT": "deny by default", "GE\u0130": "deny by default", "M-SEARCH": "deny by default",
	} {
		fixture.Expect(t, p, toPath("a.test", method, "/"), want)
	}
	for text, want := range map[string]string{
		"post": "write POST", "Propfind": "write PROPFIND", "'GET POST'": "write [GET, POST]", "''": "is no HTTP method",
		"'*'":   "leave methods out",
		"MKCOL": "", "VERSION-CONTROL": "",
	} {
		_, err := syntax.Load(
			policy.Source{
				Name: "p.yaml",
				Data: []byte("version: 1\nname: p\nnetwork_rules: [{name: a, domains: [a.test], methods: [" + text + "], decision: deny}]\n"),
			},
			syntax.Options{},
		)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// servers are ways in which servers come from the target of a request to the
// path that they route by. They share no code with what is tested.
var servers = map[string]func(string) string{
	"as written":   func(s string) string { return s },
	"net/http":     func(s string) string { return path.Clean("/" + decoded(s)) },
	"nginx":        func(s string) string { return path.Clean("/" + merged(decoded(s))) },
	"before":       func(s string) string { return decoded(path.Clean("/" + s)) },
	"tomcat":       func(s string) string { return path.Clean("/" + decoded(parameters.Replace(";", s))) },
	"servlet late": func(s string) string { return path.Clean("/" + parameters.Replace(";", decoded(s))) },
	"iis":          func(s string) string { return path.Clean("/" + strings.ReplaceAll(decoded(s), `\`, "/")) },
	"windows":      func(s string) string { return strings.TrimRight(path.Clean("/"+decoded(s)), ". ") },
	"two proxies":  func(s string) string { return path.Clean("/" + decoded(decoded(s))) },
	"two servers":  func(s string) string { return path.Clean("/" + decoded(path.Clean("/"+decoded(s)))) },
	"backslash, then decoded again": func(s string) string {
		return path.Clean("/" + decoded(strings.ReplaceAll(decoded(s), `\`, "/")))
	},
	"unicode":        func(s string) string { return path.Clean("/" + norm.NFKC.String(decoded(s))) },
	"query again":    func(s string) string { before, _, _ := strings.Cut(decoded(s), "?"); return path.Clean("/" + before) },
	"semicolon ends": func(s string) string { before, _, _ := strings.Cut(decoded(s), ";"); return path.Clean("/" + before) },
}

type cutter struct{}

var parameters cutter

func (cutter) Replace(_, s string) string {
	var out strings.Builder
	skip := false
	for _, c := range s {
		skip = c != '/' && (skip || c == ';')
		if !skip {
			out.WriteRune(c)
		}
	}
	return out.String()
}

func decoded(s string) string {
	if d, err := url.PathUnescape(s); err == nil {
		return d
	}
	return s
}

func merged(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(c rune) bool { return c == '/' }), "/")
}

func FuzzNoReadingOfADeniedPathIsPermitted(f *testing.F) {
	for _, text := range []string{"/admin", "/x/..;/admin", "/%2561dmin", "/x%5c..%5cadmin", "/x/%ef%bc%8e%ef%bc%8e/admin",
		"/a;b/../%61dmin", "/x/../%252e/admin;y/z", "//a/.././/Admin.", `/..\%3b/x`, "/v1/..%2f"} {
		f.Add(text)
	}
	p := load(f, adminClosed)
	admin, err := glob.Compile(glob.URL, "/admin/**")
	if err != nil {
		f.Fatal(err)
	}
	v1, err := glob.Compile(glob.URL, "/v1/**")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !strings.HasPrefix(text, "/") || strings.ContainsAny(text, "?#") {
			return
		}
		denies, _ := p.Evaluate(toPath("a.test", "GET", text))
		allows, _ := p.Evaluate(toPath("b.test", "GET", text))
		for name, read := range servers {
			got := read(text)
			if denies.Permits() && admin.Match(strings.ToLower(got)) {
				t.Errorf("%q passes, and is %q for %s", text, got, name)
			}
			if allows.Permits() && name != "as written" && name != "before" && !v1.Match(got) && !v1.Match(path.Clean(got)) {
				t.Errorf("%q is permitted below /v1, and is %q for %s", text, got, name)
			}
		}
	})
}

func BenchmarkPathReadings(b *testing.B) {
	p := load(b, adminClosed)
	for _, text := range []string{"/api/v1/items", "/Api/V1/Items", "/a%20b/c;d=e/f%252fg"} {
		b.Run(fmt.Sprintf("%.20q", text), func(b *testing.B) {
			q := toPath("a.test", "GET", text)
			b.ReportAllocs()
			for b.Loop() {
				p.Evaluate(q)
			}
		})
	}
}
