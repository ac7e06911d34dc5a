package text

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestUnprintableCharactersAreEscaped(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"plain text":                        {"grüße, 世界", "grüße, 世界"},
		"an escape sequence":                {"\x1b[31mred", `\x1b[31mred`},
		"a terminal command in one byte":    {"a\u009b2Jb", `a\u009b2Jb`},
		"line ends and tabs":                {"a\nb\r\tc", `a\nb\r\tc`},
		"text that turns its direction":     {"a\u202egpj.exe", `a\u202egpj.exe`},
		"a space without width":             {"a\u200bb", `a\u200bb`},
		"a line separator":                  {"a\u2028b", `a\u2028b`},
		"a letter without a shape":          {"a\u3164\u115fb", `a\u3164\u115fb`},
		"a mark that shows nothing":         {"a\ufe0e\u034fb\U000e0100", `a\ufe0e\u034fb\U000e0100`},
		"a pattern of no dots":              {"a\u2800b", `a\u2800b`},
		"bytes that are not UTF-8":          {"a\xffb\xc3", `a\xffb\xc3`},
		"the character of a decoding error": {"a\ufffdb", "a\ufffdb"},
		"NUL and DEL":                       {"a\x00\x7f", `a\x00\x7f`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Visible(c.in); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestTruncatedTextNamesItsLength(t *testing.T) {
	if got := Short("äöü", 3); got != "äöü" {
		t.Errorf("got %q", got)
	}
	if got := Short("äöüß", 3); got != "äöü... (8 bytes)" {
		t.Errorf("got %q", got)
	}
}

func TestArgumentsCannotBeMisread(t *testing.T) {
	for name, c := range map[string]struct {
		argv []string
		want string
	}{
		"none":                         {nil, ""},
		"plain":                        {[]string{"git", "push", "--force"}, "git push --force"},
		"an empty one":                 {[]string{"a", "", "b"}, `a "" b`},
		"one with a space":             {[]string{"sh", "-c", "echo a b"}, `sh -c "echo a b"`},
		"one with quotes":              {[]string{`a"b`, "c'd"}, `"a\"b" "c'd"`},
		"one with an escape sequence":  {[]string{"\x1b[2J"}, `"\x1b[2J"`},
		"one with an invisible letter": {[]string{"a\u3164", "b"}, `"a\u3164" b`},
		"one that is long": {[]string{"cat", strings.Repeat("x", 100), "more", "still"}, "cat " + strings.Repeat("x",
			36) + "... (100 bytes) ... (2 more arguments)"},
		"one cut within a character": {[]string{strings.Repeat("x", 39) + "ü"}, strings.Repeat("x", 39) + "... (41 bytes)"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Args(c.argv, 40); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func FuzzNothingHiddenIsLeft(f *testing.F) {
	f.Add("a\x1b[0m\u202e\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for _, out := range []string{Visible(s), Short(s, 10), Args([]string{s, s}, 20)} {
			if !utf8.ValidString(out) {
				t.Errorf("%q is not UTF-8", out)
			}
			for _, r := range out {
				if !unicode.IsPrint(r) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) {
					t.Errorf("%q has %U", out, r)
				}
			}
		}
	})
}

// TestNounsAreCounted has each ending.
func TestNounsAreCounted(t *testing.T) {
	for noun, want := range map[string]string{
		"file": "files", "entry": "entries", "key": "keys", "day": "days", "query": "queries", "sandbox": "sandboxes",
		"process": "processes", "patch": "patches", "push": "pushes", "further refusal": "further refusals",
	} {
		if one, two := Count(1, noun), Count(2, noun); one != "1 "+noun || two != "2 "+want || Count(int64(0), noun) != "0 "+want {
			t.Errorf("%s, %s", one, two)
		}
	}
}
