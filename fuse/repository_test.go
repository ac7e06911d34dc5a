package fuse

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

const guardPolicy = `
git_guard: true
file_rules:
  - {name: all, paths: ["WS/**"], operations: ["*"], decision: allow}
`

// guardSession is a mount whose repositories are guarded.
func guardSession(t testing.TB) *session { return start(t, options{policy: guardPolicy}) }

// git runs git in a directory of a session, as a command there would.
func (s *session) git(dir string, args ...string) (string, error) {
	return s.run(dir, "git", args...)
}

func (s *session) run(dir, program string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir = s.path(dir)
	home := filepath.Join(filepath.Dir(s.dir), "home")
	_ = os.MkdirAll(home, 0o755)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C",
		"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=protocol.file.allow", "GIT_CONFIG_VALUE_0=always", "GIT_CONFIG_KEY_1=advice.detachedHead",
		"GIT_CONFIG_VALUE_1=false",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@x", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@x", "GIT_EDITOR=true"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *session) mustGit(dir string, args ...string) string {
	s.t.Helper()
	out, err := s.git(dir, args...)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.t.Fatalf("git %s: %v\n%s\nevents: %+v", strings.Join(args, " "), err, out, s.events)
	}
	return out
}

func (s *session) write(rel, text string) {
	s.t.Helper()
	must(s.t, os.MkdirAll(filepath.Dir(s.path(rel)), 0o755))
	must(s.t, os.WriteFile(s.path(rel), []byte(text), 0o644))
}

// script is a line of ordinary work: a directory, and the words of git; "!" runs
// another program, "=" writes a file.
func (s *session) script(lines string) {
	s.t.Helper()
	for _, line := range strings.Split(strings.TrimSpace(lines), "\n") {
		words := strings.Fields(line)
		for i, w := range words {
			words[i] = strings.ReplaceAll(strings.ReplaceAll(w, "_", " "), "WS", s.dir)
		}
		switch words[1] {
		case "=":
			s.write(filepath.Join(words[0], words[2]), strings.Join(words[3:], " ")+"\n")
		case "!":
			if out, err := s.run(words[0], words[2], words[3:]...); err != nil {
				s.t.Fatalf("%s: %v\n%s", line, err, out)
			}
		default:
			s.mustGit(words[0], words[1:]...)
		}
	}
}

// TestOrdinaryWorkOfGitPasses runs git itself.
func TestOrdinaryWorkOfGitPasses(t *testing.T) {
	const base = `
. init -q -b main r
r = a one
r add .
r commit -qm one
r = a two
r commit -qam two
`
	tests := []struct{ name, script string }{
		{"init", ". init -q x\n. init -q --bare y\n. init -q x0\n. init -q --separate-git-dir x0/.git/z z\nz status\n. init -q x\n"},
		{
			"settings",
			base + "r config user.name A_B\nr config user.email a@x\nr config core.autocrlf false\nr config --unset user.name\nr config --rename-section user author\n",
		},
		{
			"remotes",
			base + "r remote add o https://example.org/x.git\nr remote set-url o ../y\nr remote rename o p\nr remote set-url --push p git@example.org:x/y.git\nr remote remove p\n",
		},
		{
			"clone and push",
			base + ". clone -q r c\n. clone -q file://WS/r d\n. clone -q --bare r b.git\nc remote add b ../b.git\nc checkout -qb new\nc push -qu b new\nc fetch -q --prune b\nc branch -m new newer\n" +
				"c checkout -q main\nc branch -D newer\nc pull -q\n. clone -q --shared r s\ns log -1\n. clone -q --no-hardlinks r n\n",
		},
		{
			"submodules",
			base + ". init -q -b main super\nsuper submodule --quiet add ../r sub\nsuper commit -qm sub\nsuper submodule --quiet update --init\n. clone -q --recurse-submodules super copy\n" +
				"copy submodule --quiet deinit -f sub\ncopy submodule --quiet update --init\ncopy/sub status\ncopy submodule --quiet absorbgitdirs\ncopy submodule --quiet sync\n",
		},
		{
			"worktrees",
			base + "r worktree add -q ../w\nw status\nw worktree list\nr worktree move ../w ../w2\nw2 status\nr worktree lock ../w2\nr worktree unlock ../w2\nr worktree remove ../w2\n" +
				"r worktree add -q ../w3 -b x\n. ! rm -rf w3\nr worktree prune\nr config extensions.worktreeConfig true\nr worktree add -q ../w4 -b y\nw4 config --worktree user.name w\n",
		},
		{
			"branches and tags",
			base + "r checkout -qb x\nr branch -m x y\nr checkout -q main\nr branch -d y\nr tag t\nr tag -a -m m u\nr pack-refs --all\nr tag -d t\n",
		},
		{
			"history",
			base + "r commit -q --amend -m other\nr stash list\nr = a dirty\nr stash -q\nr stash pop -q\nr checkout -q a\nr checkout -qb x HEAD~1\nr = b one\nr add b\nr commit -qm b\nr rebase -q main\nr rebase -qi HEAD~1\n" +
				"r checkout -q main\nr cherry-pick x\nr revert --no-edit HEAD\nr merge -q --no-ff -m m x\nr reset -q --hard HEAD~1\n",
		},
		{
			"interactive rebase",
			base + "r = b b\nr add b\nr commit -qm three\nr -c sequence.editor=sed_-i_s/^pick/edit/ rebase -i HEAD~2\nr status\nr rebase --continue\nr rebase --continue\n" +
				"r -c sequence.editor=sh_-c_'sed_s/^pick/drop/_\"$1\">/tmp/guard-todo;cat_/tmp/guard-todo>\"$1\"'_x rebase -i HEAD~1\n",
		},
		{"mail", base + "r format-patch -q -1 -o p\nr reset -q --hard HEAD~1\nr am -q p/0001-two.patch\n"},
		{"bisect", base + "r bisect start HEAD HEAD~1\nr bisect reset\n"},
		{"sparse checkout", base + "r sparse-checkout init --cone\nr sparse-checkout set x\nr sparse-checkout disable\n"},
		{"upkeep", base + "r gc -q\nr repack -qad\nr maintenance run --auto\nr prune\nr fsck\nr reflog expire --all\nr count-objects\n"},
		{
			"a copy of a repository",
			base + ". ! cp -r r r2\nr2 status\n. ! mv r2 r3\nr3 status\n. ! mkdir sub\n. ! mv r3 sub/r4\nsub/r4 commit -q --allow-empty -m x\n. ! rm -rf sub\n",
		},
		{
			"large files",
			base + "r lfs install --local\nr lfs track *.bin\nr = x.bin 123\nr add .\nr commit -qm lfs\nr lfs ls-files\n. clone -q r c\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := guardSession(t)
			s.script(tt.script)
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, e := range s.events {
				if e.Rule != nil && e.Rule.Name == "git_guard" {
					t.Errorf("refused: %+v", e)
				}
			}
		})
	}
}

// evilConfig has git run a program that leaves a mark.
func evilConfig(mark string) string {
	return fmt.Sprintf("[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfsmonitor = \"touch %s; false\"\n\tworktree = .\n", mark)
}

// outside runs git in the backing.
func (s *session) outside(dir string, args ...string) string {
	cmd := exec.Command("git", args...)
	cmd.Dir = s.back(dir)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=/nonexistent",
		"GIT_EDITOR=true",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=safe.directory",
		"GIT_CONFIG_VALUE_0=*",
		"GIT_AUTHOR_NAME=a",
		"GIT_AUTHOR_EMAIL=a@x",
		"GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a@x",
	}
	out, _ := cmd.CombinedOutput()
	return string(out)
}

func TestARefusedSettingIsNamedWithItsLine(t *testing.T) {
	s := guardSession(t)
	s.mustGit(".", "init", "-q", "r")
	if out, err := s.git("r", "config", "core.fsmonitor", "/ws/evil"); err == nil || !strings.Contains(out, "Operation not permitted") {
		t.Errorf("%v: %s", err, out)
	}
	e := s.waitEvent(func(e wire.Event) bool { return e.Rule != nil && e.Rule.Name == "git_guard" })
	if !strings.Contains(e.Message, "r/.git/config:6: core.fsmonitor: ") || e.Hint == "" ||
		!strings.HasPrefix(e.Rule.Position(), "test.yaml:") {
		t.Errorf("%+v", e)
	}
	if got := s.mustGit("r", "config", "--get-all", "core.bare"); got != "false\n" {
		t.Errorf("core.bare is %q", got)
	}
}

// TestARepositoryIsJudgedInWhateverOrderItsPartsCome makes the parts of bad
// repositories in every order, by every way.
func TestARepositoryIsJudgedInWhateverOrderItsPartsCome(t *testing.T) {
	s := guardSession(t)
	mark := filepath.Join(t.TempDir(), "mark")
	parts := []string{"HEAD", "objects", "refs", "config"}
	number := 0
	for way := range ways {
		permute(parts, func(order []string) {
			number++
			dir := fmt.Sprintf("r%d", number)
			must(t, os.Mkdir(s.path(dir), 0o755))
			for _, part := range order {
				_ = ways[way](s, dir, part, evilConfig(mark)) // one of them is refused
			}
			for _, f := range keptOpen {
				f.WriteString(evilConfig(mark))
				f.Close()
			}
			keptOpen = nil
			data, _ := os.ReadFile(s.back(dir + "/config"))
			whole := true
			for _, part := range parts[:3] {
				if _, err := os.Lstat(s.back(dir + "/" + part)); err != nil {
					whole = false
				}
			}
			if whole && strings.Contains(string(data), "fsmonitor") {
				t.Errorf("%s: in the order %v nothing was refused", way, order)
			}
			if number%6 == 0 {
				s.outside(dir, "status")
			}
		})
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("git ran a program")
	}
}

// keptOpen are files that stay open until all parts of a repository are there.
var keptOpen []*os.File

// ways are how one part of a repository comes to be.
var ways = map[string]func(s *session, dir, part, config string) error{
	"made in place": func(s *session, dir, part, config string) error {
		name := s.path(dir + "/" + part)
		switch part {
		case "HEAD":
			return os.WriteFile(name, []byte("ref: refs/heads/main\n"), 0o644)
		case "config":
			return os.WriteFile(name, []byte(config), 0o644)
		}
		return os.Mkdir(name, 0o755)
	},
	"renamed": func(s *session, dir, part, config string) error {
		name := s.path(dir + "/" + part)
		switch part {
		case "HEAD":
			must(s.t, os.WriteFile(name+".x", []byte("ref: refs/heads/main\n"), 0o644))
		case "config":
			must(s.t, os.WriteFile(name+".x", []byte(config), 0o644))
		default:
			must(s.t, os.Mkdir(name+".x", 0o755))
		}
		return os.Rename(name+".x", name)
	},
	"hard linked": func(s *session, dir, part, config string) error {
		name := s.path(dir + "/" + part)
		switch part {
		case "HEAD":
			must(s.t, os.WriteFile(name+".x", []byte("ref: refs/heads/main\n"), 0o644))
		case "config":
			must(s.t, os.WriteFile(name+".x", []byte(config), 0o644))
		default:
			return os.Mkdir(name, 0o755)
		}
		return os.Link(name+".x", name)
	},
	"a symbolic link": func(s *session, dir, part, config string) error {
		name := s.path(dir + "/" + part)
		switch part {
		case "HEAD":
			return os.Symlink("refs/heads/main", name)
		case "config":
			must(s.t, os.WriteFile(name+".x", []byte(config), 0o644))
		default:
			must(s.t, os.Mkdir(name+".x", 0o755))
		}
		return os.Symlink(part+".x", name)
	},
	"written by a descriptor kept open": func(s *session, dir, part, config string) error {
		name := s.path(dir + "/" + part)
		switch part {
		case "HEAD":
			return os.WriteFile(name, []byte("ref: refs/heads/main\n"), 0o644)
		case "config":
			f, err := os.Create(name)
			if err != nil {
				return err
			}
			keptOpen = append(keptOpen, f)
			_, err = f.WriteString(config)
			return err
		}
		return os.Mkdir(name, 0o755)
	},
	"exchanged": func(s *session, dir, part, config string) error {
		name := s.path(dir + "/" + part)
		if part == "objects" || part == "refs" {
			must(s.t, os.Mkdir(name+".x", 0o755))
		} else {
			text := config
			if part == "HEAD" {
				text = "ref: refs/heads/main\n"
			}
			must(s.t, os.WriteFile(name+".x", []byte(text), 0o644))
		}
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			return err
		}
		return unix.Renameat2(unix.AT_FDCWD, name+".x", unix.AT_FDCWD, name, unix.RENAME_EXCHANGE)
	},
}

func permute(list []string, do func([]string)) {
	var at func(int)
	list = append([]string(nil), list...)
	at = func(i int) {
		if i == len(list) {
			do(list)
			return
		}
		for j := i; j < len(list); j++ {
			list[i], list[j] = list[j], list[i]
			at(i + 1)
			list[i], list[j] = list[j], list[i]
		}
	}
	at(0)
}
