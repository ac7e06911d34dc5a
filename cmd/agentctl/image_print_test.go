package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"agentsh/controller/vmimage"
)

// A kernel of a distribution has its drivers as modules: without them its machines do not start.
func TestAnImageWithoutModulesSaysSo(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		var out, notes strings.Builder
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		cmd.SetErr(&notes)
		made := vmimage.Image{Path: "/i", Kernel: vmimage.Kernel{Release: "6.1.0", Arch: "amd64"}}
		if err := printImage(cmd, made, asJSON); err != nil || !strings.Contains(notes.String(), "no modules of kernel 6.1.0 were found") {
			t.Errorf("%v: %q, %q", err, out.String(), notes.String())
		}
		notes.Reset()
		made.Modules.Loaded = append(made.Modules.Loaded, vmimage.Module{Name: "fuse"})
		if err := printImage(cmd, made, asJSON); err != nil || notes.String() != "" {
			t.Errorf("%v: %q", err, notes.String())
		}
	}
}
