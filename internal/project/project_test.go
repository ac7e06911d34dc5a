package project

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/paths"
	"agentsh/internal/testenv"
	"agentsh/policy"
)

// tree makes files below a fresh directory without links; a name that ends with / is a
// directory.
func tree(t *testing.T, names ...string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		file := filepath.Join(dir, name)
		parent := filepath.Dir(file)
		if strings.HasSuffix(name, "/") {
			parent = file
		}
		if err := os.MkdirAll(parent, 0o755); err != nil {
			t.Fatal(err)
		}
		if parent != file {
			put(t, file, name)
		}
	}
	return dir
}

func put(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTheWorkspaceIsTheRepositoryAround(t *testing.T) {
	dir := tree(t, "a/.git/HEAD", "a/b/c/", "linked/.git", "linked/x/", "empty/.git/", "empty/x/", "home/.git/HEAD", "home/x/y/")
	for _, test := range []struct{ name, from, home, want string }{
		{"deep inside", "a/b/c", "", "a"},
		{"at the root", "a", "", "a"},
		{"a linked working tree", "linked/x", "", "linked"},
		{"a .git without HEAD is no repository", "empty/x", "", "empty/x"},
		{"no repository", "empty", "", "empty"},
		{"a repository in the home is not the project", "home/x/y", "home", "home/x/y"},
		{"nor one that holds the home", "home/x", "home/x/y", "home/x"},
		{"the home itself", "home", "home", "home"},
	} {
		t.Run(test.name, func(t *testing.T) {
			home := ""
			if test.home != "" {
				home = filepath.Join(dir, test.home)
			}
			if got := Root(filepath.Join(dir, test.from), "", home); got != filepath.Join(dir, test.want) {
				t.Errorf("from %s: %s", test.from, got)
			}
		})
	}
}

func TestARepositoryOfAnotherUserIsNotTheWorkspace(t *testing.T) {
	testenv.Need(t, testenv.Root) // it gives files away
	dir := tree(t, "a/.git/HEAD", "a/b/")
	if err := os.Lchown(filepath.Join(dir, "a/.git"), 4321, 4321); err != nil {
		t.Fatal(err)
	}
	if got := Root(filepath.Join(dir, "a/b"), ""); got != filepath.Join(dir, "a/b") {
		t.Errorf("%s was taken", got)
	}
	if err := os.Lchown(filepath.Join(dir, "a/b"), 4321, 4321); err != nil { // root works for that user
		t.Fatal(err)
	}
	if got := Root(filepath.Join(dir, "a/b"), ""); got != filepath.Join(dir, "a/b") {
		t.Errorf("the repository is that user's, its directory is not: %s was taken", got)
	}
	if err := os.Lchown(filepath.Join(dir, "a"), 4321, 4321); err != nil {
		t.Fatal(err)
	}
	if got := Root(filepath.Join(dir, "a/b"), ""); got != filepath.Join(dir, "a") {
		t.Errorf("%s was taken", got)
	}
}

// Commands can make a repository below the project, and remove the project's.
func TestATrustedProjectStaysTheWorkspace(t *testing.T) {
	dir := tree(t, "a/.agentsh/policy.yaml", "a/sub/.git/HEAD", "a/sub/x/", "b/.git/HEAD", "b/x/")
	trust := Trust(filepath.Join(tree(t), "trust"))
	if _, err := trust.Add(PolicyFile(filepath.Join(dir, "a")), nil); err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]string{"a/sub/x": "a", "a/sub": "a", "a": "a", "b/x": "b"} {
		if got := Root(filepath.Join(dir, from), trust); got != filepath.Join(dir, want) {
			t.Errorf("from %s: %s", from, got)
		}
	}
	if got := Root(filepath.Join(dir, "a/sub/x"), trust, filepath.Join(dir, "a")); got != filepath.Join(dir, "a/sub") {
		t.Errorf("a home is no project: %s", got)
	}
}

// Only what the name says without links and .. is the machine's.
func TestTheMachinesFilesHaveCleanNames(t *testing.T) {
	dir := tree(t, "x")
	name := dir + "/link/../../../../../../../../etc/agentsh/x.yaml"
	names := map[string]bool{"/etc/agentsh/policies/x.yaml": true, name: false, "/etc/agentsh/../x": false, "/etc/agentshx": false}
	for name, want := range names {
		if ofMachine(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestWhatAgentshKeepsIsNamedWithAndWithoutLinks(t *testing.T) {
	dir := tree(t, "dotfiles/config/", "dotfiles/policy.yaml", "home/", "n/.config/agentsh/policy.yaml")
	home := filepath.Join(dir, "home")
	if err := os.Symlink("../dotfiles/config", filepath.Join(home, ".config")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	has := func(own []string, name string) {
		t.Helper()
		if !slices.Contains(own, filepath.Join(dir, name)) {
			t.Errorf("%s is not in %q", name, own)
		}
	}
	own := Own(filepath.Join(home, "state"), filepath.Join(dir, "n"))
	has(own, "home/state")
	has(own, "home/.config/agentsh")
	has(own, "dotfiles/config/agentsh") // it is missing, and commands could make it
	has(own, "n/.config/agentsh")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "dotfiles/config/agentsh"), 0o700),
		os.Symlink("../../policy.yaml", filepath.Join(dir, "dotfiles/config/agentsh/policy.yaml"))); err != nil {
		t.Fatal(err)
	}
	has(Own(filepath.Join(home, "state"), dir), "dotfiles/policy.yaml")
}

func TestATrustedPolicyIsUsedAsItWas(t *testing.T) {
	const own, base = ".agentsh/policy.yaml", ".agentsh/base.yaml"
	changes := map[string]struct {
		change func(t *testing.T, dir string)
		want   string
	}{
		"nothing changes":    {func(*testing.T, string) {}, ""},
		"the policy changes": {func(t *testing.T, dir string) { put(t, filepath.Join(dir, own), "x") }, "has changed since it was trusted"},
		"the policy is gone": {func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, ".agentsh")); err != nil {
				t.Fatal(err)
			}
		}, "is gone, and was trusted"},
		"a pipe that nobody writes to": {func(t *testing.T, dir string) {
			file := filepath.Join(dir, own)
			if err := errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)); err != nil {
				t.Fatal(err)
			}
		}, "is not a file of at most"},
		"what it extends changes": {func(t *testing.T, dir string) { put(t, filepath.Join(dir, base), "x") }, "has changed since it was trusted"},
	}
	for name, test := range changes {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HOME", "/nonexistent")
			t.Setenv("XDG_CONFIG_HOME", "")
			dir := tree(t, own, base)
			trust := Trust(filepath.Join(tree(t), "trust"))
			c, err := Policy(trust, dir, "/machine.yaml")
			if err != nil || c.File != "/machine.yaml" || !strings.Contains(c.Note, "is not trusted, so it is not used") {
				t.Fatalf("before: %+v %v", c, err)
			}
			sources := []policy.Source{
				{Name: filepath.Join(dir, own), Data: []byte(own)}, {Name: filepath.Join(dir, base), Data: []byte(base)},
				{Name: "/etc/agentsh/policies/default.yaml", Data: []byte("an upgrade changes it")},
			}
			r, err := trust.Add(filepath.Join(dir, own), sources)
			if err != nil || len(r.Digests) != 2 {
				t.Fatalf("%+v %v", r, err)
			}
			test.change(t, dir)
			c, err = Policy(trust, dir, "/machine.yaml")
			if err == nil {
				_, err = c.Read(filepath.Join(dir, base))
			}
			if test.want == "" && (err != nil || c.File != filepath.Join(dir, own)) || test.want != "" &&
				(err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%+v %v", c, err)
			}
			list, listErr := trust.List()
			if listErr != nil || len(list) != 1 || (list[0].Changed == "") != (test.want == "") {
				t.Errorf("list: %+v %v", list, listErr)
			}
			if known, err := trust.Forget(filepath.Join(dir, own)); !known || err != nil {
				t.Errorf("forget: %v %v", known, err)
			}
			if c, err = Policy(trust, dir, "/machine.yaml"); err != nil || c.File != "/machine.yaml" {
				t.Errorf("after: %+v %v", c, err)
			}
		})
	}
}

func TestRecordsThatOthersCouldWriteAreRefused(t *testing.T) {
	dir, trust := tree(t, ".agentsh/policy.yaml"), Trust(filepath.Join(tree(t), "trust"))
	if _, err := trust.Add(PolicyFile(dir), nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(string(trust), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Policy(trust, dir, ""); err == nil || !strings.Contains(err.Error(), "nobody else may write") {
		t.Errorf("%v", err)
	}
}

func TestTheUsersPolicyComesBeforeTheMachines(t *testing.T) {
	home, trust := tree(t, ".config/agentsh/policy.yaml"), Trust(filepath.Join(tree(t), "trust"))
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	file := filepath.Join(home, ".config/agentsh/policy.yaml")
	if c, err := Policy(trust, tree(t), "/machine.yaml"); err != nil || c.File != file || c.Note != "" {
		t.Errorf("%+v %v", c, err)
	}
	if err := os.Chmod(file, 0o660); err != nil {
		t.Fatal(err)
	}
	c, err := Policy(trust, tree(t), "/machine.yaml")
	if err != nil || c.File != "/machine.yaml" || !strings.Contains(c.Note, "others may not write it") {
		t.Errorf("%+v %v", c, err)
	}
	t.Setenv("XDG_CONFIG_HOME", tree(t))
	if c, err := Policy(trust, tree(t), "/machine.yaml"); err != nil || c.File != "/machine.yaml" || c.Note != "" {
		t.Errorf("%+v %v", c, err)
	}
}

// Without namespaces nothing inside a workspace can be closed to commands.
func TestAHomeIsAWorkspaceIfItHoldsNothingOfAgentsh(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", "")
	state := filepath.Join(tree(t), "state")
	for name, test := range map[string]struct {
		holds, workspace, state, want string
		opened                        bool
	}{
		"another directory":                {"x/", "x", state, "", false},
		"a home without files of agentsh":  {"x/", "", state, "", true},
		"a home in the workspace":          {"home/x/", "..", state, "", true},
		"a home with a policy":             {".config/agentsh/policy.yaml", "", state, "agentsh uses", false},
		"a home with records":              {".local/state/agentsh/trust/x.json", "", state, "agentsh uses", false},
		"a project with a directory of it": {"x/.config/agentsh/", "x", state, "agentsh uses", false},
		"state in the workspace":           {"x/", "x", "x/state", "set XDG_STATE_HOME", false},
	} {
		t.Run(name, func(t *testing.T) {
			home := tree(t, test.holds)
			t.Setenv("HOME", home)
			workspace := filepath.Join(home, test.workspace)
			if !filepath.IsAbs(test.state) {
				test.state = filepath.Join(home, test.state)
			}
			own := Own(test.state, workspace)
			rest, err := OpenHome(own, test.state, workspace)
			if (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Fatalf("%v", err)
			}
			for _, name := range rest {
				if paths.Within(name, workspace) {
					t.Errorf("%s would have a rule inside the workspace", name)
				}
			}
			if opened := err == nil && len(rest) < len(own); opened != test.opened {
				t.Errorf("opened: %v", opened)
			}
		})
	}
}

func TestAPolicyThatCommandsCouldWriteIsNotTheUsers(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", "")
	home, elsewhere, trust := tree(t), tree(t), Trust(filepath.Join(tree(t), "trust"))
	t.Setenv("HOME", home)
	if err := trust.NoteOpened(); err != nil || !trust.HomeOpened() {
		t.Fatal(err)
	}
	if c, err := Policy(trust, elsewhere, "/machine.yaml"); err != nil || c.File != "/machine.yaml" {
		t.Fatalf("without a policy: %+v %v", c, err)
	}
	file := filepath.Join(home, ".config/agentsh/policy.yaml") // a command of the session makes it
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, file, "x")
	if c, err := Policy(trust, elsewhere, "/machine.yaml"); err == nil || !strings.Contains(err.Error(), "commands of an earlier session could write it") {
		t.Errorf("it is the policy of later sessions: %+v %v", c, err)
	}
}

func TestTheUsersProgramsAreFound(t *testing.T) {
	node := ".nvm/versions/node/"
	home := tree(t, ".local/bin/", "go/bin/", ".rustup/", ".pyenv/shims/", ".pyenv/bin/",
		node+"v9.11.2/bin/", node+"v20.9.0/bin/", node+"v20.10.0/bin/", node+"v22.1.0/bin/")
	all := func(string) bool { return true }
	for alias, want := range map[string]string{
		"": "v22.1.0", "20\n": "v20.10.0", "v20.9.0": "v20.9.0", "lts/iron": "v22.1.0", "18": "v22.1.0",
	} {
		if err := os.MkdirAll(filepath.Join(home, ".nvm/alias"), 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(home, ".nvm/alias/default"), alias)
		got := strings.ReplaceAll(strings.Join(FindTools(home, all).Path, " "), home+"/", "")
		if got != ".local/bin "+node+want+"/bin go/bin .pyenv/shims .pyenv/bin" {
			t.Errorf("alias %q: %s", alias, got)
		}
	}
	for name, dir := range map[string]string{"RUSTUP_HOME": ".rustup", "PYENV_ROOT": ".pyenv"} {
		if got := FindTools(home, all).Env[name]; got != filepath.Join(home, dir) {
			t.Errorf("%s is %q", name, got)
		}
	}
	if got := FindTools(home, func(string) bool { return false }); len(got.Path)+len(got.Env) > 0 {
		t.Errorf("what no rule shows: %v", got)
	}
}

// A file of a repository that is called like an agent program gets no home and no key.
func TestAgentProgramsAreFoundByNameAlone(t *testing.T) {
	for _, argv := range [][]string{{"./claude"}, {"/work/claude"}, {"sub/codex"}, {"claude2"}, {""}, nil} {
		if a := FindAgent(argv); a != nil {
			t.Errorf("%q is %s", argv, a.Name)
		}
	}
	if a := FindAgent([]string{"claude", "-p", "x"}); a == nil || a.Name != "claude" {
		t.Errorf("%+v", a)
	}
}
