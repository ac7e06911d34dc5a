package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/controller"
	"agentsh/packaging/containers"
)

// profiles are the seccomp profiles for containers, by the name of the file.
var profiles = map[string]string{"seccomp-user.json": containers.SeccompUser, "seccomp-root.json": containers.SeccompRoot}

func newProfilesCommand() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "profiles --to DIR",
		Short: "Write the seccomp profiles for containers",
		Long: `Write the seccomp profiles of containers in which sessions have full strength: seccomp-user.json for a user,
seccomp-root.json for root. Backends for Docker and podman send them; the nodes of a cluster need the files, see
doc/platforms/kubernetes.md.`,
		Example: "  agentctl profiles --to /var/lib/kubelet/seccomp/agentsh",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			err := os.MkdirAll(to, 0o755)
			for name, text := range profiles {
				if err == nil {
					err = replace(filepath.Join(to, name), text)
				}
			}
			if err != nil {
				return &output.Failure{Code: controller.ExitConfiguration, Err: fmt.Errorf("write the profiles: %w", err)}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "`DIR` of the files, which is made")
	if err := cmd.MarkFlagRequired("to"); err != nil {
		panic(err) // there is no such flag
	}
	return cmd
}

// replace writes a file, which everybody may read, at once.
func replace(name, text string) error {
	part := name + ".part"
	if err := os.WriteFile(part, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(part, name)
}
