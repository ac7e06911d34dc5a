package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
)

// newCopySelfCommand is the init container of a pod that agentctl makes. The image of the program
// has no shell and no cp.
func newCopySelfCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "copy-self FILE",
		Short:  "Write this program to a file",
		Hidden: true, // agentctl alone uses it
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := copySelf(args[0]); err != nil {
				return failure.New(failure.Ours, fmt.Errorf("copy agentsh to %s: %w", args[0], err), "")
			}
			return nil
		},
	}
}

// copySelf writes this program to a file, which appears complete or not at all.
func copySelf(name string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	part := name + ".part"
	to, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, self)
	if err = errors.Join(err, to.Chmod(0o755), to.Close()); err == nil {
		err = os.Rename(part, name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return nil
}
