package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/settings"
)

// example is the harness that init writes: it runs as it is.
//
//go:embed example
var example embed.FS

// ofExample is the runtime of the example.
const ofExample = "command"

func newInitCommand() *cobra.Command {
	var runtime, program string
	cmd := &cobra.Command{
		Use:   "init [DIR] [--runtime command|claude|codex|gemini|opencode]",
		Short: "Write a working harness to start from",
		Long: `init writes a small harness with its agent, policy and scripts to DIR, by
default the current directory. A file that is there already is never replaced:
then nothing is written at all.

With --runtime the harness is for an agent program: it has the provider of its
model, a policy that lets the program and its model through, and tests of this
policy. The harness runs as soon as the program is installed and its key is set.
Without --runtime, or with "command", the agent is a shell command, which needs no
model.`,
		Example: "  agentctl init --runtime claude agent\n" +
			"  ANTHROPIC_API_KEY=... agentctl run agent/harness/mender.yaml --repo REPOSITORY",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "."
			if len(args) == 1 {
				dir = args[0]
			}
			if runtime == ofExample && program != "" {
				return errors.New("--program names the program of an agent: --runtime " + strings.Join(starterNames(), "|"))
			}
			files, err := exampleFiles()
			if runtime != ofExample {
				files, err = starterFiles(runtime, program)
			}
			if err != nil {
				return err
			}
			names, err := writeFiles(dir, files)
			if err != nil {
				return err
			}
			for _, name := range names {
				fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(dir, name))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "next: agentctl lint %s\n", dir)
			return nil
		},
	}
	runtimes := append([]string{ofExample}, starterNames()...)
	cmd.Flags().StringVar(&runtime, "runtime", ofExample, "write a harness for this agent program: "+strings.Join(runtimes, ", "))
	cmd.Flags().StringVar(&program, "program", "", "`FILE` of the agent program (default: the one in PATH)")
	settings.Complete(cmd, "runtime", runtimes)
	return cmd
}

// exampleFiles are the files of the example.
func exampleFiles() (map[string][]byte, error) {
	files := map[string][]byte{}
	err := fs.WalkDir(example, "example", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[strings.TrimPrefix(name, "example/")], err = fs.ReadFile(example, name)
		return err
	})
	return files, err
}

// writeFiles writes files below dir and returns their names. If one of them
// exists, nothing is written.
func writeFiles(dir string, files map[string][]byte) (names []string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("write the harness: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("write the harness: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	names = slices.Sorted(maps.Keys(files))
	for _, name := range names {
		if _, err := root.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("%s is there already: nothing is written", filepath.Join(dir, name)), err)
		}
	}
	for _, name := range names {
		if err := writeOne(root, name, files[name]); err != nil {
			return nil, fmt.Errorf("write the harness: %w", err)
		}
	}
	return names, nil
}

func writeOne(root *os.Root, name string, data []byte) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if filepath.Ext(name) == ".sh" {
		mode = 0o755
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
