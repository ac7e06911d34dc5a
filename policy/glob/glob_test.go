package glob

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMatch(t *testing.T) {
	tests := []struct {
		name    string
		kind    Kind
		pattern string
		yes, no []string
	}{
		{"a literal matches itself alone", Path, "/etc/hosts", []string{"/etc/hosts"}, []string{"/etc/hosts2", "/etc", "/etc/hosts/x", ""}},
		{"a star stays in its segment", Path, "/etc/*.conf", []string{"/etc/a.conf", "/etc/.conf"}, []string{"/etc/a/b.conf", "/etc/a.confx"}},
		{"two stars cross segments", Path, "**/.env", []string{"/.env", "/a/.env", "/a/b/.env"}, []string{"/a/.envrc", "/a.env"}},
		{"a tree is the directory and all below", Path, "/usr/**", []string{"/usr", "/usr/bin", "/usr/a/b"}, []string{"/usrlocal", "/us", "/"}},
		{"the root tree is everything", Path, "/**", []string{"/", "/a", "/a/b"}, nil},
		{
			"a tree below a wildcard",
			Path,
			"/home/*/.ssh/**",
			[]string{"/home/a/.ssh", "/home/a/.ssh/id"},
			[]string{"/home/a/b/.ssh", "/home/.ssh"},
		},
		{
			"directories in between, or none",
			Path,
			"/ws/**/.env",
			[]string{"/ws/.env", "/ws/a/.env", "/ws/a/b/.env"},
			[]string{"/ws", "/ws/a.env", "/.env", "/wsx/.env"},
		},
		{"twice in between", Path, "/a/**/b/**/c", []string{"/a/b/c", "/a/x/b/c", "/a/b/y/z/c"}, []string{"/a/c", "/a/bc", "/a/b"}},
		{"nothing but in between", Path, "/**/**/x", []string{"/x", "/a/x", "/a/b/x"}, []string{"/ax"}},
		{"a directory anywhere", Path, "**/secrets/**", []string{"/secrets", "/a/secrets/b/c"}, []string{"/asecrets/b", "/a/secretsb"}},
		{"a question mark is one character, not a slash", Path, "/a?c", []string{"/abc", "/aéc"}, []string{"/a/c", "/ac", "/abbc"}},
		{"a set", Path, "/tty[0-9a]", []string{"/tty0", "/ttya"}, []string{"/ttyb", "/tty", "/tty00"}},
		{"a negated set never matches a slash", Path, "/a[!b]c", []string{"/axc"}, []string{"/abc", "/a/c"}},
		{"a set may hold a bracket first", Path, "/[]x]", []string{"/]", "/x"}, []string{"/y"}},
		{"braces are alternatives and nest", Path, "/{a,b{1,2}}/x", []string{"/a/x", "/b1/x", "/b2/x"}, []string{"/b/x"}},
		{"an escape takes the meaning away", Path, `/a\*\{b`, []string{"/a*{b"}, []string{"/ax{b"}},
		{"text has no separator", Text, "mkfs.*", []string{"mkfs.ext4", "mkfs./"}, []string{"mkfs"}},
		{"a bracket is a program", Text, `\[`, []string{"["}, []string{"x"}},
		{
			"names below a domain at any depth",
			Host,
			"*.example.com",
			[]string{"a.example.com", "a.b.example.com"},
			[]string{"example.com", "badexample.com", ".example.com"},
		},
		{"a star inside a host stays in its label", Host, "api-*.example.com", []string{"api-1.example.com"}, []string{"api-1.x.example.com"}},
		{"the path of a URL may end with a slash", URL, "/api/*/", []string{"/api/v1/"}, []string{"/api/v1"}},
		{"a star ends between characters", Text, "*??", []string{"éa", "\U000935c7\xff", "abc"}, []string{"é", "\U000935c7", "a"}},
		{"a set after a star", Path, "/**/*[!é]", []string{"/a/éa"}, []string{"/a/é", "/é"}},
		{"bytes that are not UTF-8 match", Path, "/a*/?", []string{"/a\xff\xfe/\xff"}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g, err := Compile(test.kind, test.pattern)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range test.yes {
				if !g.Match(s) {
					t.Errorf("%q does not match %q", test.pattern, s)
				}
			}
			for _, s := range test.no {
				if g.Match(s) {
					t.Errorf("%q matches %q", test.pattern, s)
				}
			}
		})
	}
}

func TestCompileRefuses(t *testing.T) {
	tests := []struct {
		name    string
		kind    Kind
		pattern string
	}{
		{"a relative path", Path, "etc/hosts"},
		{"a single star, which crosses no slash", Path, "*"},
		{"an extension anywhere without a directory", Path, "*.env"},
		{"one relative alternative", Path, "{/a,b}"},
		{"a double slash", Path, "/a//b"},
		{"a slash at the end", Path, "/a/"},
		{"dots", Path, "/a/../b"},
		{"a dot", Path, "/a/./b"},
		{"an empty path", Path, ""},
		{"an open set", Text, "a[bc"},
		{"an open brace", Text, "a{b,c"},
		{"a backwards range", Text, "[z-a]"},
		{"an escape of nothing", Text, `a\`},
		{"braces that explode", Text, strings.Repeat("{a,b}", 20)},
		{"braces that nest too deep", Text, strings.Repeat("{", 20) + strings.Repeat("}", 20)},
		{"a pattern that is too long", Text, strings.Repeat("a", MaxPattern+1)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := Compile(test.kind, test.pattern); err == nil {
				t.Errorf("%q compiles", test.pattern)
			}
		})
	}
}

func TestMatchingTimeIsBoundedForEveryPattern(t *testing.T) {
	texts := []string{"/" + strings.Repeat("a", 4000), "/" + strings.Repeat("a/", 2000) + "a"}
	patterns := []string{
		"/" + strings.Repeat("*a", 500) + "b", "/**" + strings.Repeat("a*", 500) + "b", strings.Repeat("**/a", 500) + "/b",
		"/**" + strings.Repeat("?*", 300) + "[b]", "/" + strings.Repeat("*", 2000) + "b",
	}
	start := time.Now()
	for _, p := range patterns {
		g, err := Compile(Path, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range texts {
			if g.Match(s) {
				t.Errorf("%.40q matches", p)
			}
		}
	}
	if d := time.Since(start); d > time.Minute {
		t.Errorf("took %v", d)
	}
}

func TestContainsIsNeverWrong(t *testing.T) {
	patterns := []string{"a", "a*", "*a", "a*b", "*", "ab*", "*ab", "a?b", "[ab]*", "AB_*", "a*c*b", "**", "{a,b}*"}
	texts := []string{"", "a", "b", "ab", "aab", "acb", "abab", "AB_C", "xa", "axb", "ba", "acxb", "aXcYb"}
	for _, p := range patterns {
		for _, q := range patterns {
			a, b := compile(t, Text, p), compile(t, Text, q)
			if !a.Contains(b) {
				continue
			}
			for _, s := range texts {
				if b.Match(s) && !a.Match(s) {
					t.Errorf("%q is said to contain %q, but %q is only in the second", p, q, s)
				}
			}
		}
	}
	for _, pair := range [][2]string{{"*", "a*"}, {"a*", "ab"}, {"a*", "ab*"}, {"AWS_*", "AWS_SECRET_*"}} {
		if !compile(t, Text, pair[0]).Contains(compile(t, Text, pair[1])) {
			t.Errorf("%q contains %q", pair[0], pair[1])
		}
	}
	if compile(t, Path, "/usr/**").Contains(compile(t, Path, "/usr*")) {
		t.Error("/usr/** does not contain /usr*")
	}
}

func TestQuoteMakesALiteral(t *testing.T) {
	for _, s := range []string{"", "/a", `/a*[?]{x,y}\`, "/home/[b"} {
		g := compile(t, Text, Quote(s))
		if l, ok := g.Literal(); !ok || l != s {
			t.Errorf("%q became %q", s, l)
		}
	}
}

func TestBelowNamesWhereAPatternActs(t *testing.T) {
	tests := []struct {
		pattern, root string
		want          []string
		covers        bool
	}{
		{"/ws/**", "/ws", []string{"/ws"}, true},
		{"/ws/**", "/ws/a", []string{"/ws/a"}, true},
		{"/**", "/ws", []string{"/ws"}, true},
		{"/ws/a/*.go", "/ws", []string{"/ws/a"}, false},
		{"/ws/.git/**", "/ws", []string{"/ws/.git"}, false},
		{"**/.env", "/ws", []string{"/ws"}, false},
		{"/etc/*", "/ws", nil, false},
		{"/etc", "/ws", nil, false},
		{"/w*", "/ws", []string{"/ws"}, false},
		{"/wo*", "/ws", nil, false},
		{"/", "/ws", nil, false},
		{"/ws", "/ws", []string{"/ws"}, false},
		{"/ws/{a,b}/**", "/ws", []string{"/ws/a", "/ws/b"}, false},
	}
	for _, test := range tests {
		g := compile(t, Path, test.pattern)
		if got := g.Below(test.root); !slices.Equal(got, test.want) {
			t.Errorf("%s below %s: %q, want %q", test.pattern, test.root, got, test.want)
		}
		if got := g.Covers(test.root); got != test.covers {
			t.Errorf("%s covers %s: %v", test.pattern, test.root, got)
		}
	}
}

func compile(t testing.TB, kind Kind, pattern string) *Glob {
	t.Helper()
	g, err := Compile(kind, pattern)
	if err != nil {
		t.Fatalf("%q: %v", pattern, err)
	}
	return g
}

// FuzzMatch compares the quick matcher with the exhaustive one, and a set with
// its patterns one by one.
func FuzzMatch(f *testing.F) {
	for _, seed := range [][2]string{{"/a/**/b*", "/a/x/bc"}, {"**/*.go", "/x.go"}, {"/{a,b}/?", "/a/x"}, {"/[a-c]*/**", "/b/x"},
		{"*a*b**c?", "aabxbc"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if len(pattern) > 200 || len(text) > 500 {
			return
		}
		for _, kind := range []Kind{Text, Path, Host, URL} {
			g, err := Compile(kind, pattern)
			if err != nil {
				continue
			}
			quick, slow := g.Match(text), slowly(g, text)
			if quick != slow {
				t.Fatalf("kind %d: %q on %q: quick %v, slow %v", kind, pattern, text, quick, slow)
			}
			set := NewSet(kind, []Numbered{{g, 3}, {g, 1}})
			if got := set.First(text, 9, func(int32) bool { return true }); (got == 1) != quick || got != 1 && got != 9 {
				t.Fatalf("kind %d: set of %q on %q: %d, match %v", kind, pattern, text, got, quick)
			}
			if kind == Path && quick && strings.HasPrefix(text, "/") {
				checkTree(t, g, pattern, text)
			}
		}
	})
}

// checkTree checks Below and Dirs against one path that matches.
func checkTree(t *testing.T, g *Glob, pattern, text string) {
	inside := func(list []string) bool {
		return slices.ContainsFunc(list, func(dir string) bool { return under(text, dir) })
	}
	if !inside(g.Dirs()) {
		t.Fatalf("%q matches %q outside %q", pattern, text, g.Dirs())
	}
	for i := 1; i < len(text); i++ {
		if text[i] == '/' && !inside(g.Below(text[:i])) {
			t.Fatalf("%q matches %q outside what is below %q: %q", pattern, text, text[:i], g.Below(text[:i]))
		}
	}
}

// slowly is Match by the exhaustive matcher alone.
func slowly(g *Glob, s string) bool {
	for i := range g.alts {
		a := &g.alts[i]
		tokens := []token{{op: opLiteral, text: a.prefix}}
		if a.prefix == "" {
			tokens = nil
		}
		tokens = append(tokens, a.middle...)
		if a.suffix != "" {
			tokens = append(tokens, token{op: opLiteral, text: a.suffix})
		}
		if matchSlow(tokens, s, a.sep) {
			return true
		}
		if a.tree && matchSlow(append(tokens, token{op: opLiteral, text: "/"}, token{op: opDeep}), s, a.sep) {
			return true
		}
	}
	return false
}

func TestParentsAreTheDirectoriesThatAPatternNames(t *testing.T) {
	for pattern, want := range map[string]string{
		"/ws/.vscode/tasks.json": "/ws /ws/.vscode",
		"/ws/.git/**":            "/ws /ws/.git",
		"/ws/{a,b}/c":            "/ws /ws/a /ws /ws/b",
		"/ws/**/.git/config":     "/ws /ws/x/.git",
		"**/.git/config":         "/.git",
		"/ws/a[bc]?[!d]*\\*/x":   "/ws /ws/abxxx*",
		"/a":                     "",
		"/**":                    "",
	} {
		g, err := Compile(Path, pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(g.Parents(), " "); got != want {
			t.Errorf("%s: %q, want %q", pattern, got, want)
		}
	}
	g, err := Compile(Text, "a/b/c")
	if err != nil || g.Parents() != nil {
		t.Errorf("%v: words have the parents %q", err, g.Parents())
	}
}
