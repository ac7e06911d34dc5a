package project

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/wire"
)

// plantAll writes files below a directory.
func plantAll(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTheIdentityIsTheOneThatGitHas compares it with what git says about the same files.
func TestTheIdentityIsTheOneThatGitHas(t *testing.T) {
	const day = "[user]\n\tname = Day\n\temail = day@example.com\n"
	tests := []struct {
		name  string
		files map[string]string // below the home; the repository is work/repo
		env   []string
	}{
		{"none", nil, nil},
		{"of ~/.gitconfig", map[string]string{".gitconfig": day}, nil},
		{"of ~/.config", map[string]string{".config/git/config": day}, nil},
		{"~/.gitconfig wins", map[string]string{".config/git/config": day, ".gitconfig": "[user]\nname=Night"}, nil},
		{"the last one wins", map[string]string{".gitconfig": day + "[user]\nname = Night\n"}, nil},
		{"XDG_CONFIG_HOME", map[string]string{"x/git/config": day, ".gitconfig": "[user]\nemail=n@x"}, []string{"XDG_CONFIG_HOME=HOME/x"}},
		{"GIT_CONFIG_GLOBAL", map[string]string{"own": day, ".gitconfig": "[user]\nname=Night"}, []string{"GIT_CONFIG_GLOBAL=HOME/own"}},
		{"quotes, escapes and comments", map[string]string{
			".gitconfig": "# c\n[core] pager = less ; x\n[USER]\tName = \" D\\\"a\\\\y; \" # x\n\tEMAIL = a b\\\n  c   ;d\n",
		}, nil},
		{"quotes inside a value", map[string]string{".gitconfig": "[user]\nname = a \"b ; c\" d\t \r\nemail=\r\n"}, nil},
		{"a byte order mark", map[string]string{".gitconfig": "\ufeff" + day}, nil},
		{"letters of every language", map[string]string{".gitconfig": "[user]\nname = Dürer 大\n"}, nil},
		{"of another section", map[string]string{".gitconfig": "[user \"x\"]\nname = Day\n[users]\nname = Day\n"}, nil},
		{"aliases and helpers before it", map[string]string{
			".gitconfig": "[alias]\n\tx = \"!f() { echo \\\"a;b\\\" | cat; }; f\"\n" +
				"[credential \"https://a.test\"]\n\thelper =\n\thelper = !gh auth\n[push]\n\tdefault\n" + day,
		}, nil},
		{"an included file", map[string]string{
			".gitconfig": "[include]\npath = sub/more\n", "sub/more": "[include]\npath = last\n", "sub/last": day,
		}, nil},
		{"an include below ~", map[string]string{".gitconfig": "[include]\npath = ~/more\n", "more": day}, nil},
		{"what comes after an include", map[string]string{".gitconfig": "[include]\npath = more\n[user]\nname = Night\n", "more": day}, nil},
		{"a missing include", map[string]string{".gitconfig": "[include]\npath = nosuch\n" + day}, nil},
		{"of a directory", map[string]string{".gitconfig": day + "[includeIf \"gitdir:~/work/\"]\npath = more\n", "more": "[user]\nemail = w@x\n"}, nil},
		{"of another directory", map[string]string{".gitconfig": day + "[includeIf \"gitdir:~/play/\"]\npath = more\n", "more": "[user]\nemail = w@x\n"}, nil},
		{"of a name", map[string]string{".gitconfig": day + "[includeIf \"gitdir:work/\"]\npath = more\n", "more": "[user]\nemail = w@x\n"}, nil},
		{"beside the file", map[string]string{".gitconfig": day + "[includeIf \"gitdir:./wor?/*/.git\"]\npath = more\n", "more": "[user]\nemail = w@x\n"}, nil},
		{"in any case", map[string]string{".gitconfig": day + "[includeIf \"gitdir/i:~/WORK/**\"]\npath = more\n", "more": "[user]\nemail = w@x\n"}, nil},
		{"not in any case", map[string]string{".gitconfig": day + "[includeIf \"gitdir:~/WORK/**\"]\npath = more\n", "more": "[user]\nemail = w@x\n"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			home, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			repo := filepath.Join(home, "work/repo")
			env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "GIT_CONFIG_NOSYSTEM=1"}
			for _, v := range tt.env {
				env = append(env, strings.ReplaceAll(v, "HOME/", home+"/"))
			}
			git := func(args ...string) string {
				cmd := exec.Command("git", args...)
				cmd.Env = env
				out, err := cmd.Output()
				if err != nil && args[0] == "init" {
					t.Fatal(err)
				}
				return strings.TrimSuffix(string(out), "\n")
			}
			git("init", "-q", repo)
			plantAll(t, home, tt.files)
			want := wire.Identity{Name: git("-C", repo, "config", "user.name"), Email: git("-C", repo, "config", "user.email")}
			got, err := Identity(home, repo, func(name string) string {
				for _, v := range env {
					if value, ok := strings.CutPrefix(v, name+"="); ok {
						return value
					}
				}
				return ""
			})
			if err != nil || got != want {
				t.Errorf("%+v, %v instead of %+v", got, err, want)
			}
		})
	}
}

// A file .git of the workspace does not choose the identity: the real path of the workspace
// does. A linked working tree has that of its repository, which knows it.
func TestAFileOfTheWorkspaceDoesNotChooseTheIdentity(t *testing.T) {
	home, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	git := func(args ...string) {
		cmd := exec.Command("git", args...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "GIT_CONFIG_NOSYSTEM=1"}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v: %s", args, err, out)
		}
	}
	plantAll(t, home, map[string]string{
		".gitconfig": "[user]\n\tname = Day\n\temail = d@x\n[includeIf \"gitdir:~/work/\"]\n\tpath = more\n", "more": "[user]\n\temail = w@x\n",
		"planted/.git":     "gitdir: " + home + "/work/repo/.git\n",
		"other/.git":       "gitdir: " + home + "/work/repo/.git/worktrees/linked\n",
		"away/.git":        "gitdir: " + home + "/away/fake\n",
		"away/fake/gitdir": home + "/away/.git\n",
		"work/out/.git":    "gitdir: " + home + "/play/.git\n",
		"work/new/file":    "", "play/file": "",
	})
	git("init", "-q", home+"/work/repo")
	git("-C", home+"/work/repo", "commit", "-q", "--allow-empty", "-m", "x")
	git("-C", home+"/work/repo", "worktree", "add", "-q", home+"/linked")
	for link, to := range map[string]string{"way": "work/repo", "work/link": "../play"} {
		if err := os.Symlink(to, filepath.Join(home, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(home, home+"/../agentsh-home"); err != nil {
		t.Fatal(err)
	}
	for tree, want := range map[string]string{
		"work/repo": "w@x", "linked": "w@x", "work/new": "w@x", "work/out": "w@x", "way": "w@x", "../agentsh-home/work/repo": "w@x",
		"planted": "d@x", "other": "d@x", "away": "d@x", "play": "d@x", "work/link": "d@x",
	} {
		for _, of := range []string{home, home + "/../agentsh-home"} {
			if got, err := Identity(of, home+"/"+tree, nil); err != nil || got.Email != want {
				t.Errorf("%s: %+v, %v, want %s", tree, got, err, want)
			}
		}
	}
}

func TestAnIdentityIsALineOfText(t *testing.T) {
	for _, value := range []string{`a\nb`, "a\x01b", "a\tb", "\xff", strings.Repeat("x", 2000)} {
		home := t.TempDir()
		plantAll(t, home, map[string]string{".gitconfig": "[user]\nname = \"" + value + "\"\nemail = a@b\n"})
		got, err := Identity(home, home, nil)
		if err == nil || !strings.Contains(err.Error(), "git config --global user.name") || got != (wire.Identity{}) {
			t.Errorf("%q: %+v, %v", value, got, err)
		}
	}
}

// TestIncludesEnd: a file that includes itself, and a pipe that nobody writes.
func TestIncludesEnd(t *testing.T) {
	home := t.TempDir()
	plantAll(t, home, map[string]string{
		".gitconfig": "[include]\npath = .gitconfig\npath = .gitconfig\npath = /dev/zero\npath = /dev/tty\n[user]\nname = Day\n",
	})
	if got, err := Identity(home, home, nil); err != nil || got.Name != "Day" {
		t.Errorf("%+v, %v", got, err)
	}
}

func FuzzIdentity(f *testing.F) {
	f.Add("[user]\nname = \"a\\n\" # x\n[includeIf \"gitdir:~/[\"]\npath = x\n")
	f.Fuzz(func(t *testing.T, text string) {
		forEachSetting(text, func(section, _, name, _ string) {
			if section == "" || name == "" {
				t.Error("a setting without a name")
			}
		})
	})
}
