package syntax

import (
	"strings"
	"testing"

	"agentsh/policy"
)

// TestADirectoryWithAnUnprotectedNameIsWarnedOf: the files below it are protected by
// name only, so another directory of that name goes around the rule.
func TestADirectoryWithAnUnprotectedNameIsWarnedOf(t *testing.T) {
	const tree = "  - {name: rest, paths: ['/ws/**'], operations: ['*'], decision: allow}\n"
	const changing = "operations: [write, create, delete, rename, symlink, mkdir]"
	tests := []struct{ name, rules, want string }{
		{"a file below an open directory", "  - {name: a, paths: ['/ws/.vscode/tasks.json'], " + changing + ", decision: deny}\n" + tree,
			"test.yaml:4:5: rule a: ${PROJECT_ROOT}/.vscode/tasks.json is protected, but ${PROJECT_ROOT}/.vscode itself is not: symlink is permitted there and brings another directory (add '${PROJECT_ROOT}/.vscode/**' to paths, and symlink and rename to operations)"},
		{
			"several",
			"  - {name: a, paths: ['/ws/.vscode/{tasks,launch}.json'], " + changing + ", decision: deny}\n" + tree,
			"${PROJECT_ROOT}/.vscode itself",
		},
		{
			"a tree further down",
			"  - {name: a, paths: ['/ws/.github/workflows/**'], " + changing + ", decision: deny}\n" + tree,
			"${PROJECT_ROOT}/.github itself",
		},
		{
			"braces in the middle",
			"  - {name: a, paths: ['/ws/{.a,.b}/c'], " + changing + ", decision: deny}\n" + tree,
			"${PROJECT_ROOT}/.a itself",
		},
		{
			"at any depth",
			"  - {name: a, paths: ['/ws/**/.vscode/tasks.json'], " + changing + ", decision: deny}\n" + tree,
			"${PROJECT_ROOT}/x/.vscode itself",
		},
		{"two directories", "  - {name: a, paths: ['/ws/{a/x,b/y}'], " + changing + ", decision: deny}\n" + tree, "${PROJECT_ROOT}/b itself"},
		{
			"anywhere",
			"  - {name: a, paths: ['**/.vscode/tasks.json'], " + changing + ", decision: deny}\n" + tree,
			"${PROJECT_ROOT}/.vscode itself",
		},
		{
			"a name in part",
			"  - {name: a, paths: ['/ws/conf[ab]*/x'], " + changing + ", decision: deny}\n" + tree,
			"${PROJECT_ROOT}/confax itself",
		},
		{
			"a whole directory whose name is open",
			"  - {name: a, paths: ['/ws/.vscode/**'], operations: [write, create, delete], decision: deny}\n" + tree,
			"symlink is permitted there",
		},
		{"git's own directory", "  - {name: a, paths: ['/ws/.git/hooks/**'], " + changing + ", decision: deny}\n" + tree,
			"(add the rule {name: git-directory, paths: ['${PROJECT_ROOT}/.git'], operations: [symlink, rename, delete], decision: deny} before it)"},
		{
			"asked about",
			"  - {name: a, paths: ['/ws/.vscode/tasks.json'], " + changing + ", decision: approve}\n" + tree,
			"${PROJECT_ROOT}/.vscode itself",
		},
		{
			"no operation on names",
			"  - {name: a, paths: ['/ws/.vscode/**'], operations: [write], decision: deny}\n  - {name: b, paths: ['/ws/.vscode/tasks.json'], " + changing + ", decision: deny}\n" + tree,
			"${PROJECT_ROOT}/.vscode itself",
		},
		{
			"renaming alone",
			"  - {name: a, paths: ['/ws/.vscode/**'], operations: [write, symlink], decision: deny}\n  - {name: b, paths: ['/ws/.vscode/tasks.json'], " + changing + ", decision: deny}\n" + tree,
			"rename is permitted there",
		},

		{
			"git's own directory with that rule",
			"  - {name: git-directory, paths: ['/ws/.git'], operations: [symlink, rename, delete], decision: deny}\n" +
				"  - {name: a, paths: ['/ws/.git/hooks/**'], " + changing + ", decision: deny}\n" + tree,
			"",
		},
		{"the whole directory", "  - {name: a, paths: ['/ws/.vscode/**'], " + changing + ", decision: deny}\n" + tree, ""},
		{
			"the directory in another rule",
			"  - {name: d, paths: ['/ws/.vscode/**'], operations: [symlink, rename], decision: deny}\n  - {name: a, paths: ['/ws/.vscode/tasks.json'], operations: [write, create], decision: deny}\n" + tree,
			"",
		},
		{"a file at the root", "  - {name: a, paths: ['/ws/Jenkinsfile'], " + changing + ", decision: deny}\n" + tree, ""},
		{"a file at any depth", "  - {name: a, paths: ['/ws/{,**/}.env'], " + changing + ", decision: deny}\n" + tree, ""},
		{
			"where nothing is written",
			"  - {name: a, paths: ['/etc/ssl/private/**'], operations: ['*'], decision: deny}\n  - {name: b, paths: ['/etc/**'], operations: [read], decision: allow}\n" + tree,
			"",
		},
		{"what is read alone", "  - {name: a, paths: ['/ws/keys/a'], operations: [read], decision: deny}\n" + tree, ""},
		{"a permission", "  - {name: a, paths: ['/ws/x/y'], operations: [write], decision: allow}\n" + tree, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, p := range Lint(load(t, "file_rules:\n"+tt.rules)) {
				if p.Code == "open-directory" {
					got = append(got, p.String())
				}
			}
			all := strings.Join(got, "\n")
			if (tt.want == "") != (all == "") || !strings.Contains(all, tt.want) {
				t.Errorf("%q, want %q", all, tt.want)
			}
		})
	}
}

// TestADirectoryAboveTheWorkspaceIsNotWarnedOf: to close it would close the
// whole workspace.
func TestADirectoryAboveTheWorkspaceIsNotWarnedOf(t *testing.T) {
	data := "version: 1\nname: test\nfile_rules:\n" +
		"  - {name: a, paths: ['${WORKSPACE}/Jenkinsfile', '${WORKSPACE}/.vscode/**'], operations: [write, create, delete, rename, symlink, mkdir], decision: deny}\n" +
		"  - {name: rest, paths: ['${WORKSPACE}/**', '/tmp/**'], operations: ['*'], decision: allow}\n"
	p, err := Load(policy.Source{Name: "test.yaml", Data: []byte(data)}, Options{Vars: map[string]string{"WORKSPACE": "/tmp/a/b"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range Lint(p) {
		if problem.Code == "open-directory" {
			t.Error(problem)
		}
	}
}
