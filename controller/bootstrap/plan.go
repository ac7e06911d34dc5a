// Package bootstrap plans the files of a new sandbox and sends them. The plan
// is a list of files with modes and digests. Making a plan writes nothing. The
// scanned files are the planned files, and only planned content is delivered.
package bootstrap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"agentsh/internal/layout"

	"agentsh/controller/git"
	"agentsh/internal/tarfs"
)

const tmp = "/tmp"

// spare is the number of files that a plan usually has besides those of the commit.
const spare = 1000

// Input is the input of a plan. Paths without a comment are paths of the host.
type Input struct {
	Agent      string // name; letters, digits, dash and underscore
	Definition string // the agent's markdown file
	Note       []byte // appended to the definition
	Skills     []Skill
	Plugins    []string // directories; the base name is the plugin's

	Repo     string   // a clone prepared for the sandbox, its .git included
	Commit   Commit   // of the repository
	Hidden   []string // files and directories of it that are not sent; slash paths
	RepoName string   // directory of the workspace
	AgentsMD []byte   // AGENTS.md of the organisation, for a repository without one; nil: none
	Bridge   bool     // the runtime reads CLAUDE.md only, as Claude Code does

	Files    []File // host files and .env.d files
	Internal []File // made by the controller, anywhere below the root: generated.env, hooks and settings of the agent program
	Input    string // directory for agent-input; empty: none

	Limits tarfs.Limits
}

// Skill is a directory whose base name is the skill's.
type Skill struct {
	Dir       string
	Overrides map[string]string // clean local paths with slashes to files of the host; empty: the file or directory is left out
}

// Commit describes the files of a repository that exist only as objects.
type Commit struct {
	Tree    []git.TreeEntry
	Objects git.Objects
}

// File is one file to deliver.
type File struct {
	Dest   string // absolute, inside the sandbox
	Source string // file of the host, symbolic links are followed; empty: Data is the content
	Data   []byte
	Mode   fs.FileMode // permission bits
	Target string      // not empty: a symbolic link of the agent program with this target
}

// Plan is the list of files of a sandbox, sorted by destination.
type Plan struct {
	Entries []Entry
	Skipped []string // files of the repository that cannot be sent, each with the reason
	Added   []string // files added to the repository
	limits  tarfs.Limits
	objects git.Objects
}

// Kinds of an [Entry].
const (
	KindFile    = git.KindFile
	KindDir     = git.KindDir
	KindSymlink = git.KindSymlink
)

// Entry is one file, directory or symbolic link of a plan.
type Entry struct {
	Dest   string // absolute, inside the sandbox
	Kind   string
	Mode   fs.FileMode
	Size   int64
	SHA256 string // hex, of a file; empty if the content is an object of the repository
	Target string // of a symbolic link

	data   []byte // the content, if there is no source
	tree   string // directory of the host that contains source; empty: source is a single file
	source string
	blob   string // name of the object with the content
}

// Source is the file of the host with the content, or empty.
func (e Entry) Source() string {
	if e.tree == "" || e.blob != "" {
		return e.source
	}
	return filepath.Join(e.tree, e.source)
}

// New makes a plan. It reads the host's files for their digests and writes
// nothing. The error lists all problems of the input.
func New(in Input) (Plan, error) {
	if err := in.check(); err != nil {
		return Plan{}, fmt.Errorf("plan sandbox: %w", err)
	}
	b := newBuilder(len(in.Commit.Tree) + spare)
	b.definition(in)
	for _, s := range in.Skills {
		b.skill(s)
	}
	for _, dir := range in.Plugins {
		b.operatorTree(path.Join(layout.ConfigDir, "plugins", filepath.Base(dir)), dir)
	}
	if in.Input != "" {
		b.operatorTree(layout.AgentInput, in.Input)
	}
	skipped, added := b.repository(in)
	for _, f := range in.Internal {
		b.internalFile(f)
	}
	for _, f := range in.Files {
		b.hostFile(f)
	}
	p := Plan{Skipped: skipped, Added: added, limits: in.Limits, objects: in.Commit.Objects}
	b.checkParents()
	p.Entries = slices.DeleteFunc(b.entries, func(e Entry) bool { return e.Dest == "" })
	sort.Slice(p.Entries, func(i, j int) bool { return p.Entries[i].Dest < p.Entries[j].Dest })
	if err := errors.Join(b.problems...); err != nil {
		return Plan{}, fmt.Errorf("plan sandbox: %w", err)
	}
	return p, nil
}

// check rejects names that lead out of their directories.
func (in Input) check() error {
	var problems []error
	if strings.Trim(in.Agent, nameChars) != "" || in.Agent == "" {
		problems = append(problems, fmt.Errorf("agent name %.100q: only letters, digits, - and _", in.Agent))
	}
	taken := map[string]bool{path.Base(layout.AgentInput): true, "bin": true}
	if in.RepoName == "" || in.RepoName[0] == '.' || in.RepoName[0] == '-' || strings.Trim(in.RepoName, nameChars+".") != "" ||
		taken[in.RepoName] {
		problems = append(
			problems,
			fmt.Errorf(
				"repository name %.100q: only letters, digits, -, _ and inner dots, and not the name of another directory there",
				in.RepoName,
			),
		)
	}
	skills := make([]string, len(in.Skills))
	for i, s := range in.Skills {
		skills[i] = s.Dir
	}
	for _, list := range [][]string{skills, in.Plugins} {
		seen := map[string]string{}
		for _, dir := range list {
			base := filepath.Base(dir)
			if base[0] == '.' || base[0] == '-' || strings.Trim(base, nameChars+".") != "" {
				problems = append(problems, fmt.Errorf("directory name %.100q: only letters, digits, -, _ and inner dots", base))
			}
			if other, ok := seen[base]; ok {
				problems = append(problems, fmt.Errorf("%s and %s have one name", other, dir))
			}
			seen[base] = dir
		}
	}
	for _, f := range in.Internal {
		if path.Clean(f.Dest) != f.Dest || !strings.HasPrefix(f.Dest, layout.Sandbox+"/") || strings.ContainsAny(f.Dest, "\x00\n\r") {
			problems = append(problems, fmt.Errorf("file %.200q of the controller is not a clean path below %s", f.Dest, layout.Sandbox))
		}
	}
	return errors.Join(problems...)
}

const nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

// checkDest rejects a host file outside the sandbox's directories, or at the
// path of a file of the supervisor or the runtime.
func checkDest(dest string) error {
	if path.Clean(dest) != dest || strings.ContainsAny(dest, "\x00\n\r") {
		return fmt.Errorf("destination %.200q is not a clean path", dest)
	}
	if !strings.HasPrefix(dest, layout.Sandbox+"/") && !strings.HasPrefix(dest, tmp+"/") {
		return fmt.Errorf("destination %.200q is not under %s or %s", dest, layout.Sandbox, tmp)
	}
	if layout.Reserved(dest) {
		return fmt.Errorf("destination %.200q belongs to the supervisor", dest)
	}
	return nil
}

// checkParents rejects an entry below an entry that is not a directory.
func (b *builder) checkParents() {
	for _, e := range b.entries {
		for dir := path.Dir(e.Dest); len(dir) > 1; dir = path.Dir(dir) {
			if above := b.entry(dir); above != nil && above.Kind != KindDir {
				b.problem(fmt.Errorf("%s is a %s, %s cannot be below it", dir, above.Kind, e.Dest))
			}
		}
	}
}

// open opens the content of a file. The caller closes it.
func (e Entry) open() (*os.File, error) {
	if e.tree == "" {
		return openRegular(func(flag int) (*os.File, error) { return os.OpenFile(e.source, flag, 0) })
	}
	root, err := os.OpenRoot(e.tree)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return openRegular(func(flag int) (*os.File, error) { return root.OpenFile(e.source, flag, 0) })
}
