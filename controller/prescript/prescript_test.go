package prescript

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func file(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "output")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestWhatAScriptSaysIsRead(t *testing.T) {
	for text, want := range map[string]Output{
		"":                            {},
		"# nothing\n\n":               {},
		"skipped=false\n":             {Values: map[string]string{"skipped": "false"}},
		"skipped=true":                {Skipped: true, Values: map[string]string{"skipped": "true"}},
		" skipped = true \r\n":        {Skipped: true, Values: map[string]string{"skipped": "true"}},
		"reason=a << b = c\nn-1=2":    {Reason: "a << b = c", Values: map[string]string{"reason": "a << b = c", "n-1": "2"}},
		"skipped=true\nskipped=false": {Values: map[string]string{"skipped": "false"}},
	} {
		got, err := Parse(file(t, text))
		if err != nil || got.Skipped != want.Skipped || got.Reason != want.Reason || !maps.Equal(got.Values, want.Values) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestWhatIsNotAnOutputIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		"skipped true":               "line 1 of the output of the script: \"skipped true\" is not NAME=value",
		"a=b\nreason<<END\nx\nEND\n": "line 2 of the output of the script: \"reason<<END\": a value of several lines",
		"SKIPPED=true":               "write skipped in small letters",
		"skipped=yes":                "neither true nor false",
		"skipped=":                   "neither true nor false",
		"1a=b":                       "is no name",
		"=b":                         "is no name",
		"a=\x1b[2J":                  "control character",
		"a=\xff":                     "control character",
		strings.Repeat("#\n", 1<<20): "more than 1048576 bytes",
	} {
		if out, err := Parse(file(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %+v, %v", text, out, err)
		}
	}
	if _, err := Parse(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "removed") {
		t.Errorf("a file that is gone: %v", err)
	}
}

func TestTheNeutralStatusSkipsWhateverTheFileSays(t *testing.T) {
	for _, tt := range []struct{ text, printed, reason string }{
		{"", " nothing to do \x1b", "nothing to do"},
		{"skipped=false\nreason=from the file", "printed", "from the file"},
		{"skipped nonsense", "printed", "printed"},
		{"", strings.Repeat("é", 1000), strings.Repeat("é", 512)},
		{"", "", ""},
	} {
		if out := ParseNeutral(file(t, tt.text), tt.printed); !out.Skipped || out.Reason != tt.reason || out.Values["skipped"] != "true" {
			t.Errorf("%+v: %+v", tt, out)
		}
	}
}

func TestTheOutputReachesTheNextStep(t *testing.T) {
	to := file(t, "before=1\n")
	env := map[string]string{"GITHUB_OUTPUT": to}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	out := Output{Skipped: true, Values: map[string]string{"skipped": "true", "reason": "r", "count": "2"}}
	if err := Relay(out, lookup); err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(to); string(data) != "before=1\n" {
		t.Errorf("without GITHUB_ACTIONS: %q", data)
	}
	env["GITHUB_ACTIONS"] = "true"
	for _, o := range []Output{out, {}} {
		if err := Relay(o, lookup); err != nil {
			t.Fatal(err)
		}
	}
	if data, _ := os.ReadFile(to); string(data) != "before=1\nskipped=true\ncount=2\nreason=r\nskipped=false\n" {
		t.Errorf("%q", data)
	}
	env["GITHUB_OUTPUT"] = filepath.Join(t.TempDir(), "none", "output")
	if err := Relay(out, lookup); err == nil {
		t.Error("an output that cannot be written is no error")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("skipped=true\nreason=x\n")
	f.Add("a<<b=c")
	f.Fuzz(func(t *testing.T, text string) {
		out, err := Parse(file(t, text))
		if err == nil && strings.Count(out.Lines(), "\n") > len(out.Values)+1 {
			t.Errorf("%q becomes %q", text, out.Lines())
		}
	})
}

// A script may put another kind of file in place of its output.
func TestAnOutputThatIsNoRegularFileIsAnError(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{fifo, "/dev/zero", t.TempDir()} {
		ended := make(chan error, 1)
		go func() {
			_, err := Parse(name)
			ended <- err
		}()
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "regular") {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(2 * time.Minute):
			t.Errorf("%s: it is read without an end", name)
			if f, err := os.OpenFile(name, os.O_WRONLY, 0); err == nil {
				_ = f.Close()
			}
			<-ended
		}
	}
}
