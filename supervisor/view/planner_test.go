package view

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

// planFor plans the view of a policy in which DIR stands for a tree with a few
// files outside the workspace.
func planFor(t *testing.T, rules string) (*Plan, string, error) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"work/x", "outside/a/b", "outside/secret/key", "outside/file"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("outside/a", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	text := "version: 1\nname: t\nfile_rules:\n" + strings.ReplaceAll(rules, "DIR", dir)
	p, err := syntax.Load(policy.Source{Name: "t", Data: []byte(text)}, syntax.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pl := planner{
		policy: p, home: "/home/sandbox", workspace: []wire.Governed{{Backing: filepath.Join(dir, "work"), Path: filepath.Join(dir, "work")}},
		newDir: func(path string) (string, error) { return "scratch of " + path, nil },
	}
	v, err := pl.plan()
	return v, dir, err
}

func TestViewFollowsFileRules(t *testing.T) {
	const read = "operations: [read, list, stat, execute]"
	tests := []struct {
		name, rules string
		want        string // "bind X", "noexec X", "governed X", "closed X", "scratch X", "link X", sorted
	}{
		{
			"nothing allowed shows the workspace alone",
			"  - {name: a, paths: ['DIR/nothing'], operations: ['*'], decision: deny}\n",
			"closed /work",
		},
		{"a readable tree is bound",
			"  - {name: a, paths: ['DIR/outside', 'DIR/outside/**'], " + read + ", decision: allow}\n", "closed /work; bind /outside"},
		{"a tree that may not be executed is noexec",
			"  - {name: a, paths: ['DIR/outside', 'DIR/outside/**'], operations: [read, list, stat], decision: allow}\n", "closed /work; noexec /outside"},
		{"a denied place in it is governed",
			"  - {name: d, paths: ['DIR/outside/secret', 'DIR/outside/secret/**'], operations: ['*'], decision: deny}\n" +
				"  - {name: a, paths: ['DIR/outside', 'DIR/outside/**'], " + read + ", decision: allow}\n", "closed /outside/secret; closed /work; bind /outside"},
		{"a denied place that is not there is not",
			"  - {name: d, paths: ['DIR/outside/none/**'], operations: ['*'], decision: deny}\n" +
				"  - {name: a, paths: ['DIR/outside', 'DIR/outside/**'], " + read + ", decision: allow}\n", "closed /work; bind /outside"},
		{"a tree with a pattern across it is governed whole",
			"  - {name: d, paths: ['**/key'], operations: ['*'], decision: deny}\n" +
				"  - {name: a, paths: ['DIR/outside', 'DIR/outside/**'], " + read + ", decision: allow}\n", "closed /work; governed /outside"},
		{"a writable tree outside is governed",
			"  - {name: a, paths: ['DIR/outside', 'DIR/outside/**'], operations: ['*'], decision: allow}\n", "closed /work; governed /outside"},
		{"an audited tree is governed",
			"  - {name: a, paths: ['DIR/outside', 'DIR/outside/**'], " + read + ", decision: audit}\n", "closed /work; governed /outside"},
		{"one file is bound", "  - {name: a, paths: ['DIR/outside/file'], " + read + ", decision: allow}\n", "closed /work; bind /outside/file"},
		{"a link is kept as one", "  - {name: a, paths: ['DIR/link'], " + read + ", decision: allow}\n", "closed /work; link /link"},
		{"scratch directories are private",
			"  - {name: a, paths: [/var/tmp, '/var/tmp/**', /home/sandbox, '/home/sandbox/**'], operations: ['*'], decision: allow}\n",
			"closed /work; scratch /home/sandbox; scratch /var/tmp"},
		{"a scratch directory with differing rules is governed",
			"  - {name: d, paths: ['/var/tmp/no/**'], operations: [write], decision: deny}\n" +
				"  - {name: a, paths: [/var/tmp, '/var/tmp/**'], operations: ['*'], decision: allow}\n",
			"closed /work; governed /var/tmp"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v, dir, err := planFor(t, tt.rules)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, g := range v.Governed {
				word := "governed "
				if g.Closed {
					word = "closed "
				}
				got = append(got, word+strings.TrimPrefix(g.Path, dir))
			}
			for _, b := range v.binds {
				word := "bind "
				if b.noExec {
					word = "noexec "
				}
				got = append(got, word+strings.TrimPrefix(b.path, dir))
			}
			for _, l := range v.links {
				got = append(got, "link "+strings.TrimPrefix(l.path, dir))
			}
			for _, s := range v.Private {
				got = append(got, "scratch "+s)
			}
			slices.Sort(got)
			want := strings.Split(tt.want, "; ")
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("view %q, want %q", got, want)
			}
		})
	}
}

func TestAGovernedPathCannotContainAnother(t *testing.T) {
	_, _, err := planFor(
		t,
		"  - {name: d, paths: ['**/key'], operations: ['*'], decision: deny}\n  - {name: a, paths: ['DIR', 'DIR/**'], operations: ['*'], decision: allow}\n",
	)
	if err == nil || !strings.Contains(err.Error(), "which holds") || !strings.Contains(err.Error(), "t:4:5: rule d divides") {
		t.Errorf("error %v", err)
	}
}
