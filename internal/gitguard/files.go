package gitguard

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// IsRepository reports whether git may use a directory as a repository, or as the
// common directory of one, given the names in it. It requires less than git's
// is_git_directory: HEAD need not be valid, and entries may have any type. A directory
// without HEAD counts if worktrees in it may refer to it.
func IsRepository(has func(name string) bool) bool {
	objects := has("objects") && has("refs")
	return objects && (has("HEAD") || has("worktrees")) || has("HEAD") && has("commondir")
}

// Completes reports whether [IsRepository] asks for a name.
func Completes(name string) bool {
	switch name {
	case "HEAD", "objects", "refs", "worktrees", "commondir":
		return true
	}
	return false
}

// Guarded reports whether the content of a file of a repository is checked. The name
// is relative to the git directory.
func Guarded(name string) bool { return checkOf(name) != nil }

// Directories lists the directories of a repository whose entries are checked,
// relative to the git directory. Every guarded file is in one of them or in the git
// directory itself.
var Directories = []string{"hooks", "remotes", "branches", "objects", "objects/info", "info", "rebase-merge", "rebase-apply", "sequencer",
	"worktrees", "modules", "logs", "refs", "lfs", "rr-cache", "reftable"}

// file is a file to check.
type file struct {
	data, old []byte
	at        Location
}

type fileCheck func(f file) []Problem

// checkOf returns the check for a file, or nil.
func checkOf(name string) fileCheck {
	switch name {
	case "config", "config.worktree":
		return func(f file) []Problem { return CheckConfig(f.data, f.old, f.at) }
	case "commondir":
		return checkCommondir
	case "gitdir":
		return checkGitdir
	case "objects/info/alternates", "objects/info/http-alternates":
		return checkAlternates
	case "rebase-merge/git-rebase-todo", "sequencer/todo":
		return checkTodo
	case "rebase-merge/strategy":
		return checkStrategy
	case "sequencer/opts":
		return checkOptions
	}
	dir, base := path.Split(name)
	switch dir {
	case "hooks/":
		if strings.HasSuffix(base, ".sample") {
			return nil
		}
		return func(f file) []Problem { return checkHook(base, f) }
	case "remotes/", "branches/":
		return checkRemote
	}
	return nil
}

// MayBeGuarded reports whether a file could be guarded in some repository, given its
// name and that of its directory. It is fast, and false for most names.
func MayBeGuarded(dir, name string) bool {
	switch name {
	case "config", "config.worktree", "commondir", "gitdir", "alternates", "http-alternates", "git-rebase-todo", "todo", "strategy", "opts":
		return true
	}
	return dir == "hooks" || dir == "remotes" || dir == "branches"
}

// CheckFile checks a file of a repository by its name relative to the git directory.
// Settings with the same content in old are allowed. at.Dir is the git directory.
func CheckFile(name string, data, old []byte, at Location) []Problem {
	do := checkOf(name)
	if do == nil || old != nil && bytes.Equal(data, old) && !at.Moved {
		return nil
	}
	if old != nil && bytes.Equal(data, old) && !hasRelativePaths(name) {
		return nil
	}
	if len(data) > MaxFile {
		return []Problem{{Reason: fmt.Sprintf("the file has more than %d bytes", MaxFile)}}
	}
	return do(file{data, old, at})
}

// hasRelativePaths reports whether relative paths in a file have another meaning after the file
// has moved.
func hasRelativePaths(name string) bool {
	return name == "config" || name == "config.worktree" || name == "commondir" || name == "gitdir" || strings.HasPrefix(name, "objects/info/")
}

// CheckGitFile checks a file called .git. at.Dir is the directory that contains it.
// See gitrepository-layout(5).
func CheckGitFile(data []byte, at Location) []Problem {
	if len(data) == 0 {
		return nil // git refuses such a file; it is the first state of a new file
	}
	name, ok := strings.CutPrefix(string(data), "gitdir: ")
	if !ok || len(data) > MaxFile {
		return []Problem{{Line: 1, Reason: "a file called .git begins with gitdir:", Hint: "give the file another name"}}
	}
	name = strings.TrimRight(name, "\r\n")
	if !at.inside(name) {
		return []Problem{outside(1, "gitdir", at)}
	}
	dir := at.absolute(name)
	if !hasDotGit(dir) {
		return []Problem{
			{
				Line:   1,
				Reason: "a .git file leads to a directory in a .git only",
				Hint:   "keep the git directory in one called .git, as git worktree add and git submodule do",
			},
		}
	}
	if writesTo(at.Dir, dir) || beneath(at.Dir, dir) {
		return []Problem{
			{Line: 1, Reason: "the git directory and its work tree lie in each other, and git would write committed files into the git directory",
				Hint: "call the git directory .git, or keep it beside the work tree"},
		}
	}
	return nil
}

// CheckLink checks a symbolic link of a repository by its name relative to the git
// directory. git writes through links in a git directory.
func CheckLink(name, text string) []Problem {
	if name == "HEAD" && strings.HasPrefix(text, "refs/") && path.Clean(text) == text || text == "testing" {
		return nil // git init makes a link to "testing" to test for link support
	}
	return []Problem{{Reason: "a git directory may hold no symbolic links", Hint: "put the file itself there"}}
}

// CheckGitLink checks a symbolic link called .git in the directory at.Dir. Its target
// must be called .git too. git also follows such a link to a file, and a file is
// checked only under the name .git.
func CheckGitLink(text string, at Location) []Problem {
	if path.Base(text) != ".git" {
		return []Problem{{Reason: "a link called .git may lead to another .git only", Hint: "write a file called .git with gitdir: and the path"}}
	}
	if !at.inside(text) {
		return []Problem{outside(0, "", at)}
	}
	return nil
}

func outside(line int, key string, at Location) Problem {
	return Problem{Line: line, Key: key, Reason: "the path leads out of " + at.home(), Hint: "keep the repository in one tree"}
}

// checkCommondir allows the content that git worktree add writes. It refers to a
// repository whose settings are checked as those of the common directory.
func checkCommondir(f file) []Problem {
	text := strings.TrimRight(string(f.data), "\r\n")
	if text == "" || text == "../.." && path.Base(path.Dir(f.at.Dir)) == "worktrees" {
		return nil
	}
	return []Problem{{Line: 1, Reason: "a repository takes its settings from " + shown(text), Hint: "make worktrees with git worktree add"}}
}

func checkGitdir(f file) []Problem {
	text := strings.TrimRight(string(f.data), "\r\n")
	if text == "" || f.at.inside(text) && path.Base(text) == ".git" {
		return nil
	}
	return []Problem{outside(1, "", f.at)}
}

// checkAlternates checks objects/info/alternates. Its paths are relative to objects.
func checkAlternates(f file) []Problem {
	at := Location{Dir: path.Join(f.at.Dir, "objects"), Roots: f.at.Roots}
	for i, line := range strings.Split(string(f.data), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] == '"' { // git reads quoted lines as in C
			return []Problem{{Line: i + 1, Reason: "the path " + shown(line) + " is in quotes", Hint: "write the path without quotes"}}
		}
		if !at.inside(line) {
			return []Problem{{Line: i + 1, Reason: "the objects in " + shown(line) + " are outside " + at.home(),
				Hint: "clone without --shared and --reference, or with --dissociate"}}
		}
	}
	return nil
}

// todoCommands are the commands of a todo list that run no program. See git-rebase(1),
// INTERACTIVE MODE.
var todoCommands = strings.Fields("pick p revert edit e reword r fixup f squash s label l reset t merge m update-ref u noop drop d break b")

func checkTodo(f file) []Problem {
	for i, line := range strings.FieldsFunc(string(f.data), func(r rune) bool { return r == '\n' || r == '\r' }) {
		command := strings.TrimLeftFunc(line, func(r rune) bool { return r <= ' ' || r > '~' })
		end := strings.IndexFunc(command, func(r rune) bool { return r <= ' ' || r > '~' })
		if end >= 0 {
			command = command[:end]
		}
		if command == "" || !isLetter(command[0]) || slices.Contains(todoCommands, command) {
			continue
		}
		return []Problem{
			{
				Line:   i + 1,
				Reason: "the line " + shown(line) + " runs a command when the rebase goes on",
				Hint:   "run the command yourself, at a line that says break",
			},
		}
	}
	return nil
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// strategies are the merge strategies that are built into git. For any other name git
// runs git-merge-NAME.
var strategies = []string{"", "ort", "recursive", "resolve", "octopus", "ours", "subtree"}

func checkStrategy(f file) []Problem {
	if slices.Contains(strategies, strings.TrimRight(string(f.data), "\r\n")) {
		return nil
	}
	return []Problem{{Line: 1, Reason: "a merge strategy of this name is a program", Hint: "use ort, resolve, octopus, ours or subtree"}}
}

// checkOptions checks sequencer/opts, which has the syntax of a configuration.
func checkOptions(f file) []Problem {
	list, problems := parseConfig(f.data)
	for i := range list {
		if s := &list[i]; s.section != "options" || s.sub != "" || s.name == "strategy" && !slices.Contains(strategies, s.value) {
			problems = append(problems, Problem{Line: s.line, Key: s.key(), Reason: "the setting could run a program"})
		}
	}
	return problems
}

func checkRemote(f file) []Problem {
	if len(f.data) == 0 {
		return nil
	}
	return []Problem{{Reason: "remotes of this form may name any transport", Hint: "use git remote add"}}
}

// checkHook allows exactly the hooks that git lfs install writes.
func checkHook(name string, f file) []Problem {
	if lfsHook(name, string(f.data)) {
		return nil
	}
	return []Problem{
		{Reason: "git runs hooks, later and with somebody else's rights", Hint: "propose the hook in words, or keep it as a script elsewhere"},
	}
}

// lfsMessages are the messages of the hooks of git-lfs for a missing git-lfs, by
// version.
var lfsMessages = []string{
	`{ echo >&2 "\nThis repository is configured for Git LFS but 'git-lfs' was not found on your path. If you no longer wish to use Git LFS, remove this hook by deleting '.git/hooks/NAME'.\n"; exit 2; }`,
	`{ echo >&2 "\nThis repository is configured for Git LFS but 'git-lfs' was not found on your path. If you no longer wish to use Git LFS, remove this hook by deleting .git/hooks/NAME.\n"; exit 2; }`,
	`{ echo >&2 "\nThis repository is configured for Git LFS but 'git-lfs' was not found on your path. If you no longer wish to use Git LFS, remove this hook by deleting the 'NAME' file in the hooks directory (set by 'core.hookspath'; usually '.git/hooks').\n"; exit 2; }`,
	`{ printf >&2 "\n%s\n\n" "This repository is configured for Git LFS but 'git-lfs' was not found on your path. If you no longer wish to use Git LFS, remove this hook by deleting the 'NAME' file in the hooks directory (set by 'core.hookspath'; usually '.git/hooks')."; exit 2; }`,
}

func lfsHook(name, data string) bool {
	if !slices.Contains([]string{"pre-push", "post-checkout", "post-commit", "post-merge"}, name) {
		return false
	}
	return slices.ContainsFunc(lfsMessages, func(m string) bool {
		return strings.TrimRight(
			data,
			"\n",
		) == "#!/bin/sh\ncommand -v git-lfs >/dev/null 2>&1 || "+strings.ReplaceAll(
			m,
			"NAME",
			name,
		)+"\ngit lfs "+name+` "$@"`
	}) || data == ""
}

// shown shortens the content of a file and makes it printable.
func shown(s string) string {
	if len(s) > 80 {
		s = s[:80] + "..."
	}
	return fmt.Sprintf("%q", s)
}

func isLink(mode fs.FileMode) bool { return mode&fs.ModeSymlink != 0 }
