package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/controller"
	"agentsh/internal/channel"
	"agentsh/internal/layout"
	"agentsh/internal/tarfs"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

func newSandboxCpCommand() *cobra.Command {
	var git bool
	cmd := &cobra.Command{
		Use:   "cp {SANDBOX:SRC DST | SRC SANDBOX:DST}",
		Short: "Copy files out of a sandbox or into it",
		Long: `Copy a file or a directory with all below it out of a sandbox or into it.

Paths in the sandbox are below /sandbox; a relative one starts in the repository.

When DST is a directory, the copy is made in it under the name of SRC; otherwise it is
DST, whose directory must exist. A file replaces a file; nothing replaces or merges
with a directory on this machine.

A copy out has at most 200,000 files, 24 MiB of names and 16 GiB.

Files, directories and links that stay within what is copied travel; devices, sockets,
fifos and links that lead out do not, and are named. Set-user-id bits and owners never
travel. What comes out appears whole or not at all. A .git is left out: the agent wrote
it, and git runs what it names.

What is copied in counts among the agent's changes when its work is taken out.`,
		Example: "  agentctl sandbox cp latest:go.mod .\n" +
			"  agentctl sandbox cp latest:/sandbox/workspace/output/report.txt .\n  agentctl sandbox cp fix.patch " +
			"latest:/sandbox/workspace/",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, out := splitSandbox(args[0])
			to, in := splitSandbox(args[1])
			if (from == "") == (to == "") {
				return &failure{
					code: controller.ExitConfiguration,
					err:  errors.New("one of the two is SANDBOX:PATH"),
					hint: "a file whose name has a colon is ./NAME",
				}
			}
			client, one, err := attachTo(cmd.Context(), from+to)
			if err != nil {
				return err
			}
			c := &copier{client: client, git: git}
			if from != "" {
				err = c.out(cmd.Context(), inRepository(one.Workdir, out), args[1])
			} else {
				err = c.in(cmd.Context(), args[0], inRepository(one.Workdir, in))
			}
			for _, s := range c.skipped {
				fmt.Fprintf(cmd.ErrOrStderr(), "agentctl: left out: %s\n", text.Visible(s))
			}
			if err == nil && len(c.skipped) > 0 {
				err = fmt.Errorf("%d of the files could not travel", len(c.skipped))
			}
			if err = errors.Join(err, client.Close()); err != nil {
				return &failure{code: controller.ExitSandbox, err: err, hint: hintOfCp(err)}
			}
			return nil
		},
		ValidArgsFunction: completeCp,
	}
	cmd.Flags().BoolVar(&git, "git", false, "copy .git too; run no git in a copy of an agent's")
	return cmd
}

// splitSandbox splits SANDBOX:PATH. Without a sandbox it is a path of this
// machine.
func splitSandbox(arg string) (sandbox, name string) {
	sandbox, name, ok := strings.Cut(arg, ":")
	if !ok || sandbox == "" || strings.Contains(sandbox, "/") {
		return "", arg
	}
	return sandbox, name
}

// inRepository makes a path of a sandbox absolute. A relative one starts in the
// repository; a slash at its end remains.
func inRepository(repository, name string) string {
	if path.IsAbs(name) || repository == "" {
		return name
	}
	abs := path.Join(repository, name)
	if strings.HasSuffix(name, "/") {
		abs += "/"
	}
	return abs
}

// hintOfCp says what to do about a path that a sandbox does not copy.
func hintOfCp(err error) string {
	if outside := (*wire.Error)(nil); errors.As(err, &outside) && outside.Code == wire.CodeOutside {
		return "files are copied below " + layout.Sandbox + " only; 'agentctl sandbox exec SANDBOX -- cat FILE' prints others"
	}
	return ""
}

// completeCp completes files, and sandboxes followed by a colon.
func completeCp(cmd *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if strings.ContainsAny(word, ":/.") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	names, _ := completeRuns(hasSandbox)(cmd, nil, word)
	for i := range names {
		name, about, _ := strings.Cut(names[i], "\t")
		names[i] = cobra.CompletionWithDesc(name+":", about)
	}
	return names, cobra.ShellCompDirectiveNoSpace
}

// copier copies between this machine and a sandbox.
type copier struct {
	client  *channel.Client
	git     bool
	skipped []string
}

// inGit reports whether a path is a .git or below one.
func inGit(name string) bool {
	for part := range strings.SplitSeq(filepath.ToSlash(name), "/") {
		if tarfs.IsGitDir(part) {
			return true
		}
	}
	return false
}

// copyLimits bound a copy out of a sandbox. The names are held in memory.
var copyLimits = tarfs.Limits{Files: 200_000, AllNames: 24 << 20}

// out copies a path of the sandbox to this machine.
func (c *copier) out(ctx context.Context, src, dst string) error {
	src = path.Clean(src)
	if !c.git && inGit(src) {
		return fmt.Errorf("%s is of a .git, which the agent wrote: --git copies it all the same", text.Visible(src))
	}
	info, err := c.client.Stat(ctx, src)
	if err != nil {
		return err
	}
	parent, name, err := destination(dst, path.Base(src))
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(parent)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // renamed files stay
	if err := replaceable(root, name, info.Type == "dir"); err != nil {
		return err
	}
	request := wire.CopyOut{Dir: wire.Name(src), SkipGit: !c.git}
	if info.Type != "dir" {
		request.Dir, request.Names = wire.Name(path.Dir(src)), []string{path.Base(src)}
	}
	staging := ".agentctl-cp-" + rand.Text()
	m, err := channel.ReceiveArchive(ctx, c.client, request, channel.ArchiveTarget{
		Parent: root, Name: staging, Options: tarfs.ReceiveOptions{UnpackOptions: tarfs.UnpackOptions{RefuseGit: !c.git, Limits: copyLimits}},
	})
	c.skipped = m.Skipped
	if err != nil {
		return err
	}
	if info.Type == "dir" {
		return renameInto(root, staging, name)
	}
	defer func() { _ = root.RemoveAll(staging) }()
	if len(m.Entries) == 0 {
		return nil // it was skipped
	}
	return renameInto(root, path.Join(staging, path.Base(src)), name)
}

// destination is the directory and the name of a copy: base in dst if dst is a
// directory, otherwise dst.
func destination(dst, base string) (parent, name string, err error) {
	info, err := os.Stat(dst)
	switch {
	case err == nil && info.IsDir() && base != "/" && base != "." && base != "..":
		return dst, base, nil
	case err == nil && !info.IsDir() && strings.HasSuffix(dst, "/"):
		return "", "", fmt.Errorf("%s is not a directory", dst)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", "", err
	case err != nil && strings.HasSuffix(dst, "/"):
		return "", "", fmt.Errorf("%s does not exist", dst)
	}
	name = filepath.Base(dst)
	if !wire.IsNamePath(name) || name == "." {
		return "", "", fmt.Errorf("%s is no name for a copy", dst)
	}
	return filepath.Dir(dst), name, nil
}

// replaceable reports a file that a copy must not replace.
func replaceable(root *os.Root, name string, dir bool) error {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if dir || !info.Mode().IsRegular() {
		return fmt.Errorf("%s exists: only a file replaces a file", filepath.Join(root.Name(), name))
	}
	return nil
}

// renameInto renames a received copy to its final name.
func renameInto(root *os.Root, from, to string) error {
	if err := root.Rename(from, to); err != nil {
		return errors.Join(err, root.RemoveAll(from))
	}
	return nil
}

// in copies a path of this machine to the sandbox.
func (c *copier) in(ctx context.Context, src, dst string) error {
	if !path.IsAbs(dst) {
		return fmt.Errorf("%s: the sandbox has no repository yet: write an absolute path", text.Visible(dst))
	}
	abs, err := filepath.Abs(src)
	if err != nil {
		return err
	}
	info, err := os.Stat(abs)
	if err != nil {
		return err
	}
	if !c.git && tarfs.IsGitDir(filepath.Base(abs)) {
		return fmt.Errorf("%s is a .git: --git copies it all the same", src)
	}
	target := path.Clean(dst)
	there, err := c.client.Stat(ctx, target)
	switch {
	case err == nil && there.Type == "dir":
		target = path.Join(target, filepath.Base(abs))
	case err == nil && strings.HasSuffix(dst, "/"):
		return fmt.Errorf("%s is not a directory in the sandbox", text.Visible(dst))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err != nil && strings.HasSuffix(dst, "/"):
		return fmt.Errorf("%s does not exist in the sandbox", text.Visible(dst))
	}
	switch {
	case info.IsDir():
		return c.sendDir(ctx, abs, target)
	case info.Mode().IsRegular():
		return c.sendFile(ctx, abs, info, target)
	}
	return fmt.Errorf("%s is neither a file nor a directory", src)
}

func (c *copier) sendDir(ctx context.Context, dir, target string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // opened for reading
	return c.send(ctx, target, func(w io.Writer) error {
		m, err := tarfs.Pack(ctx, root, tarfs.PackOptions{SkipGit: !c.git}, w)
		c.skipped = m.Skipped
		return err
	})
}

// sendFile sends a file with those permission bits that are sent.
func (c *copier) sendFile(ctx context.Context, name string, info fs.FileInfo, target string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return c.send(ctx, path.Dir(target), func(w io.Writer) error {
		archive := tarfs.NewWriter(w, tarfs.Limits{})
		if _, err := archive.File(path.Base(target), info.Mode().Perm()&0o775, info.Size(), f); err != nil {
			return err
		}
		_, err := archive.Close()
		return err
	})
}

// send sends an archive that is unpacked in the sandbox.
func (c *copier) send(ctx context.Context, dest string, pack func(io.Writer) error) error {
	read, write := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(write)
		_ = write.CloseWithError(err) // never fails; without an error it is the end
		packed <- err
	}()
	err := c.client.CopyIn(ctx, dest, read, func(wire.ManifestEntry) error { return nil })
	_ = read.CloseWithError(io.ErrClosedPipe) // ends a packer whose output is not read any more
	if failed := <-packed; failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		return failed
	}
	return err
}
