package gitguard

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"agentsh/internal/testenv"
)

func TestFilesOfARepositoryAreJudgedByContent(t *testing.T) {
	worktree := Location{Dir: "/ws/.git/worktrees/w", Roots: []string{"/ws"}}
	tests := []struct {
		name, data string
		at         Location
		ok         bool
	}{
		{"commondir", "../..\n", worktree, true},
		{"commondir", "../../evil\n", worktree, false},
		{"commondir", "../..\n", here, false},
		{"commondir", "/ws/evil", worktree, false},
		{"gitdir", "/ws/w/.git\n", worktree, true},
		{"gitdir", "../../../w/.git\n", worktree, true},
		{"gitdir", "/home/op/.git\n", worktree, false},
		{"gitdir", "/ws/../home/op/.git", worktree, false},
		{"objects/info/alternates", "/ws/a/objects\n# x\n../../b/.git/objects\n", here, true},
		{"objects/info/alternates", "/ws/a/./.git//objects/\n./../../b/./.git/objects\n", here, true},
		{"objects/info/alternates", "/ws/a/./../../home/op/x/objects\n", here, false},
		{"objects/info/alternates", "./a/../../../../x\n", here, false},
		{"objects/info/alternates", "/wsx/a/objects\n", here, false},
		{"objects/info/alternates", "/home/op/x/objects\n", here, false},
		{"objects/info/alternates", "../../../x\n", here, false},
		{"objects/info/alternates", "\"/ws/a\"/../../x\n", here, false},
		{"objects/info/http-alternates", "https://x\n", Location{Dir: "/", Roots: []string{"/ws"}}, false},
		{"hooks/pre-commit", "#!/bin/sh\n", here, false},
		{"hooks/pre-commit.sample", "#!/bin/sh\nevil\n", here, true},
		{"remotes/origin", "URL: ext::evil\n", here, false},
		{"branches/origin", "ext::evil\n", here, false},
		{"rebase-merge/git-rebase-todo", "pick 1 x\n# exec evil\n\nlabel onto\nmerge -C 1 a # b\nupdate-ref refs/heads/x\nbreak\n", here, true},
		{"rebase-merge/git-rebase-todo", "pick 1 x\nexec evil\n", here, false},
		{"rebase-merge/git-rebase-todo", "pick 1 x\r\n \t x evil\r\n", here, false},
		{"rebase-merge/git-rebase-todo", "pick 1\n\x0bexec evil\n", here, false},
		{"sequencer/todo", "revert 1 x\n", here, true},
		{"sequencer/todo", "x evil", here, false},
		{"rebase-merge/strategy", "ort\n", here, true},
		{"rebase-merge/strategy", "x/evil\n", here, false},
		{"sequencer/opts", "[options]\n\tmainline = 1\n\tstrategy = ort\n\tstrategy-option = ours\n", here, true},
		{"sequencer/opts", "[options]\n\tstrategy = x/evil\n", here, false},
		{"config.worktree", "[core]\n\tfsmonitor = evil\n", here, false},
		{"description", "anything", here, true},
		{"info/attributes", "* filter=x", here, true},
	}
	for _, tt := range tests {
		if got := CheckFile(tt.name, []byte(tt.data), nil, tt.at); (len(got) == 0) != tt.ok {
			t.Errorf("%s %q in %s: %v", tt.name, tt.data, tt.at.Dir, got)
		}
		if got := CheckFile(tt.name, []byte(tt.data), []byte(tt.data), tt.at); len(got) > 0 {
			t.Errorf("%s %q was there before: %v", tt.name, tt.data, got)
		}
	}
}

func TestGitFilesAndLinksLeadInside(t *testing.T) {
	at := Location{Dir: "/ws/a/b", Roots: []string{"/ws"}}
	for text, ok := range map[string]bool{
		"gitdir: ../../.git/modules/b\n": true, "gitdir: /ws/.git/worktrees/x\n": true, "gitdir: ../evil\n": false,
		"gitdir: ../x.git/worktrees/w\n": false, "": true,
		"gitdir: evil\n": false, "gitdir: ./evil\n": false, "gitdir: ./.git/x\n": true, "gitdir: ./../../../x\n": false, "gitdir: .\n": false,
		"gitdir: ..\n": false, "gitdir: evil/.git\n": true, "gitdir: .git/worktrees/x\n": true,
		"gitdir: ../../../x\n": false, "gitdir: /home/op/x": false, "gitdir: x/../../../../y": false, "gitdir: ": false, "x": false,
		"gitdir: /wsx": false,
	} {
		if got := CheckGitFile([]byte(text), at); (len(got) == 0) != ok {
			t.Errorf("%q: %v", text, got)
		}
	}
	for text, ok := range map[string]bool{"../x/.git": true, "/ws/x/.git": true, "../x": false, "../../../x/.git": false,
		"/etc/.git": false, "": false} {
		if got := CheckGitLink(text, at); (len(got) == 0) != ok {
			t.Errorf("link to %q: %v", text, got)
		}
	}
	for name, ok := range map[string]bool{"HEAD refs/heads/x": true, "HEAD config": false, "HEAD refs/../x": false, "tAb testing": true,
		"FETCH_HEAD /x": false, "hooks evil": false, "config x": false} {
		link, text, _ := strings.Cut(name, " ")
		if got := CheckLink(link, text); (len(got) == 0) != ok {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestHooksOfLFSPassToTheLetter(t *testing.T) {
	testenv.Need(t, testenv.Program("git"), testenv.Program("git-lfs"))
	dir := t.TempDir()
	for _, args := range [][]string{{"init", "-q", dir}, {"-C", dir, "lfs", "install", "--local"}} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	found, err := Scan(FS(os.DirFS(dir)), Options{Location: Location{Dir: "/ws", Roots: []string{"/ws"}}, Exact: true})
	if err != nil || len(found.Problems) > 0 || !slices.Equal(found.Repositories, []string{".git"}) {
		t.Errorf("%+v, %v", found, err)
	}
	hook, err := os.ReadFile(filepath.Join(dir, ".git/hooks/pre-push"))
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{string(hook) + "evil\n", strings.Replace(string(hook), "exit 2", "evil", 1), "evil;" + string(hook)} {
		if len(CheckFile("hooks/pre-push", []byte(data), nil, here)) == 0 {
			t.Errorf("%q passes", data)
		}
	}
}

func TestNamesThatGitReadsAsDotGit(t *testing.T) {
	for _, name := range []string{".git", ".GIT", ".Git", "git~1", "GIT~1", ".git ", ".git.", ".git. .", ".git::$INDEX_ALLOCATION",
		".g\u200cit", "\ufeff.git", ".gIt\u206f", `a\.git`, `.git\x`} {
		if !IsDotGit(name) {
			t.Errorf("%q is not taken for .git", name)
		}
	}
	for _, name := range []string{"git", ".gitignore", "git~2", ".gi", ".git~1", "x.git", ".gitmodules"} {
		if IsDotGit(name) {
			t.Errorf("%q is taken for .git", name)
		}
	}
}

// bare is a repository that lies in a tree as ordinary files.
func bare(dir, config string) fstest.MapFS {
	return fstest.MapFS{
		dir + "HEAD":           {Data: []byte("ref: refs/heads/main\n")},
		dir + "config":         {Data: []byte(config)},
		dir + "objects/x":      {},
		dir + "refs/x":         {},
		"src/config":           {Data: []byte("[core]\n\tfsmonitor = not git's\n")},
		"src/hooks/use.ts":     {},
		"src/link":             {Mode: fs.ModeSymlink, Data: []byte("/etc")},
		"other/refs/HEAD":      {},
		"other/objects/config": {Data: []byte("x")},
	}
}

func TestScanFindsEveryRepository(t *testing.T) {
	evil := "[core]\n\tbare = false\n\tworktree = /\n\tfsmonitor = evil\n"
	tests := []struct {
		name         string
		tree         fstest.MapFS
		exact        bool
		repositories []string
		problems     []string // beginnings
	}{
		{"nothing", fstest.MapFS{"a": {}, ".gitignore": {}}, true, nil, nil},
		{"a bare one in the tree", bare("a/", evil), true, []string{"a"}, []string{"a/config:3: core.worktree", "a/config:4: core.fsmonitor"}},
		{"the tree itself", bare("", evil), true, []string{""}, []string{"config:3: core.worktree", "config:4: core.fsmonitor"}},
		{"an honest one", bare("a/", "[core]\n\tbare = true\n"), true, []string{"a"}, nil},
		{"another case", bare("A/", strings.ToUpper(evil)), true, []string{"A"}, []string{"A/config:3", "A/config:4"}},
		{"a .git directory", bare("x/.git/", evil), false, []string{"x/.git"}, []string{"x/.git/config:3", "x/.git/config:4"}},
		{"a .git file", fstest.MapFS{"x/.git": {Data: []byte("gitdir: ../../evil\n")}}, true, []string{"x/.git"}, []string{"x/.git:1: gitdir"}},
		{"a .git link", fstest.MapFS{"x/.git": {Mode: fs.ModeSymlink, Data: []byte("/evil")}}, true, []string{"x/.git"}, []string{"x/.git: "}},
		{
			"a spelling of a .git file",
			fstest.MapFS{"x/.GIT": {Data: []byte("gitdir: ../../evil\n")}},
			false,
			[]string{"x/.GIT"},
			[]string{"x/.GIT:1: gitdir"},
		},
		{
			"a worktree's settings",
			fstest.MapFS{"w/HEAD": {}, "w/commondir": {Data: []byte("../evil")}, "w/config.worktree": {Data: []byte("[alias]\n\ta = !b\n")}},
			true,
			[]string{"w"},
			[]string{"w/commondir:1", "w/config.worktree:2: alias.a"},
		},
		{
			"a common directory without HEAD",
			fstest.MapFS{"c/objects/x": {}, "c/refs/x": {}, "c/worktrees/w/x": {}, "c/config": {Data: []byte("[alias]\n\ta = !b\n")}},
			true,
			[]string{"c"},
			[]string{"c/config:2: alias.a"},
		},
		{
			"links",
			fstest.MapFS{
				"r/HEAD":      {},
				"r/objects/x": {},
				"r/refs/x":    {},
				"r/logs/HEAD": {Mode: fs.ModeSymlink, Data: []byte("/home/op/.profile")},
				"r/src/link":  {Mode: fs.ModeSymlink, Data: []byte("/etc")},
				"r/hooks":     {Mode: fs.ModeSymlink, Data: []byte("evil")},
			},
			true,
			[]string{"r"},
			[]string{"r/hooks: ", "r/logs/HEAD: "},
		},
		{
			"a repository whose parts are links",
			fstest.MapFS{
				"r/HEAD":    {Mode: fs.ModeSymlink, Data: []byte("refs/heads/x")},
				"r/objects": {Mode: fs.ModeSymlink, Data: []byte("../o")},
				"r/refs":    {Mode: fs.ModeSymlink, Data: []byte("../p")},
			},
			true,
			[]string{"r"},
			[]string{"r/objects: ", "r/refs: "},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			found, err := Scan(FS(tt.tree), Options{Location: Location{Dir: "/ws", Roots: []string{"/ws"}}, Exact: tt.exact})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(found.Repositories, tt.repositories) {
				t.Errorf("repositories %q, want %q", found.Repositories, tt.repositories)
			}
			if len(found.Problems) != len(tt.problems) {
				t.Fatalf("problems %v, want %q", found.Problems, tt.problems)
			}
			for i, p := range found.Problems {
				if !strings.HasPrefix(p.String(), tt.problems[i]) {
					t.Errorf("problem %q, want %q", p, tt.problems[i])
				}
			}
		})
	}
}

func TestNoLinkLeadsIntoAGitDirectory(t *testing.T) {
	for text, ok := range map[string]bool{
		"x": true, "/ws/.github/x": true, "../.gitignore": true, "a.git": true,
		".git": false, "r/.git": false, "r/.git/": false, "/ws/r/.git/hooks": false, "r/.GIT/x": false, "git~1": false, "r/./.git/../.git": false,
	} {
		if got := CheckAnyLink(text); (len(got) == 0) != ok {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestScanOfACommitRefusesNamesOfDotGit(t *testing.T) {
	tree := fstest.MapFS{
		"a/.git":        {Mode: fs.ModeDir},
		"b/.GIT/config": {},
		"c/git~1":       {Data: []byte("gitdir: ../.git/x")},
		"d/.gitmodules": {},
	}
	files := func(yield func(Entry, error) bool) { // as git ls-tree -r lists them
		for name, f := range tree {
			if !f.Mode.IsDir() && !yield(Entry{Path: name, Read: func() ([]byte, error) { return f.Data, nil }}, nil) {
				return
			}
		}
	}
	tree["a/.git/x"] = &fstest.MapFile{}
	found, err := Scan(files, Options{Location: Location{Dir: "/", Roots: []string{"/"}}, Commit: true})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range found.Problems {
		names = append(names, p.File)
	}
	if want := []string{"a/.git", "b/.GIT", "c/git~1"}; !slices.Equal(names, want) {
		t.Errorf("problems of %q, want %q", names, want)
	}
}

// TestEveryFormOfGitRepositoryIsFound asks git itself, with each set of names.
func TestEveryFormOfGitRepositoryIsFound(t *testing.T) {
	base := t.TempDir()
	parts := []string{"HEAD", "objects", "refs", "config", "commondir"}
	for set := range 1 << len(parts) {
		dir := filepath.Join(base, "worktrees", strings.Repeat("x", set+1))
		for i, name := range parts {
			if set&(1<<i) == 0 {
				continue
			}
			var err error
			switch name {
			case "HEAD":
				err = write(filepath.Join(dir, name), "ref: refs/heads/main\n")
			case "config":
				err = write(filepath.Join(dir, name), "[core]\n\tfsmonitor = evil\n")
			case "commondir":
				err = write(filepath.Join(dir, name), "../../c\n")
			default:
				err = os.MkdirAll(filepath.Join(dir, name), 0o700)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		_ = os.MkdirAll(dir, 0o700)
		_ = os.MkdirAll(filepath.Join(base, "c/objects"), 0o700)
		_ = os.MkdirAll(filepath.Join(base, "c/refs"), 0o700)
		err := exec.Command("git", "--git-dir="+dir, "rev-parse", "--git-dir").Run()
		found, scanErr := Scan(FS(os.DirFS(dir)), Options{Location: here, Exact: true})
		if scanErr != nil {
			t.Fatal(scanErr)
		}
		if err == nil && !slices.Contains(found.Repositories, "") {
			t.Errorf("git takes a directory with the names of set %b, the guard does not", set)
		}
		if err == nil && set&(1<<3|1<<4) != 0 && len(found.Problems) == 0 {
			t.Errorf("set %b passes", set)
		}
	}
}

func write(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(text), 0o600)
}
