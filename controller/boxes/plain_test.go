package boxes

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/controller"
)

// TestMessagesSpeakOfWhatTheUserWrote has messages with places in a harness that nobody wrote.
func TestMessagesSpeakOfWhatTheUserWrote(t *testing.T) {
	const dir = "/tmp/agentctl-sandbox-X1"
	for message, want := range map[string]string{
		dir + "/sandbox.yaml:3:5: error: env: no":           "env: no",
		dir + "/sandbox.yaml:3:5: env: no":                  "env: no",
		dir + "/sandbox.md: no agent":                       "no agent",
		"a: agentctl-sandbox-X1/sandbox.yaml:3:5: b":        "a: b",
		"a\n" + dir + "/sandbox.yaml:3:5: b; c":             "a\nb; c",
		"first " + dir + "/sandbox.yaml:1:1: x, " + dir:     "first x, " + dir,
		"remove " + dir + "/sandbox.yaml":                   "remove " + dir + "/sandbox.yaml",
		"/home/me/agentctl-sandbox-Y2/sandbox.yaml:3:5: no": "/home/me/agentctl-sandbox-Y2/sandbox.yaml:3:5: no",
		dir + "/": dir + "/",
		"":        "",
		"write image: NAME in the harness; it is in the harness": "name it with --image NAME, or with image in a specification; " +
			"it is in a specification",
	} {
		err := Plain(&controller.Failure{Err: errors.New(message), Hint: message}, dir+"/sandbox.yaml")
		var f *controller.Failure
		if !errors.As(err, &f) || f.Err.Error() != want || f.Hint != want {
			t.Errorf("%q: %q, want %q", message, err, want)
		}
	}
}

// TestWordsOfAHarnessAreThoseOfItsMessages finds each text that is replaced in the sources of the controller.
func TestWordsOfAHarnessAreThoseOfItsMessages(t *testing.T) {
	var sources strings.Builder
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || filepath.Base(name) == "plain.go" {
			return err
		}
		data, err := os.ReadFile(name)
		sources.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(inWords); i += 2 {
		if !strings.Contains(sources.String(), inWords[i]) {
			t.Errorf("no message has %q", inWords[i])
		}
	}
}
