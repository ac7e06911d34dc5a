// Package cli provides the commands that agentsh and agentctl share: version
// and man.
package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"
)

// Build identifies the build of a program.
type Build struct {
	Program string `json:"program"`
	Version string `json:"version"`          // of the release, or as git describes the tree
	Commit  string `json:"commit,omitempty"` // in hexadecimal digits; empty when the build does not know it
	Go      string `json:"go"`               // version of the toolchain
	OS      string `json:"os"`
	Arch    string `json:"arch"` // GOARCH
	// Libseccomp is the version of the library that is linked in; empty for a
	// program without it.
	Libseccomp string `json:"libseccomp,omitempty"`
}

// NewVersion returns the version command. The caller sets Program, Version and
// Commit, and Libseccomp if the library is linked in.
func NewVersion(b Build) *cobra.Command {
	b.Go, b.OS, b.Arch = runtime.Version(), runtime.GOOS, runtime.GOARCH
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version [--json]",
		Short: "Tell what this program was built from",
		Long: `Tell what this program was built from.

With --json one JSON object is printed: program, version, commit, go, os, arch
and, of agentsh, libseccomp. A key that is not known is absent.`,
		Example: "  " + b.Program + " version --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return b.print(cmd.OutOrStdout(), asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func (b Build) print(w io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(b)
	}
	text := fmt.Sprintf("%s %s (%s, %s/%s", b.Program, b.Version, b.Go, b.OS, b.Arch)
	if b.Libseccomp != "" {
		text += ", libseccomp " + b.Libseccomp
	}
	if b.Commit != "" {
		text += ", commit " + b.Commit
	}
	_, err := fmt.Fprintln(w, text+")")
	return err
}
