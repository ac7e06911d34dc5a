package view

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

func TestPartsOfAWorkspaceHaveMoreRights(t *testing.T) {
	const read = "  - {name: all, paths: ['${W}/**'], operations: [read, list, stat, execute], decision: allow}\n"
	work := func(part string) string {
		return "  - {name: part, paths: ['${W}/" + part + "'], operations: ['*'], decision: allow}\n"
	}
	tests := []struct {
		name, rules string
		want        []string // paths below the workspace with "w" and "x"; nil: rejected
	}{
		{"all of it", work("**"), []string{" wx"}},
		{"read alone", read, []string{" x"}},
		{"a directory", work("a/**") + read, []string{" x", "a wx"}},
		{"two, one above the other", work("a/b/**") + work("a/**") + read, []string{" x", "a wx", "a/b wx"}},
		{"a directory within", work("a/b/**") + read, []string{" x", "a/b wx"}},
		{"a file", work("file") + read, []string{" x", "file wx"}},
		{"a part without programs", strings.Replace(work("a/**")+read, ", execute]", "]", 1), []string{" ", "a wx"}},
		{"a directory that is missing", work("missing/**") + read, nil},
		{"names that are created later", work("*.log") + read, nil},
		{"a link", work("link") + read, nil},
		{"less rights inside", "  - {name: less, paths: ['${W}/a/b/**'], operations: [write], decision: deny}\n" + work("a/**") + read, nil},
		{"a part that is not read", "  - {name: less, paths: ['${W}/a/**'], operations: [read], decision: deny}\n" + read, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, "a/b"), 0o755), os.WriteFile(filepath.Join(dir, "file"), nil, 0o644),
				os.Symlink("a", filepath.Join(dir, "link"))); err != nil {
				t.Fatal(err)
			}
			p, err := syntax.Load(policy.Source{Name: "t.yaml", Data: []byte("version: 1\nname: t\nfile_rules:\n" + tt.rules)},
				syntax.Options{Vars: map[string]string{"W": dir}})
			if err != nil {
				t.Fatal(err)
			}
			o := Options{Workspace: []wire.Governed{{Backing: dir, Path: dir}}, Missing: Missing{FileServer: true, Namespaces: true}}
			plan, err := New(o).Plan(p, nil)
			if tt.want == nil {
				if err == nil || !strings.Contains(err.Error(), "t.yaml:4:5: rule ") {
					t.Errorf("not rejected by its line: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, o := range plan.open {
				said := strings.TrimPrefix(strings.TrimPrefix(o.path, dir), "/") + " "
				if o.write {
					said += "w"
				}
				if !o.noExec {
					said += "x"
				}
				got = append(got, said)
			}
			if strings.Join(got, ",") != strings.Join(tt.want, ",") {
				t.Errorf("%q, want %q", got, tt.want)
			}
			o.Missing.Namespaces = false // mounts show a directory as a whole
			if _, err := New(o).Plan(p, nil); (err == nil) != (len(tt.want) == 1) {
				t.Errorf("with mounts: %v", err)
			}
		})
	}
}
