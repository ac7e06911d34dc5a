package view

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

// TestAStateThatCommandsCouldChangeIsRefused where no other directory is usable.
func TestAStateThatCommandsCouldChangeIsRefused(t *testing.T) {
	workspace := t.TempDir()
	p, err := syntax.Load(policy.Source{Name: "test.yaml", Data: []byte(`version: 1
name: test
file_rules:
  - {name: workspace, paths: ['${WORKSPACE}', '${WORKSPACE}/**', /tmp, '/tmp/**'], operations: ['*'], decision: allow}
`)}, syntax.Options{Vars: map[string]string{"WORKSPACE": workspace}})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Workspace: []wire.Governed{{Backing: workspace, Path: workspace}}, State: filepath.Join(workspace, "state")}
	if err := os.Mkdir(o.State, 0o700); err != nil {
		t.Fatal(err)
	}
	v := &Plan{Governed: []Governed{{Backing: workspace}}}
	if err := v.excludesState(p, o); err == nil || !strings.Contains(err.Error(), "set TMPDIR to a directory outside") {
		t.Errorf("%v", err)
	}
	o.State = t.TempDir()
	if err := v.excludesState(p, o); err != nil {
		t.Error(err)
	}
}
