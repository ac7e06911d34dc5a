package syntax

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"agentsh/policy"
	"agentsh/policy/internal/fixture"
)

// Who loads the file rules alone decides about files as who loads the whole policy.
func TestFileRulesAloneDecideAsTheWholePolicy(t *testing.T) {
	shipped, err := filepath.Glob("../../packaging/policies/*.yaml")
	if err != nil || len(shipped) == 0 {
		t.Fatal(shipped, err)
	}
	others := 0
	for _, name := range append(shipped, "testdata/balanced.yaml") {
		if ok, _ := filepath.Match("*_test.yaml", filepath.Base(name)); ok {
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		load := func(alone bool) *policy.Policy {
			p, err := Load(policy.Source{Name: name, Data: data}, Options{Vars: fixture.Vars, ReadFile: os.ReadFile, FilesAlone: alone})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		whole, alone := load(false), load(true)
		for _, g := range []policy.Group{policy.GroupCommand, policy.GroupNetwork, policy.GroupUnixSocket, policy.GroupSignal} {
			others += len(whole.Rules(g))
			if n := len(alone.Rules(g)); n != 0 {
				t.Errorf("%s: %d rules of another group", name, n)
			}
		}
		if !reflect.DeepEqual(whole.Rules(policy.GroupFile), alone.Rules(policy.GroupFile)) ||
			!reflect.DeepEqual(whole.Roots(), alone.Roots()) {
			t.Errorf("%s: the file rules differ", name)
		}
		guarded, at := whole.GitGuard()
		if on, pos := alone.GitGuard(); on != guarded || pos != at {
			t.Errorf("%s: git_guard is %v at %v, not %v at %v", name, on, pos, guarded, at)
		}
		for _, path := range []string{"/ws", "/ws/a.go", "/ws/.git/config", "/home/agent/.ssh/id_rsa", "/var/out/a", "/etc/shadow", "/"} {
			if one, all := alone.Tree(path, policy.OpAll), whole.Tree(path, policy.OpAll); !reflect.DeepEqual(one, all) {
				t.Errorf("%s: %s is %+v, not %+v", name, path, one, all)
			}
			for op := policy.FileOp(1); op != 0 && op <= policy.OpAll; op <<= 1 {
				r := &policy.FileRequest{Path: path, Op: op}
				one, why := alone.Evaluate(r)
				all, reason := whole.Evaluate(r)
				if !reflect.DeepEqual(one, all) || !reflect.DeepEqual(why, reason) {
					t.Errorf("%s: %s %v is %+v, not %+v", name, path, op, one, all)
				}
			}
		}
	}
	if others == 0 {
		t.Error("no policy has rules of other groups")
	}
}
