package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/controller"
	"agentsh/internal/wire"
)

// printed is what a command of agentctl prints.
func printed(t testing.TB, cmd *cobra.Command, args ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// checkResult validates a result against the schema that agentctl prints.
func checkResult(t testing.TB, what string, data []byte) {
	t.Helper()
	var s jsonschema.Schema
	if err := json.Unmarshal(printed(t, newSchemaCommand(), "result"), &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	var result map[string]any
	if err := json.Unmarshal(data, &result); err != nil {
		t.Errorf("%s: %v", what, err)
	} else if err := resolved.Validate(result); err != nil {
		t.Errorf("%s is not as agentctl schema result says: %v", what, err)
	}
}

// checkResults validates every result of a run below a directory.
func checkResults(t testing.TB, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "result.json" || !d.Type().IsRegular() || strings.Contains(name, "/repo/") {
			return err
		}
		data, err := os.ReadFile(name)
		if bytes.Contains(data, []byte(`"run_id"`)) {
			checkResult(t, name, data)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestEverySchemaIsOne(t *testing.T) {
	for _, kind := range newSchemaCommand().ValidArgs {
		var s jsonschema.Schema
		if err := json.Unmarshal(printed(t, newSchemaCommand(), kind), &s); err != nil {
			t.Errorf("%s: %v", kind, err)
		} else if _, err := s.Resolve(nil); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestTheSchemaOfResultsDescribesEveryField(t *testing.T) {
	t.Parallel()
	var s jsonschema.Schema
	if err := json.Unmarshal(printed(t, newSchemaCommand(), "result"), &s); err != nil {
		t.Fatal(err)
	}
	var check func(at string, s *jsonschema.Schema)
	check = func(at string, s *jsonschema.Schema) {
		for _, below := range []*jsonschema.Schema{s.Items, s.AdditionalProperties} {
			if below != nil {
				check(at+"[]", below)
			}
		}
		for name, field := range s.Properties {
			if field.Description == "" {
				t.Errorf("%s.%s has no description", at, name)
			}
			check(at+"."+name, field)
		}
	}
	check("", &s)
}

func TestTheSummarySaysWhoChangedAFile(t *testing.T) {
	var out bytes.Buffer
	output.PrintWork(&out, controller.Result{Delivered: true, Changed: []controller.Changed{
		{Path: "a.txt", Status: "modified", By: wire.ByBoth},
		{Path: "d/b.txt", Status: "added", By: wire.ByHost},
		{Path: "c.txt", Status: "deleted"},
	}})
	const want = "\nchanged:\n  modified a.txt (both)\n  added    d/b.txt (host)\n  deleted  c.txt\n"
	if !strings.HasPrefix(out.String(), want) {
		t.Errorf("%q", out.String())
	}
}
