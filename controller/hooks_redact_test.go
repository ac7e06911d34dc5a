package controller

import (
	"strings"
	"testing"

	"agentsh/controller/harness"
	"agentsh/controller/hook"
	"agentsh/controller/scan"
	"agentsh/internal/wire"
)

// If a command prints its environment, the model sees neither values nor
// placeholders.
func TestHooksRedactPlaceholders(t *testing.T) {
	const placeholder, value = placeholderPrefix + "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "the-real-value-of-the-credential"
	p := plan{
		harness: &harness.Harness{}, values: &harness.Expanded{}, credentials: []wire.Credential{{Placeholder: placeholder, Value: value}},
	}
	s, err := hookSettings(p, []string{hook.SecretRedact}, "", hooksInside)
	if err != nil {
		t.Fatal(err)
	}
	got, n := scan.New(scan.Options{Prints: s.Secrets}).Redact([]byte("HOME=/root\nTOKEN=" + placeholder + "\nOTHER=" + value + "\n"))
	if n != 2 || strings.Contains(string(got), "placeholder") || strings.Contains(string(got), value) ||
		!strings.Contains(string(got), "HOME=/root") {
		t.Errorf("%d: %s", n, got)
	}
}
