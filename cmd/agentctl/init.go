package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// example is the harness that init writes: it runs as it is.
//
//go:embed example
var example embed.FS

func newInitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init [DIR]",
		Short: "Write a working harness to start from",
		Long: `init writes a small harness with its agent, policy and scripts to DIR, by
default the current directory. A file that is there already is never replaced:
then nothing is written at all.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "."
			if len(args) == 1 {
				dir = args[0]
			}
			names, err := writeExample(dir)
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
}

// writeExample writes the example below dir and returns the names of the files.
func writeExample(dir string) (names []string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("write the example: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("write the example: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	source, err := fs.Sub(example, "example")
	if err != nil {
		return nil, fmt.Errorf("write the example: %w", err)
	}
	err = fs.WalkDir(source, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if _, err := root.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(fmt.Errorf("%s is there already: nothing is written", filepath.Join(dir, name)), err)
		}
		names = append(names, name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := writeOne(root, source, name); err != nil {
			return nil, fmt.Errorf("write the example: %w", err)
		}
	}
	return names, nil
}

func writeOne(root *os.Root, source fs.FS, name string) error {
	data, err := fs.ReadFile(source, name)
	if err != nil {
		return err
	}
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
