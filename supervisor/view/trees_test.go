package view

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

func TestRulesThatOnlyAFileServerEnforcesAreRejectedWithLine(t *testing.T) {
	dir := t.TempDir()
	p, err := syntax.Load(policy.Source{Name: "test.yaml", Data: []byte(`version: 1
name: test
file_rules:
  - {name: guarded, paths: ['${WORKSPACE}/guarded', '${WORKSPACE}/guarded/**'], operations: [write, create, delete, rename, mkdir, link, symlink, mknod], decision: deny}
  - {name: workspace, paths: ['${WORKSPACE}', '${WORKSPACE}/**', /tmp, '/tmp/**'], operations: ['*'], decision: allow}
`)}, syntax.Options{Vars: map[string]string{"WORKSPACE": dir}})
	if err != nil {
		t.Fatal(err)
	}
	c := New(Options{Workspace: []wire.Governed{{Backing: dir, Path: dir}}, Home: "/home/sandbox", Missing: Missing{FileServer: true}})
	_, err = c.Plan(p, nil)
	var refused *ruleError
	want := "test.yaml:4:5: rule guarded cannot be enforced here: without a file server " + dir + " is allowed or denied as a whole\n" +
		"  to go on: take the rules out, or name a policy of whole trees, such as --policy /etc/agentsh/policies/plain.yaml"
	if !errors.As(err, &refused) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// Names that a rule denies inside a tree that is shown are left out one by one.
func TestDeniedNamesAreHiddenWithoutAFileServer(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "ssh")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ssh_config", "ssh_host_key", "ssh_host_key.pub"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := syntax.Load(policy.Source{Name: "test.yaml", Data: []byte(`version: 1
name: test
file_rules:
  - {name: keys, paths: ['` + dir + `/ssh_host_*'], operations: ['*'], decision: deny}
  - {name: tree, paths: ['` + top + `', '` + top + `/**'], operations: [read, list, stat, execute], decision: allow}
`)}, syntax.Options{})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := New(Options{Home: "/home/sandbox", Missing: Missing{FileServer: true}}).Plan(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(dir, "ssh_host_key"), filepath.Join(dir, "ssh_host_key.pub")}
	if !slices.Equal(plan.masked, want) {
		t.Errorf("hidden: %q", plan.masked)
	}
}
