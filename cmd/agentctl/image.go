package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/controller"
	"agentsh/controller/sandbox/blaxel"
	"agentsh/controller/sandbox/vm"
	"agentsh/controller/vmimage"
	"agentsh/internal/text"
)

func newImageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Make images of virtual machines, here and at Blaxel",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newImageBuildCommand())
	return cmd
}

func newImageBuildCommand() *cobra.Command {
	var o vmimage.BuildOptions
	var asJSON bool
	b := blaxelBuild{memory: 4096}
	target := vm.Name
	cmd := &cobra.Command{
		Use:   "build [SOURCE]",
		Short: "Make an image for the backend vm or blaxel",
		Long: `build makes a directory from which virtual machines of the backend vm boot: a
kernel with the modules that sandboxes need, and a root disk of the files of SOURCE.

SOURCE is a directory with a root file system, an OCI image layout, or an archive of
docker save or of plain files, which may be compressed by gzip. Without SOURCE the image
has no root disk. Its machines then have no files but those of the run.

Owners, modes, hard links and capabilities of programs stay as they are. build needs
neither root nor another program. Of a directory it must be able to read all files.

The kernel is one that a package of a distribution installs, or another one that has
virtio, FUSE, overlayfs and virtual sockets or virtio-serial: see doc/platforms/vm.md.

With --for blaxel, SOURCE is a directory with a Dockerfile, or the Dockerfile. build adds
agentsh and Blaxel's sandbox API, sends the directory to Blaxel and waits until the image is
there, at most 15 minutes. The directory is sent without what .dockerignore excludes. Files
with credentials and links that lead out of it are errors. With --to the archive is a file
here, and nothing is sent: see doc/platforms/blaxel.md.`,
		Example: "  agentctl image build app.tar --kernel /boot/vmlinuz-6.12.0-cloud-amd64 --to images/app\n" +
			"  agentctl image build app --for blaxel --name app",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkTarget(cmd, target); err != nil {
				return err
			}
			if target == blaxel.Name {
				b.to, b.json = o.Output, asJSON
				return b.run(cmd, args)
			}
			if o.Kernel == "" || o.Output == "" {
				return errors.New("name the kernel with --kernel, and the directory of the image with --to")
			}
			if len(args) > 0 {
				o.Source = args[0]
			}
			made, err := vmimage.Build(cmd.Context(), o)
			if err != nil {
				return &output.Failure{Code: controller.ExitConfiguration, Err: err}
			}
			return printImage(cmd, made, asJSON)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Kernel, "kernel", "", "`FILE` of the kernel, such as /boot/vmlinuz-VERSION")
	flags.StringVar(&o.Modules, "modules", "",
		"`DIR` of its modules (default: /lib/modules/VERSION, where the kernel's own directory has one)")
	flags.StringVar(&o.Output, "to", "", "`DIR` to make; with --for blaxel: the archive, which is then not sent")
	flags.StringVar(&target, "for", target, "`BACKEND` that uses the image: vm or blaxel")
	flags.BoolVar(&asJSON, "json", false, "print a JSON object")
	b.add(cmd)
	return cmd
}

// checkTarget refuses flags of the other backend.
func checkTarget(cmd *cobra.Command, target string) error {
	others := blaxelFlags
	switch target {
	case vm.Name:
	case blaxel.Name:
		others = []string{"kernel", "modules"}
	default:
		return &output.Failure{Code: controller.ExitConfiguration, Err: fmt.Errorf("--for %q: write vm or blaxel", target)}
	}
	for _, name := range others {
		if cmd.Flags().Changed(name) {
			hint := "leave it out"
			if target == vm.Name && !cmd.Flags().Changed("for") {
				hint = "add --for " + blaxel.Name
			}
			return &output.Failure{
				Code: controller.ExitConfiguration, Err: fmt.Errorf("--%s is not for images of the backend %s", name, target), Hint: hint,
			}
		}
	}
	return nil
}

// builtImage describes an image in JSON.
type builtImage struct {
	Path      string `json:"path"`
	Kernel    string `json:"kernel"`
	Arch      string `json:"arch"`
	Modules   int    `json:"modules"` // that can be loaded
	RootBytes int64  `json:"root_bytes,omitempty"`
	Digest    string `json:"digest,omitempty"` // of the root disk
}

func printImage(cmd *cobra.Command, made vmimage.Image, asJSON bool) error {
	path, err := filepath.Abs(made.Path)
	if err != nil {
		return err
	}
	b := builtImage{Path: path, Kernel: made.Kernel.Release, Arch: made.Kernel.Arch, Modules: len(made.Modules.Loaded), Digest: made.Digest}
	if made.Root != "" {
		info, err := os.Stat(made.Root)
		if err != nil {
			return err
		}
		b.RootBytes = info.Size()
	}
	if len(made.Modules.Loaded)+len(made.Modules.Builtin) == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "note: no modules of kernel %s were found: unless it has its drivers built in, machines do not start. "+
			"Name the directory /lib/modules/%[1]s of the kernel with --modules\n", text.Visible(b.Kernel))
	}
	if asJSON {
		return output.WriteJSON(cmd.OutOrStdout(), b)
	}
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "%s: kernel %s (%s), %d modules\n", text.Visible(b.Path), text.Visible(b.Kernel), b.Arch, b.Modules)
	if b.RootBytes > 0 {
		fmt.Fprintf(out, "root disk of %d MiB, %s\n", b.RootBytes>>20, b.Digest)
	}
	return nil
}
