package fuse

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

// bareParts makes a bare repository without its config, as files of a tree.
func (s *session) bareParts(dir string) {
	s.t.Helper()
	for _, d := range []string{"objects", "refs"} {
		must(s.t, os.MkdirAll(s.path(dir+"/"+d), 0o755))
	}
	_ = os.WriteFile(s.path(dir+"/HEAD"), []byte("ref: refs/heads/main\n"), 0o644) // may be what is refused
}

// commitHook commits a hook in r, in a directory of the work tree.
func (s *session) commitHook(dir, mark string) {
	must(s.t, os.MkdirAll(s.path("r/"+dir), 0o755))
	must(s.t, os.WriteFile(s.path("r/"+dir+"/post-checkout"), []byte("#!/bin/sh\ntouch "+mark+"\n"), 0o755))
	s.mustGit("r", "add", "-A")
	s.mustGit("r", "commit", "-q", "-m", "hook")
}

// repositoryAttacks try to have git outside run "touch MARK". A guard that holds
// makes each fail at some step; which does not matter.
var repositoryAttacks = []struct {
	name string
	do   func(s *session, config, mark string)
	use  []string // words of git outside in r; nil: status
}{
	{name: "commondir", do: func(s *session, config, _ string) {
		os.MkdirAll(s.path("evil"), 0o755)
		os.Mkdir(s.path("evil/objects"), 0o755)
		os.Mkdir(s.path("evil/refs"), 0o755)
		os.WriteFile(s.path("evil/config"), []byte(config), 0o644)
		os.WriteFile(s.path("r/.git/commondir"), []byte("../../evil\n"), 0o644)
	}},
	{name: "commondir of a worktree whose common directory has no HEAD", do: func(s *session, config, _ string) {
		for _, d := range []string{"objects", "refs", "worktrees/w"} {
			os.MkdirAll(s.path("c/"+d), 0o755)
		}
		os.WriteFile(s.path("c/config"), []byte(config), 0o644)
		os.WriteFile(s.path("c/worktrees/w/HEAD"), []byte("ref: refs/heads/main\n"), 0o644)
		os.WriteFile(s.path("c/worktrees/w/commondir"), []byte("../..\n"), 0o644)
		os.RemoveAll(s.path("r/.git"))
		os.WriteFile(s.path("r/.git"), []byte("gitdir: ../c/worktrees/w\n"), 0o644)
	}},
	{name: "a .git file", do: func(s *session, config, _ string) {
		s.bareParts("evil")
		os.WriteFile(s.path("evil/config"), []byte(config), 0o644)
		os.RemoveAll(s.path("r/.git"))
		os.WriteFile(s.path("r/.git"), []byte("gitdir: ../evil\n"), 0o644)
	}},
	{name: "a .git link", do: func(s *session, config, _ string) {
		s.bareParts("evil")
		os.WriteFile(s.path("evil/config"), []byte(config), 0o644)
		os.RemoveAll(s.path("r/.git"))
		os.Symlink("../evil", s.path("r/.git"))
	}},
	{name: "a nested repository as a gitlink", do: func(s *session, config, _ string) {
		s.git("r", "init", "-q", "sub")
		s.git("r/sub", "commit", "-q", "--allow-empty", "-m", "x")
		s.git("r", "add", "sub")
		s.write("x", config)
		os.Rename(s.path("x"), s.path("r/sub/.git/config"))
	}},
	{name: "a bare repository", do: func(s *session, config, _ string) {
		os.RemoveAll(s.path("r/.git"))
		os.WriteFile(s.path("r/config"), []byte(config), 0o644)
		s.bareParts("r")
	}},
	{name: "a directory that moves to be objects", do: func(s *session, config, _ string) {
		os.RemoveAll(s.path("r/.git"))
		os.MkdirAll(s.path("r/x"), 0o755)
		os.Mkdir(s.path("r/refs"), 0o755)
		os.WriteFile(s.path("r/config"), []byte(config), 0o644)
		os.WriteFile(s.path("r/HEAD"), []byte("ref: refs/heads/main\n"), 0o644)
		os.Rename(s.path("r/x"), s.path("r/objects"))
	}},
	{name: "config.worktree", do: func(s *session, config, _ string) {
		s.git("r", "config", "extensions.worktreeConfig", "true")
		os.WriteFile(s.path("r/.git/config.worktree"), []byte(config), 0o644)
	}},
	{name: "config written in place", do: func(s *session, config, _ string) {
		f, err := os.OpenFile(s.path("r/.git/config"), os.O_WRONLY|os.O_APPEND, 0)
		must(s.t, err)
		f.WriteString(config)
		f.Close()
	}},
	{name: "config cut so that a setting appears", do: func(s *session, config, _ string) {
		os.WriteFile(s.path("r/.git/config"), []byte("[x]\n"), 0o644)
		os.Truncate(s.path("r/.git/config"), 0)
		fd, err := unix.Open(s.path("r/.git/config"), unix.O_RDWR, 0)
		must(s.t, err)
		unix.Pwrite(fd, []byte(config), 0)
		unix.Fsync(fd)
		unix.Ftruncate(fd, int64(len(config)))
		unix.Close(fd)
	}},
	{name: "config with another name", do: func(s *session, config, _ string) {
		os.Link(s.path("r/.git/config"), s.path("x"))
		os.WriteFile(s.path("x"), []byte(config), 0o644)
	}},
	{name: "config through a descriptor of its lock", do: func(s *session, config, _ string) {
		f, err := os.OpenFile(s.path("r/.git/config.lock"), os.O_RDWR|os.O_CREATE, 0o644)
		must(s.t, err)
		defer f.Close()
		must(s.t, os.Rename(s.path("r/.git/config.lock"), s.path("r/.git/config")))
		f.WriteString(config)
		if again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0); err == nil {
			again.WriteString(config)
			again.Close()
		}
	}},
	{name: "config through a mapping of its lock", do: func(s *session, config, _ string) {
		must(s.t, os.WriteFile(s.path("r/.git/config.lock"), make([]byte, 0), 0o644))
		f, err := os.OpenFile(s.path("r/.git/config.lock"), os.O_RDWR, 0)
		must(s.t, err)
		padding := strings.Repeat("#\n", 2048)
		f.WriteString(padding)
		memory, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(s.t, err)
		f.Close()
		must(s.t, os.Rename(s.path("r/.git/config.lock"), s.path("r/.git/config")))
		copy(memory, config)
		unix.Msync(memory, unix.MS_SYNC)
		unix.Munmap(memory)
	}},
	{name: "config through a descriptor from before the repository", do: func(s *session, config, _ string) {
		os.RemoveAll(s.path("r/.git"))
		os.Mkdir(s.path("r/.git"), 0o755)
		f, err := os.Create(s.path("r/.git/config"))
		must(s.t, err)
		defer f.Close()
		s.bareParts("r/.git")
		f.WriteString(config)
	}},
	{name: "a hook", do: func(s *session, _, mark string) {
		os.MkdirAll(s.path("r/.git/hooks"), 0o755)
		os.WriteFile(s.path("r/.git/hooks/pre-commit"), []byte("#!/bin/sh\ntouch "+mark+"\n"), 0o755)
		os.WriteFile(s.path("h"), []byte("#!/bin/sh\ntouch "+mark+"\n"), 0o755)
		os.Rename(s.path("h"), s.path("r/.git/hooks/post-commit"))
		os.Rename(s.path("r/.git/hooks/pre-push.sample"), s.path("r/.git/hooks/pre-push"))
	}, use: []string{"commit", "--allow-empty", "-m", "x"}},
	{name: "a directory of hooks", do: func(s *session, _, mark string) {
		os.Mkdir(s.path("h"), 0o755)
		os.WriteFile(s.path("h/pre-commit"), []byte("#!/bin/sh\ntouch "+mark+"\n"), 0o755)
		os.RemoveAll(s.path("r/.git/hooks"))
		os.Rename(s.path("h"), s.path("r/.git/hooks"))
		unix.Renameat2(unix.AT_FDCWD, s.path("h"), unix.AT_FDCWD, s.path("r/.git/hooks"), unix.RENAME_EXCHANGE)
		os.Symlink("../../h", s.path("r/.git/hooks"))
	}, use: []string{"commit", "--allow-empty", "-m", "x"}},
	{name: "a rebase in progress", do: func(s *session, _, mark string) {
		s.git("r", "commit", "-q", "--allow-empty", "-m", "x")
		s.git("r", "-c", "sequence.editor=sed -i '1i break'", "rebase", "-i", "--root")
		todo := []byte("exec touch " + mark + "\n")
		os.WriteFile(s.path("r/.git/rebase-merge/git-rebase-todo"), todo, 0o644)
		os.WriteFile(s.path("t"), todo, 0o644)
		os.Rename(s.path("t"), s.path("r/.git/rebase-merge/git-rebase-todo"))
		os.Rename(s.path("r/.git/rebase-merge"), s.path("m"))
		os.WriteFile(s.path("m/git-rebase-todo"), todo, 0o644)
		os.Rename(s.path("m"), s.path("r/.git/rebase-merge"))
	}, use: []string{"rebase", "--continue"}},
	{name: "a remote of old form", do: func(s *session, _, mark string) {
		os.MkdirAll(s.path("r/.git/remotes"), 0o755)
		os.WriteFile(s.path("r/.git/remotes/origin"), []byte("URL: ext::touch "+mark+"\nPull: refs/heads/x\n"), 0o644)
		os.MkdirAll(s.path("r/.git/branches"), 0o755)
		os.WriteFile(s.path("r/.git/branches/origin"), []byte("ext::touch "+mark+"\n"), 0o644)
	}, use: []string{"-c", "protocol.ext.allow=always", "fetch", "origin"}},
	{name: "the directory worktrees gets another name", do: func(s *session, config, _ string) {
		for _, d := range []string{"c/objects", "c/refs", "c/worktrees/w"} {
			os.MkdirAll(s.path(d), 0o755)
		}
		os.WriteFile(s.path("c/worktrees/w/HEAD"), []byte("ref: refs/heads/main\n"), 0o644)
		os.WriteFile(s.path("c/worktrees/w/commondir"), []byte("../..\n"), 0o644)
		os.Rename(s.path("c/worktrees"), s.path("c/trees"))
		os.WriteFile(s.path("c/config"), []byte(config), 0o644)
		os.RemoveAll(s.path("r/.git"))
		os.WriteFile(s.path("r/.git"), []byte("gitdir: ../c/trees/w\n"), 0o644)
	}},
	{name: "a work tree that is the git directory", do: func(s *session, _, mark string) {
		s.commitHook("hooks", mark)
		s.git("r", "config", "core.worktree", ".")
	}, use: []string{"checkout", "-f"}},
	{name: "a work tree in the git directory", do: func(s *session, _, mark string) {
		s.commitHook(".", mark)
		s.git("r", "config", "core.worktree", "hooks")
	}, use: []string{"checkout", "-f"}},
	{name: "a git directory in its work tree", do: func(s *session, _, mark string) {
		s.commitHook("b/hooks", mark)
		os.RemoveAll(s.path("r/b"))
		os.Rename(s.path("r/.git"), s.path("r/b"))
		os.WriteFile(s.path("r/.git"), []byte("gitdir: b\n"), 0o644)
	}, use: []string{"checkout", "-f"}},
	{name: "a work tree of a git directory beside it", do: func(s *session, _, mark string) {
		s.commitHook("b/hooks", mark)
		os.RemoveAll(s.path("r/b"))
		os.Rename(s.path("r/.git"), s.path("r/b"))
		s.git("r", "--git-dir=b", "config", "core.worktree", "..")
		os.WriteFile(s.path("r/.git"), []byte("gitdir: ../r/b\n"), 0o644)
	}, use: []string{"checkout", "-f"}},
	{name: "a .git file in a git directory", do: func(s *session, _, mark string) {
		s.commitHook("hooks", mark)
		os.WriteFile(s.path("r/.git/.git"), []byte("gitdir: .\n"), 0o644)
	}, use: []string{"-C", ".git", "checkout", "-f"}},
	{name: "a repository in the hooks", do: func(s *session, _, mark string) {
		s.commitHook(".", mark)
		s.git(".", "clone", "-q", "-n", "r", "h")
		os.RemoveAll(s.path("r/.git/hooks"))
		os.Rename(s.path("h"), s.path("r/.git/hooks"))
	}, use: []string{"-c", "alias.both=!git -C .git/hooks checkout -f && git checkout -f", "both"}},
	{name: "a work tree behind a link", do: func(s *session, _, mark string) {
		s.commitHook("hooks", mark)
		os.Symlink("r/.git", s.path("lnk"))
		s.git("r", "config", "core.worktree", "../../lnk")
	}, use: []string{"checkout", "-f"}},
	{name: "a work tree behind a link that comes later", do: func(s *session, _, mark string) {
		s.commitHook("hooks", mark)
		s.git("r", "config", "core.worktree", "../../lnk")
		os.Mkdir(s.path("d"), 0o755)
		os.Symlink("../r/.git", s.path("d/lnk"))
		os.Rename(s.path("d/lnk"), s.path("lnk"))
		os.Remove(s.path("lnk"))
		os.Symlink("r/.git", s.path("lnk"))
	}, use: []string{"checkout", "-f"}},
	{name: "a git directory behind a link", do: func(s *session, _, mark string) {
		s.commitHook("b/hooks", mark)
		os.RemoveAll(s.path("r/b"))
		os.Symlink("r/b", s.path("lnk"))
		os.Rename(s.path("r/.git"), s.path("r/b"))
		os.WriteFile(s.path("r/.git"), []byte("gitdir: ../lnk\n"), 0o644)
	}, use: []string{"checkout", "-f"}},
	{name: "a whole repository that moves", do: func(s *session, config, _ string) {
		os.RemoveAll(s.path("r/.git"))
		for _, d := range []string{"a/objects", "a/refs/x"} {
			os.MkdirAll(s.path(d), 0o755)
		}
		os.WriteFile(s.path("a/config"), []byte(config), 0o644)
		os.WriteFile(s.path("a/head"), []byte("ref: refs/heads/main\n"), 0o644)
		os.Rename(s.path("a"), s.path("r/.git"))
		os.Rename(s.path("r/.git/head"), s.path("r/.git/HEAD"))
	}},
}

func TestNothingInARepositoryRunsLater(t *testing.T) {
	for _, a := range repositoryAttacks {
		t.Run(a.name, func(t *testing.T) {
			mark := filepath.Join(t.TempDir(), "mark")
			for _, guarded := range []bool{true, false} {
				o := options{}
				if guarded {
					o.policy = guardPolicy
				}
				s := start(t, o)
				s.mustGit(".", "init", "-q", "-b", "main", "r")
				s.mustGit("r", "commit", "-q", "--allow-empty", "-m", "one")
				a.do(s, evilConfig(mark), mark)
				use := a.use
				if use == nil {
					use = []string{"status"}
				}
				out := s.outside("r", use...)
				_, err := os.Stat(mark)
				switch {
				case guarded && err == nil:
					t.Errorf("git ran a program: %s", out)
				case !guarded && err != nil:
					t.Errorf("the attack does not work without the guard either: %s", out)
				}
				os.Remove(mark)
				s.end()
			}
		})
	}
}

func TestPathsOfARepositoryStayInside(t *testing.T) {
	s := guardSession(t)
	s.mustGit(".", "init", "-q", "r")
	s.mustGit(".", "init", "-q", "other")
	must(t, os.MkdirAll(s.path("deep/er"), 0o755))
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v", what, err)
		}
	}
	write := func(rel, text string) error { return os.WriteFile(s.path(rel), []byte(text), 0o644) }
	refused("alternates outside", write("r/.git/objects/info/alternates", "/etc/objects\n"))
	refused("alternates outside in quotes", write("r/.git/objects/info/alternates", `"\057etc\057objects"`+"\n"))
	refused("a .git file that leads outside", write("deep/.git", "gitdir: ../../x\n"))
	refused("a .git file with another root", write("deep/.git", "gitdir: /etc/x\n"))
	must(t, os.Remove(s.path("deep/.git")))
	refused("a .git link outside", os.Symlink("/etc", s.path("deep/.git")))
	refused("a .git link to a file", os.Symlink("../x", s.path("deep/.git")))
	must(t, os.Symlink("../r/.git", s.path("deep/.git")))
	s.mustGit("deep", "status")
	must(t, os.Remove(s.path("deep/.git")))
	refused("a link in a git directory", os.Symlink("/root/.profile", s.path("r/.git/FETCH_HEAD")))
	refused("a link in logs", os.Symlink("/root/.profile", s.path("r/.git/logs")))
	must(t, os.Symlink("/root/.profile", s.path("link")))
	refused("a link that moves there", os.Rename(s.path("link"), s.path("r/.git/ORIG_HEAD")))
	refused("a hard link to a config", os.Link(s.path("r/.git/config"), s.path("c")))
	refused("a hard link as a config", func() error {
		must(t, write("d", ""))
		return os.Link(s.path("d"), s.path("r/.git/config.worktree"))
	}())
	refused("a FIFO as a config", unix.Mkfifo(s.path("r/.git/config.worktree"), 0o644))
	must(t, unix.Mkfifo(s.path("f"), 0o644))
	refused("a FIFO that moves there", os.Rename(s.path("f"), s.path("r/.git/config")))
	refused("a FIFO that git would wait for", unix.Mkfifo(s.path("r/.git/packed-refs"), 0o644))
	must(t, os.MkdirAll(s.path("b/objects"), 0o755))
	must(t, os.Mkdir(s.path("b/refs"), 0o755))
	must(t, unix.Mkfifo(s.path("b/config"), 0o644))
	refused("a repository with a FIFO", write("b/HEAD", "ref: refs/heads/main\n"))
	refused("truncation by path", os.Truncate(s.path("r/.git/config"), 1))
	must(t, write("deep/er/.git", "gitdir: ../../other/.git\n"))
	refused("a directory whose .git file leads outside at its new place", os.Rename(s.path("deep/er"), s.path("er")))
	must(t, os.Symlink("/etc", s.path("deep/x")))
	must(t, os.Rename(s.path("deep/x"), s.path("x")))
	s.mustGit("r", "status")
}

func TestSettingsOfTheOperatorStay(t *testing.T) {
	s := guardSession(t)
	out := s.outside(".", "init", "-q", "r")
	s.outside("r", "config", "core.hooksPath", ".husky")
	s.outside("r", "config", "core.worktree", "/srv/elsewhere")
	s.outside("r", "config", "--unset", "core.worktree")
	must(t, os.WriteFile(s.back("r/.git/hooks/pre-push"), []byte("#!/bin/sh\n"), 0o755))
	must(t, os.WriteFile(s.back("r/.git/hooks/pre-push"), []byte("#!/bin/sh\ntrue\n"), 0o755))
	s.mustGit("r", "config", "user.name", "x")
	if got := strings.TrimSpace(s.mustGit("r", "config", "core.hooksPath")); got != ".husky" {
		t.Errorf("core.hooksPath is %q; %s", got, out)
	}
	if _, err := s.git("r", "config", "core.hooksPath", ".evil"); err == nil {
		t.Error("it was changed")
	}
	must(t, os.Rename(s.path("r"), s.path("r2")))
	must(t, os.MkdirAll(s.path("a/b"), 0o755))
	must(t, os.Rename(s.path("r2"), s.path("a/b/r3")))
	s.mustGit("a/b/r3", "config", "user.name", "y")
}

// TestTwoHalvesOfARepositoryRace has two threads make the halves at once.
func TestTwoHalvesOfARepositoryRace(t *testing.T) {
	s := guardSession(t)
	mark := filepath.Join(t.TempDir(), "mark")
	config := []byte(evilConfig(mark))
	tries := 2000
	if v := os.Getenv("AGENTSH_RACE_TRIES"); v != "" {
		fmt.Sscan(v, &tries)
	}
	var both atomic.Int32
	for i := range tries {
		dir := "r" + fmt.Sprint(i%64)
		must(t, os.MkdirAll(s.path(dir+"/objects"), 0o755))
		must(t, os.WriteFile(s.path(dir+"/HEAD"), []byte("ref: refs/heads/main\n"), 0o644))
		must(t, os.WriteFile(s.path(dir+"/c"), config, 0o644))
		var together sync.WaitGroup
		begin := make(chan struct{})
		together.Go(func() { <-begin; os.Mkdir(s.path(dir+"/refs"), 0o755) })
		together.Go(func() {
			<-begin
			if i%2 == 0 {
				os.Rename(s.path(dir+"/c"), s.path(dir+"/config"))
				return
			}
			if f, err := os.Create(s.path(dir + "/config")); err == nil {
				f.Write(config)
				f.Close()
			}
		})
		close(begin)
		together.Wait()
		data, _ := os.ReadFile(s.back(dir + "/config"))
		if _, err := os.Lstat(s.back(dir + "/refs")); err == nil && strings.Contains(string(data), "fsmonitor") {
			both.Add(1)
		}
		must(t, os.RemoveAll(s.path(dir)))
	}
	if n := both.Load(); n > 0 {
		t.Errorf("%d of %d tries made a bad repository", n, tries)
	}
}

// TestNamesThatMakeARepositoryLockTheTreeExclusively: the race above is rare, as one worker
// reads at a time; this is what it rests on.
func TestNamesThatMakeARepositoryLockTheTreeExclusively(t *testing.T) {
	for _, on := range []bool{true, false} {
		p, err := syntax.Load(policy.Source{Name: "p.yaml", Data: fmt.Appendf(nil, "version: 1\nname: p\ngit_guard: %v\n", on)}, syntax.Options{})
		must(t, err)
		names := tree.New(&unix.Stat_t{Mode: unix.S_IFDIR})
		repos := &repositories{access: &access{rules: newCurrent(p)}, tree: names}
		for name, alone := range map[string]bool{"HEAD": true, "objects": true, "refs": true, "commondir": true, "worktrees": true,
			"config": false, "main.go": false} {
			if got := repos.exclusive(name); got != (alone && on) {
				t.Errorf("guard %v, %s: alone is %v", on, name, got)
			}
			names.Lock(repos.exclusive(name))
			if got := !names.Moves.TryRLock(); got != (alone && on) {
				t.Errorf("guard %v, %s: the tree is held alone: %v", on, name, got)
			} else if !got {
				names.Moves.RUnlock()
			}
			names.Unlock(repos.exclusive(name))
		}
	}
}
