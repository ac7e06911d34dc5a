package mistake

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestDestinationsOfCommandLines(t *testing.T) {
	for text, want := range map[string]string{
		"https://a.test/x": "write a.test:443", "https://a.test:8443": "write a.test:8443", "a.test": "write a.test:443",
		"::1": "write [::1]:443", "“a.test:1”": `write "a.test:1"`, "a.test:443": "", "[::1]:80": "",
	} {
		if got := Destination(text); got.Hint != want {
			t.Errorf("%s: %+v, want %s", text, got, want)
		}
	}
}

func TestWrappedIsTheWholeText(t *testing.T) {
	for text, want := range map[string]bool{
		"“a”": true, "„a“": true, "«a»": true, "“a” and “b”": false,
		"“a": false, "a’": false, "": false, "“": false,
	} {
		if got := Wrapped(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// FuzzFindings: a finding has a hint, ends, and repeats no unprintable text.
func FuzzFindings(f *testing.F) {
	for _, seed := range []string{
		"npm ci", "https://a:1/b?c", "“x”", "10.0.*", "/a:/b", "a,b", "-x y", "Bash(x:*)", "$A", "~", "@", "://",
		"0", "::", "\\",
	} {
		f.Add(seed)
	}
	all := []func(string) Finding{
		Around, Path, Word, Variable, Domain, Network, Port, Destination, Signal, Method, WebPath, Socket, Host,
		func(s string) Finding { return Program(s, true) }, func(s string) Finding { return Program(s, false) },
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) {
			return
		}
		for i, judge := range all {
			got := judge(text)
			if got.Found() != (got.Hint != "") {
				t.Errorf("%d: %q: %+v", i, text, got)
			}
			if strings.ContainsAny(got.Message, "\x00\x1b\n") {
				t.Errorf("%d: %q: %q", i, text, got.Message)
			}
		}
	})
}
