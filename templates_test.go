package agentsh

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	schemaLine = regexp.MustCompile(`(?m)^# yaml-language-server: \$schema=/usr/share/agentsh/schemas/([a-z]+)\.schema\.json$`)
	schemaKind = regexp.MustCompile(`"([a-z]+)": \{"(?:policy|schema)", `)
)

// TestEveryTemplateNamesItsSchema: people copy these files, and their editors then
// complete keys. The packages have each schema that is named.
func TestEveryTemplateNamesItsSchema(t *testing.T) {
	text, err := os.ReadFile("packaging/release/files.go")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{}
	for _, m := range schemaKind.FindAllStringSubmatch(string(text), -1) {
		kinds[m[1]] = true
	}
	named := map[string]bool{}
	for _, pattern := range []string{
		"packaging/*.yaml", "packaging/policies/*.yaml", "examples/policies/*.yaml", "examples/*/harness.yaml", "examples/*/policy.yaml",
		"examples/*/providers/*.yaml", "cmd/agentctl/starter/*.yaml.tmpl", "cmd/agentctl/example/*/*.yaml",
	} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Errorf("%s: %v, %d files", pattern, err, len(files))
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			m := schemaLine.FindStringSubmatch(string(text))
			if m == nil {
				t.Errorf("%s has no line '# yaml-language-server: $schema=...'", file)
				continue
			}
			named[m[1]] = true
			want := map[bool]string{true: "tests"}[strings.Contains(filepath.Base(file), "_test.yaml")]
			if want != "" && m[1] != want || !kinds[m[1]] {
				t.Errorf("%s names the schema of %s; the packages have %v", file, m[1], kinds)
			}
		}
	}
	for _, kind := range []string{"policy", "tests", "harness", "provider", "config"} {
		if !named[kind] {
			t.Errorf("no template names the schema of %s, or the packages lack it: %v", kind, kinds)
		}
	}
}
