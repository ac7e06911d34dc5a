package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// TestSessionsRulesAndFormatsAreCompleted: by the words that cobra's scripts of the shells
// get.
func TestSessionsRulesAndFormatsAreCompleted(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := askingDir(t, "tty")
	session(t, dir, "one")
	if out, err := program(t, dir, append(askingFlags(), "--", "uname")...).CombinedOutput(); exitCode(err) != 126 {
		t.Fatalf("%v %s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "log.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var first wire.Event
	line, _, _ := strings.Cut(string(text), "\n")
	if err := json.Unmarshal([]byte(line), &first); err != nil || first.Session == "" {
		t.Fatalf("%v %q", err, line)
	}
	for words, want := range map[string]string{
		"exec --session":             "one\t",
		"approve":                    "one\t",
		"session destroy":            "one\t",
		"events log.jsonl --rule":    "ask\tpolicy.yaml:",
		"report log.jsonl --session": first.Session + "\t",
		"report -o":                  "markdown\n",
		"policy test -o":             "junit\n",
	} {
		out, err := program(t, dir, append(append([]string{"__complete"}, strings.Fields(words)...), "")...).Output()
		if err != nil || !strings.Contains("\n"+string(out), "\n"+want) {
			t.Errorf("%s: %v %q, want %q", words, err, out, want)
		}
	}
}
