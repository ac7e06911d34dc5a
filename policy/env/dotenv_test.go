package env

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

func TestParseReadsWhatAShellReads(t *testing.T) {
	tests := []struct {
		name, in string
		want     []Var
	}{
		{"a plain value", "A=1", []Var{{"A", "1"}}},
		{"an empty value", "A=\nB=''\nC=\"\"\n", []Var{{"A", ""}, {"B", ""}, {"C", ""}}},
		{"export before the name", "export A=1\nexport\tB=2\n", []Var{{"A", "1"}, {"B", "2"}}},
		{"a variable called export", "export=1\n", []Var{{"export", "1"}}},
		{"comments and blank lines", "# c\n\n  # c\nA=1 # c\n", []Var{{"A", "1"}}},
		{"a # inside a word is text", "A=#x\nB=a#b\n", []Var{{"A", "#x"}, {"B", "a#b"}}},
		{"a comment after nothing", "A= # c\n", []Var{{"A", ""}}},
		{"single quotes hold every byte", "A='$x `y` \\n \"'\n", []Var{{"A", "$x `y` \\n \""}}},
		{"single quotes span lines", "A='one\ntwo'\nB=2\n", []Var{{"A", "one\ntwo"}, {"B", "2"}}},
		{"double quotes span lines", "A=\"one\ntwo\"\n", []Var{{"A", "one\ntwo"}}},
		{"escapes in double quotes", `A="\$ \" \\ \` + "`" + ` \n"`, []Var{{"A", "$ \" \\ ` \\n"}}},
		{"a line continued in double quotes", "A=\"one\\\ntwo\"", []Var{{"A", "onetwo"}}},
		{"a backslash outside quotes", `A=a\ b\$c\\`, []Var{{"A", `a b$c\`}}},
		{"a line continued outside quotes", "A=one\\\ntwo", []Var{{"A", "onetwo"}}},
		{"parts in different quotes", `A='it'\''s '"x"y`, []Var{{"A", "it's xy"}}},
		{"a dollar that no shell expands", "A=5$\nB=\"5$ $/\"\n", []Var{{"A", "5$"}, {"B", "5$ $/"}}},
		{"a tilde inside a word", "A=a~b\n", []Var{{"A", "a~b"}}},
		{"glob characters, braces and =", "A=*?[a]{b,c}=d!\n", []Var{{"A", "*?[a]{b,c}=d!"}}},
		{"a later line does not hide an earlier one here", "A=1\nA=2\n", []Var{{"A", "1"}, {"A", "2"}}},
		{"bytes that are not UTF-8", "A='\xff\xfe'\nB=\x81\n", []Var{{"A", "\xff\xfe"}, {"B", "\x81"}}},
		{"indented lines", "  A=1\n\tB=2\n", []Var{{"A", "1"}, {"B", "2"}}},
		{"an empty file", "", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse("x.env", []byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("variables are %q, want %q", got, tt.want)
			}
			for _, shell := range shells {
				for _, v := range lastOf(tt.want) {
					if back := source(t, shell, []byte(tt.in), v.Name); back != v.Value {
						t.Errorf("%s reads %s as %q, Parse as %q", shell, v.Name, back, v.Value)
					}
				}
			}
		})
	}
}

func TestParseReadsFilesOfOtherSystems(t *testing.T) {
	got, err := Parse("x.env", []byte("\xef\xbb\xbfA=1\r\n# c\r\nB='x'\r\nC=\r"))
	if want := []Var{{"A", "1"}, {"B", "x"}, {"C", ""}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("variables are %q, %v, want %q", got, err, want)
	}
}

func TestParseRefusesWithPosition(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"a line that is not an assignment", "A=1\nfoo bar\n", "x.env:2:4: not NAME=value"},
		{"a blank before the =", "A = 1\n", "x.env:1:2: not NAME=value"},
		{"a name starting with a digit", "1A=1\n", "x.env:1:1: not NAME=value"},
		{"a name with a dash", "A-B=1\n", "x.env:1:2: not NAME=value"},
		{"export of a name only", "export A\n", "x.env:1:9: not NAME=value"},
		{"appending", "A+=1\n", "x.env:1:2: not NAME=value"},
		{"a second word", "A=one two\n", "x.env:1:7: text after the value"},
		{"a second assignment", "A=1 B=2\n", "x.env:1:5: text after the value"},
		{"a value after a blank", "A= one\n", "x.env:1:4: text after the value"},
		{"a variable", "A=1\nB=x$A\n", "x.env:2:4: $ would be expanded"},
		{"a variable in double quotes", "B=\"x $A\"\n", "x.env:1:6: $ would be expanded"},
		{"a braced variable", "B=${A}\n", "x.env:1:3: $ would be expanded"},
		{"a special parameter", "B=$$\n", "x.env:1:3: $ would be expanded"},
		{"command substitution", "B=$(id)\n", "x.env:1:3: $( is shell syntax"},
		{"command substitution in double quotes", "B=\"$(id)\"\n", "x.env:1:4: $( is shell syntax"},
		{"a backquote", "B=`id`\n", "x.env:1:3: ` would run"},
		{"a backquote in double quotes", "B=\"a`id`\"\n", "x.env:1:5: ` would run"},
		{"ANSI-C quotes", "B=$'a'\n", "x.env:1:3: $' is shell syntax"},
		{"a tilde", "B=~/x\n", "x.env:1:3: ~ would be expanded"},
		{"a tilde after a colon", "B=a:~/x\n", "x.env:1:5: ~ would be expanded"},
		{"a semicolon", "B=a;id\n", "x.env:1:4: an unquoted ;"},
		{"a pipe", "B=a|id\n", "x.env:1:4: an unquoted |"},
		{"a redirection", "B=a>f\n", "x.env:1:4: an unquoted >"},
		{"an open single quote", "A=1\nB='x\ny\n", "x.env:2:3: the ' is never closed"},
		{"an open double quote", "A=1\nB=\"x\ny\n", "x.env:2:3: the \" is never closed"},
		{"a NUL", "A=a\x00b\n", "x.env:1:4: NUL byte"},
		{"a NUL in single quotes", "A='a\x00b'\n", "x.env:1:5: NUL byte"},
		{"a NUL in double quotes", "A=\"a\x00b\"\n", "x.env:1:5: NUL byte"},
		{"a NUL after a backslash", "A=\\\x00\n", "x.env:1:4: NUL byte"},
		{"a backslash at the end", "A=a\\", "x.env:1:4: \\ at the end"},
		{"a command", "id\n", "x.env:1:3: not NAME=value"},
		{"a file that is too large", strings.Repeat("#", MaxFile+1), "x.env:1:1: the file has"},
		{"too many variables", strings.Repeat("A=1\n", maxVars+1), fmt.Sprintf("x.env:%d:1: more than", maxVars+1)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			vars, err := Parse("x.env", []byte(tt.in))
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("error is %v, want %q first", err, tt.want)
			}
			if vars != nil {
				t.Errorf("variables came with the error: %q", vars)
			}
		})
	}
}

func TestParseReportsEveryLine(t *testing.T) {
	_, err := Parse("x.env", []byte("A=$(a)\nB=1\nC=`c`\n"))
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 2 {
		t.Fatalf("error is %v, want two problems", err)
	}
	var second *SyntaxError
	if !errors.As(joined.Unwrap()[1], &second) || second.Line != 3 {
		t.Errorf("second problem is %v, want it on line 3", joined.Unwrap()[1])
	}
}

func TestParseErrorsHoldNoValue(t *testing.T) {
	_, err := Parse("x.env", []byte("TOKEN=hunter2 hunter2\nT='hunter2\n"))
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error is %v", err)
	}
}

// The shells that must read what Format writes.
var shells = []string{"sh", "bash", "dash", "busybox sh"}

// source lets a shell read a .env file and returns what it finds in a variable.
func source(t testing.TB, shell string, data []byte, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x.env")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	words := append(strings.Fields(shell), "-c", `. "$1"; eval "printf '%s.' \"\$$2\""`, "sh", file, name)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nowhere", "LC_ALL=C.UTF-8"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || stderr.Len() > 0 {
		t.Fatalf("%s: %v, %s", shell, err, stderr.Bytes())
	}
	return strings.TrimSuffix(string(out), ".")
}

// lastOf keeps the last value of each name, as a shell does.
func lastOf(vars []Var) []Var {
	var out []Var
	for i, v := range vars {
		if !slices.ContainsFunc(vars[i+1:], func(w Var) bool { return w.Name == v.Name }) {
			out = append(out, v)
		}
	}
	return out
}

func needShells(t testing.TB) {
	t.Helper()
	testenv.Need(t, testenv.Program("bash"), testenv.Program("dash"), testenv.Program("busybox"))
}

func TestFormatIsReadBackByEveryShell(t *testing.T) {
	needShells(t)
	everyByte := make([]byte, 0, 255)
	for c := 1; c < 256; c++ {
		everyByte = append(everyByte, byte(c))
	}
	values := []string{
		"", "plain", "it's", "'", "''", "'\\''", `a\`, `\`, "$HOME $(id) `id` ${x} $'x'", "~", "#c", "a=b", "!x", "-n", "\n", "\n\n", "x\n",
		"a\nPATH=/evil\n", "\r\n", "\t", "ünï", "\xff\xfe\xc3", "\x01\x7f\x81\x88", string(everyByte), strings.Repeat("'", 500),
	}
	for range 50 {
		v := make([]byte, rand.IntN(40))
		for i := range v {
			v[i] = byte(1 + rand.IntN(255))
		}
		values = append(values, string(v))
	}
	var vars []Var
	for i, v := range values {
		vars = append(vars, Var{fmt.Sprintf("V%d", i), v})
	}
	checkRoundTrip(t, vars)
}

// checkRoundTrip writes vars and lets Parse and every shell read them.
func checkRoundTrip(t testing.TB, vars []Var) {
	t.Helper()
	data, err := Format(vars)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Parse("x.env", data)
	if err != nil || !slices.Equal(back, vars) {
		t.Errorf("Parse reads %q, %v, want %q", back, err, vars)
	}
	file := filepath.Join(t.TempDir(), "x.env")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, shell := range shells {
		// The lengths of the variables are not known to a shell byte for byte:
		// each value is followed by a NUL, which printf can write and no value has.
		script := `. "$1"; shift; for n; do eval "printf '%s\0' \"\$$n\""; done`
		words := append(strings.Fields(shell), "-c", script, "sh", file)
		for _, v := range vars {
			words = append(words, v.Name)
		}
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nowhere", "LC_ALL=C.UTF-8"}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", shell, err, out)
		}
		got := strings.Split(string(out), "\x00")
		if len(got) != len(vars)+1 {
			t.Fatalf("%s wrote %d values, want %d: %q", shell, len(got)-1, len(vars), out)
		}
		for i, v := range vars {
			if got[i] != v.Value {
				t.Errorf("%s reads %q, written was %q", shell, got[i], v.Value)
			}
		}
	}
}

func TestFormatRefuses(t *testing.T) {
	for _, v := range []Var{{"A", "\x00"}, {"", "x"}, {"A B", "x"}, {"A\nB", "x"}, {"A=B", "x"}, {"1A", "x"}, {"Ä", "x"}, {"UID", "1"},
		{"BASH_ARGV", "1"}, {"_", "x"}} {
		if data, err := Format([]Var{v}); err == nil || data != nil {
			t.Errorf("%q was written as %q", v, data)
		}
	}
}

func FuzzFormat(f *testing.F) {
	needShells(f)
	for _, s := range []string{"", "it's", "a\nb", "\xff", "$(x)`y`", "\\"} {
		f.Add("NAME", s)
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		if _, err := Format([]Var{{name, value}}); err != nil {
			if ValidName(name) && !shellOwned(name) && !strings.Contains(value, "\x00") {
				t.Errorf("refused: %v", err)
			}
			return
		}
		if len(value) > 4096 {
			return
		}
		checkRoundTrip(t, []Var{{"VALUE", value}, {"AFTER", "x"}})
	})
}

// FuzzParse compares with bash, which reads what Parse accepts in the same way.
func FuzzParse(f *testing.F) {
	needShells(f)
	for _, s := range []string{"A=1", "export A='x'\n", "A=\"x\\\ny\" # c", "A=\\'b", "A='a'\"b\"c\nB=#d", "A=$B", "A=a;b"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		vars, err := Parse("x.env", data)
		if err != nil {
			if vars != nil {
				t.Errorf("variables came with %v", err)
			}
			return
		}
		if bytes.Contains(data, []byte("\r")) || bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) || bytes.IndexByte(data, 0) >= 0 {
			return // line ends of other systems are read, not as a shell does
		}
		for _, v := range lastOf(vars) {
			if shellOwned(v.Name) || Reserved(v.Name) || strings.HasPrefix(v.Name, "LC_") || v.Name == "LANG" {
				continue
			}
			if got := source(t, "bash", data, v.Name); got != v.Value {
				t.Errorf("bash reads %s as %q, Parse as %q", v.Name, got, v.Value)
			}
		}
	})
}
