package projectcmd

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/internal/paths"
	"agentsh/internal/project"
	"agentsh/internal/text"
)

// initOptions are the flags of agentsh init.
type initOptions struct {
	stacks []string
	pack   string
	json   bool
}

// packs are policies that a project's can extend, the usual one first.
var packs = []string{"agent-sandbox", "dev-safe", "default", "ci-strict", "agent-strict"}

// NewInit is the command init.
func NewInit() *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init [DIR] [--stack NAME,...]",
		Short: "Write a policy for a project, with its tests",
		Long: `Write a policy for a project: ` + layout.ProjectPolicy + ` at the root of the git repository around
DIR (default: the current directory), and its tests beside it.

The policy extends a pack, and has rules for the stacks of the project: nothing is
published, and the registries that the project names can be reached, and those that your
variables and settings files name for its tools. What it decides
about usual requests is printed, and is what its tests say. A file that is there already is
never replaced: then nothing is written at all. The policy is used once you trust it.
A policy for a whole agent and its harness is written by 'agentctl init'.`,
		Example: "  agentsh init\n  agentsh init --stack node,python --pack dev-safe ~/src/project",
		Args:    cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.OutOrStdout(), args)
		},
	}
	cmd.Flags().StringSliceVar(&o.stacks, "stack", nil, "`NAME,...` of the stacks (default: those that files of the project show): "+
		strings.Join(stackNames(), ", "))
	cmd.Flags().StringVar(&o.pack, "pack", packs[0], "`NAME` or file of the policy to extend: "+strings.Join(packs, ", "))
	cmd.Flags().BoolVar(&o.json, "json", false,
		"print a JSON object: project, stacks, extends, files, decisions, registries, settings, notes, next")
	for flag, values := range map[string][]string{"stack": stackNames(), "pack": packs} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	}
	return cmd
}

func stackNames() []string {
	var out []string
	for i := range project.Stacks {
		out = append(out, project.Stacks[i].Name)
	}
	return out
}

// made is what init has written, as --json prints it.
type made struct {
	Project    string              `json:"project"`
	Stacks     map[string][]string `json:"stacks"` // files that show each one
	Extends    string              `json:"extends"`
	Files      []string            `json:"files"`
	Decisions  []decision          `json:"decisions"`
	Registries []project.Registry  `json:"registries"` // that rules of the policy allow
	Settings   []project.Set       `json:"settings"`   // variables of the user that the policy gives commands
	Notes      []string            `json:"notes"`
	Next       []string            `json:"next"`
}

func (o initOptions) run(out io.Writer, args []string) error {
	dir, err := root(args)
	if err != nil {
		return err
	}
	if slices.Contains(project.Homes(), dir) || dir == "/" {
		return failure.New(failure.Ours, fmt.Errorf("%s is no project", dir), "run 'agentsh init' in the directory of one, or name it")
	}
	tree, err := os.OpenRoot(dir)
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	defer func() { _ = tree.Close() }() // it is only read and created in
	m, err := o.make(tree, dir)
	if err != nil {
		return err
	}
	if o.json {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(m)
	}
	return m.print(out)
}

// make writes the files of a project.
func (o initOptions) make(tree *os.Root, dir string) (*made, error) {
	names := []string{layout.ProjectPolicy, strings.TrimSuffix(layout.ProjectPolicy, ".yaml") + "_test.yaml"}
	if err := free(tree, dir, names); err != nil {
		return nil, err
	}
	found, err := o.find(tree)
	if err != nil {
		return nil, err
	}
	pack, err := findPack(o.pack)
	if err != nil {
		return nil, err
	}
	w := writer{dir: dir, pack: pack, tree: tree, made: &made{
		Project: dir, Stacks: found, Extends: pack, Registries: []project.Registry{}, Settings: []project.Set{}, Notes: []string{},
		Next: []string{"agentsh policy test " + filepath.Dir(layout.ProjectPolicy), "agentsh trust", "agentsh exec -- " + usual(tree, found)},
	}}
	texts, err := w.write()
	if err != nil {
		return nil, err
	}
	if err := tree.MkdirAll(filepath.Dir(names[0]), 0o755); err != nil {
		return nil, failure.New(failure.Ours, fmt.Errorf("write the policy: %w", err), "")
	}
	if err := create(tree, names, texts[:]); err != nil {
		return nil, failure.New(failure.Ours, fmt.Errorf("write the policy: %w", err), "")
	}
	for _, name := range names {
		w.made.Files = append(w.made.Files, filepath.Join(dir, name))
	}
	return w.made, nil
}

// usual is a usual command of the first stack of a project. A project that npm ci refuses gets npm install.
func usual(tree *os.Root, found map[string][]string) string {
	for i := range project.Stacks {
		if _, ok := found[project.Stacks[i].Name]; !ok {
			continue
		}
		words := strings.Join(project.Stacks[i].Try[0], " ")
		if words == "npm ci" && !slices.ContainsFunc([]string{"package-lock.json", "npm-shrinkwrap.json"}, func(name string) bool {
			_, err := tree.Stat(name)
			return err == nil
		}) {
			return "npm install"
		}
		return words
	}
	return "bash"
}

// free checks that a project has none of some files, and that their directory is one.
func free(tree *os.Root, dir string, names []string) error {
	at := filepath.Dir(names[0])
	info, err := tree.Lstat(at)
	if err == nil && !info.IsDir() {
		return failure.New(failure.Ours, fmt.Errorf("%s is no directory: nothing is written", filepath.Join(dir, at)),
			"a link there could lead out of the project: remove it")
	}
	for _, name := range names {
		if _, err := tree.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return failure.New(failure.Ours, errors.Join(fmt.Errorf("%s is there already: nothing is written", filepath.Join(dir, name)), err),
				"change it, or move it away first")
		}
	}
	return nil
}

// create writes files that are not there: all of them, whole, or none.
func create(tree *os.Root, names []string, texts [][]byte) error {
	suffix := "." + rand.Text()
	defer func() {
		for _, name := range names {
			_ = tree.Remove(name + suffix) // it is not there if it was not written
		}
	}()
	for i, name := range names {
		if err := tree.WriteFile(name+suffix, texts[i], 0o644); err != nil {
			return err
		}
	}
	for i, name := range names {
		if err := tree.Link(name+suffix, name); err != nil {
			for _, made := range names[:i] {
				err = errors.Join(err, tree.Remove(made))
			}
			return err
		}
	}
	return nil
}

// find returns the stacks that the flag names, else those of the project.
func (o initOptions) find(tree *os.Root) (map[string][]string, error) {
	found, err := project.FindStacks(tree)
	if err != nil {
		return nil, failure.New(failure.Ours, err, "")
	}
	if len(o.stacks) == 0 {
		return found, nil
	}
	named := map[string][]string{}
	for _, name := range o.stacks {
		name = strings.TrimSpace(name)
		if !slices.Contains(stackNames(), name) {
			return nil, failure.Usagef("--stack %.64q is none of %s", name, strings.Join(stackNames(), ", "))
		}
		named[name] = append([]string{}, found[name]...)
	}
	return named, nil
}

// findPack finds a policy by its name: in the packages, beside this program as in the
// archive, or in the tree that this program was built in. A text with a slash is a file.
func findPack(name string) (string, error) {
	candidates := []string{filepath.Join(layout.Policies, name+".yaml")}
	if strings.Contains(name, "/") || strings.HasSuffix(name, ".yaml") {
		file, err := filepath.Abs(name)
		if err != nil {
			return "", failure.New(failure.Ours, err, "")
		}
		candidates = []string{file}
	} else if !slices.Contains(packs, name) {
		return "", failure.Usagef("--pack %.64q is no file and none of %s", name, strings.Join(packs, ", "))
	} else if self, err := os.Executable(); err == nil {
		beside := filepath.Dir(paths.Resolve(self))
		candidates = append(candidates, filepath.Join(beside, "policies", name+".yaml"),
			filepath.Join(filepath.Dir(beside), "packaging/policies", name+".yaml"))
	}
	for _, file := range candidates {
		if strings.ContainsFunc(file, unicode.IsControl) {
			return "", failure.Usagef("%q has a control character", file)
		}
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
	}
	return "", failure.New(failure.Ours, fmt.Errorf("no policy to extend: looked for %s", strings.Join(candidates, ", ")),
		"install the package, or name a policy with --pack FILE")
}

// print prints for people what was written.
func (m *made) print(out io.Writer) error {
	var b strings.Builder
	for _, name := range m.Files {
		b.WriteString(text.Short(name, 4096) + "\n")
	}
	b.WriteString("\nextends " + text.Short(m.Extends, 4096) + "\n")
	for _, name := range stackNames() {
		if files, ok := m.Stacks[name]; ok {
			b.WriteString("stack " + name)
			if len(files) > 0 {
				b.WriteString(": " + text.Short(strings.Join(files, ", "), 400))
			}
			b.WriteString("\n")
		}
	}
	if len(m.Stacks) == 0 {
		b.WriteString("no stack was found; --stack names one\n")
	}
	b.WriteString("\nWhat it decides, by its tests, which pass:\n")
	for _, d := range m.Decisions {
		fmt.Fprintf(&b, "  %-8s %s (%s)\n", d.Decision, text.Short(d.What, 200), text.Short(d.Rule, 100))
	}
	for _, r := range m.Registries {
		fmt.Fprintf(&b, "note: %s:%s is allowed because %s names it: is it a registry that you know?\n", r.Host, r.Port, r.File)
	}
	for _, set := range m.Settings {
		fmt.Fprintf(&b, "note: commands get %s=%s, as you have it by %s\n", set.Name, text.Short(set.Value, 200), text.Short(set.From, 100))
	}
	for _, note := range m.Notes {
		b.WriteString("note: " + text.Short(note, 600) + "\n")
	}
	b.WriteString("\nRead the policy. Then:\n")
	for _, next := range m.Next {
		b.WriteString("next: " + text.Short(next, 4096) + "\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}
