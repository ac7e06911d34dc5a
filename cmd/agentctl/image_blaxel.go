package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/buildcontext"
	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/blaxel"
	"agentsh/internal/beneath"
	"agentsh/internal/statedir"
	"agentsh/internal/text"
)

// blaxelBuild is 'agentctl image build --for blaxel'.
type blaxelBuild struct {
	source       blaxel.Source
	name         string
	memory       int64
	connect, key string
	replace      bool
	to           string // the archive; empty: Blaxel
	json         bool
}

// blaxelFlags are flags of images for Blaxel alone.
var blaxelFlags = []string{"name", "from", "package", "shim", "sandbox-api", "memory", "replace", "connect", "connect-key", "agentsh"}

func (b *blaxelBuild) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&b.name, "name", "", "blaxel: `NAME` of the image, and of the sandbox that Blaxel deploys with it")
	flags.StringVar(&b.source.From, "from", "", "blaxel: `IMAGE` to add agentsh to, instead of SOURCE")
	flags.StringVar(&b.source.Package, "package", "", "blaxel: `FILE` of agentsh's package, .deb, .rpm or .apk (default: the program alone)")
	flags.BoolVar(&b.source.Shim, "shim", false,
		"blaxel: install the shim, so that what the sandbox API starts is governed; 'agentctl run' needs an image without it")
	flags.StringVar(&b.source.API, "sandbox-api", "latest", "blaxel: `VERSION` of Blaxel's sandbox API")
	flags.Int64Var(&b.memory, "memory", b.memory, "blaxel: `MiB` of memory of the sandbox that Blaxel deploys")
	flags.BoolVar(&b.replace, "replace", false, "blaxel: replace a sandbox of this name, even if agentctl did not build it")
	flags.StringVar(&b.connect, "connect", "", "blaxel: `ADDRESS` of the workspace: "+blaxel.Forms+" (default: BL_WORKSPACE and BL_REGION)")
	flags.StringVar(&b.key, "connect-key", "", "blaxel: `FILE` with the API key (default: BL_API_KEY)")
	flags.StringVar(&b.source.Agentsh, "agentsh", "",
		"blaxel: `FILE` of the supervisor (default: beside agentctl, then /usr/lib/agentsh, then PATH)")
}

func (b *blaxelBuild) run(cmd *cobra.Command, args []string) error {
	err := b.build(cmd, args)
	var done *output.Failure
	if err == nil || errors.As(err, &done) {
		return err
	}
	failure := &output.Failure{Code: controller.ExitConfiguration, Err: err}
	var end *sandbox.End
	if errors.As(err, &end) {
		failure.Code, failure.Hint = controller.ExitSandbox, end.Hint
	}
	return failure
}

func (b *blaxelBuild) build(cmd *cobra.Command, args []string) (err error) {
	if err := blaxel.CheckMemory(b.memory); err != nil {
		return &output.Failure{
			Code: controller.ExitConfiguration, Err: fmt.Errorf("--memory %w", err), Hint: "write --memory 4096, which gives 2 processors as well",
		}
	}
	switch {
	case len(args) == 0 && b.source.From == "":
		return errors.New("name the directory with the Dockerfile, or an image with --from")
	case len(args) > 0 && b.source.From != "":
		return errors.New("name a directory or an image with --from, not both")
	case len(args) > 0:
		if b.source.Dir, b.source.Dockerfile, err = findDockerfile(args[0]); err != nil {
			return err
		}
	}
	if b.to != "" {
		return b.write(cmd)
	}
	if b.name == "" {
		return errors.New("name the image with --name, or a file for its archive with --to")
	}
	if err := blaxel.CheckImageName(b.name); err != nil {
		return err
	}
	at, err := blaxel.Open(blaxel.Config{Address: b.connect, KeyFile: b.key, Getenv: os.Getenv})
	if err != nil {
		return &output.Failure{Code: controller.ExitConfiguration, Err: err, Hint: "see doc/platforms/blaxel.md"}
	}
	b.source.Key = at.Key()
	archive, packed, err := b.pack(cmd, os.TempDir())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, archive.Remove()) }()
	b.said(cmd, packed, "sending")
	made, err := at.Build(cmd.Context(), blaxel.Image{
		Name: b.name, Memory: b.memory, Archive: archive.Path, Replace: b.replace,
		Report: func(status string) { fmt.Fprintf(cmd.ErrOrStderr(), "agentctl: %s: %s\n", b.name, status) },
	})
	if err != nil {
		return err
	}
	return b.print(cmd, made, packed)
}

// findDockerfile is the directory and the name of a Dockerfile.
func findDockerfile(source string) (dir, name string, err error) {
	source, err = settings.Absolute(source)
	if err != nil {
		return "", "", err
	}
	info, err := os.Stat(source)
	if err != nil {
		return "", "", err
	}
	if info.IsDir() {
		return source, "", nil
	}
	return filepath.Dir(source), filepath.Base(source), nil
}

// pack makes the archive in a directory. The caller removes it.
func (b *blaxelBuild) pack(cmd *cobra.Command, dir string) (made *statedir.Temporary, packed buildcontext.Packed, err error) {
	state, err := settings.State()
	if err != nil {
		return nil, packed, err
	}
	if made, err = state.Temporary(filepath.Join(dir, ".agentctl-image-")); err != nil {
		return nil, packed, err
	}
	f, err := os.OpenFile(made.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		packed, err = blaxel.Pack(cmd.Context(), f, b.source)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, packed, errors.Join(err, made.Remove())
	}
	return made, packed, nil
}

// sendFlags are the flags of what is sent alone.
var sendFlags = []string{"name", "memory", "replace", "connect", "connect-key"}

// write makes the archive and sends nothing. A file that is there already stays.
func (b *blaxelBuild) write(cmd *cobra.Command) error {
	for _, name := range sendFlags {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s is for an image that is sent: leave it out, or leave out --to", name)
		}
	}
	b.source.Key = os.Getenv("BL_API_KEY")
	archive, packed, err := b.pack(cmd, filepath.Dir(b.to))
	if err != nil {
		return err
	}
	if err := beneath.Rename(unix.AT_FDCWD, archive.Path, b.to, false); err != nil {
		err = fmt.Errorf("--to %s: %w", b.to, err)
		if errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("--to %s is there: remove it, or name another file", b.to)
		}
		return errors.Join(err, archive.Remove())
	}
	if err := archive.Keep(); err != nil {
		return err
	}
	b.said(cmd, packed, "written to "+text.Visible(b.to)+":")
	if b.json {
		return output.WriteJSON(cmd.OutOrStdout(), builtAtBlaxel{Archive: b.to, Files: packed.Files, Bytes: packed.Bytes})
	}
	return nil
}

func (b *blaxelBuild) said(cmd *cobra.Command, p buildcontext.Packed, what string) {
	fmt.Fprintf(cmd.ErrOrStderr(), "agentctl: %s %d files, %d MiB; %d names were left out\n", what, p.Files, (p.Bytes+1<<20-1)>>20, p.LeftOut)
}

// builtAtBlaxel describes an image at Blaxel in JSON.
type builtAtBlaxel struct {
	Name    string `json:"name,omitempty"`    // of the sandbox
	Image   string `json:"image,omitempty"`   // for the harness
	Archive string `json:"archive,omitempty"` // with --to: its file
	Files   int    `json:"files"`
	Bytes   int64  `json:"bytes"`
}

func (b *blaxelBuild) print(cmd *cobra.Command, made blaxel.Built, packed buildcontext.Packed) error {
	out := cmd.OutOrStdout()
	switch {
	case b.json:
		return output.WriteJSON(out, builtAtBlaxel{Name: made.Name, Image: made.Image, Files: packed.Files, Bytes: packed.Bytes})
	case made.Image == "":
		fmt.Fprintf(out, "%s: Blaxel does not say the name of the image: 'bl get images' lists it\n", made.Name)
	default:
		fmt.Fprintf(out, "image: %s\n", text.Visible(made.Image))
	}
	return nil
}
