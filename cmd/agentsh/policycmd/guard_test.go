package policycmd

import (
	"bytes"
	"strings"
	"testing"

	"agentsh/policy"
	"agentsh/policy/syntax"
)

func TestExplainNamesPathsThatTheGuardAlsoDecides(t *testing.T) {
	p, err := syntax.Load(
		policy.Source{
			Name: "p.yaml",
			Data: []byte("version: 1\nname: p\ngit_guard: true\nfile_rules: [{name: all, paths: ['/ws/**'], operations: ['*'], decision: allow}]\n"),
		},
		syntax.Options{},
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path string
		op   policy.FileOp
		want bool
	}{
		{"/ws/.git/config", policy.OpWrite, true}, {"/ws/a/.git", policy.OpSymlink, true}, {"/ws/x/hooks/pre-push", policy.OpCreate, true},
		{"/ws/.git/config", policy.OpRead, false}, {"/ws/main.go", policy.OpWrite, false},
	} {
		var out bytes.Buffer
		request := &policy.FileRequest{Path: tt.path, Op: tt.op}
		if err := explainRequest(p, request, "the file server").write(&out, p, request, false); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out.String(), "git_guard at p.yaml:3:12"); got != tt.want {
			t.Errorf("%s %s: %s", tt.op, tt.path, out.String())
		}
	}
}
