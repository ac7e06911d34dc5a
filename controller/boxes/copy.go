package boxes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"agentsh/controller/sandbox"
	"agentsh/internal/channel"
	"agentsh/internal/statedir"
	"agentsh/internal/tarfs"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// Copier copies between this machine and a sandbox.
type Copier struct {
	Box     sandbox.Executor
	State   statedir.Dir // notes what is not complete
	Git     bool         // a .git travels too
	Skipped []string     // files that did not travel, each with the reason
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

// Out copies a path of the sandbox to this machine. If dst is a directory, the copy is made in it. It
// appears whole or not at all.
func (c *Copier) Out(ctx context.Context, src, dst string) error {
	src = path.Clean(src)
	if !c.Git && inGit(src) {
		return fmt.Errorf("%s is of a .git, which the agent wrote: --git copies it all the same", text.Visible(src))
	}
	info, err := c.Box.Stat(ctx, src)
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
	request := wire.CopyOut{Dir: wire.Name(src), SkipGit: !c.Git}
	if info.Type != "dir" {
		request.Dir, request.Names = wire.Name(path.Dir(src)), []string{path.Base(src)}
	}
	staging, err := temporary(c.State, filepath.Join(parent, copyPrefix))
	if err != nil {
		return err
	}
	defer func() { _ = staging.Remove() }() // what cannot be removed is swept later
	received := name
	if info.Type != "dir" { // the file comes in a directory
		around, err := c.State.Temporary(filepath.Join(parent, copyPrefix))
		if err != nil {
			return err
		}
		defer func() { _ = around.Remove() }()
		received = filepath.Base(around.Path)
	}
	m, err := channel.ReceiveArchive(ctx, c.Box, request, channel.ArchiveTarget{Parent: root, Name: received, Options: tarfs.ReceiveOptions{
		UnpackOptions: tarfs.UnpackOptions{RefuseGit: !c.Git, Limits: copyLimits}, Staging: filepath.Base(staging.Path),
	}})
	c.Skipped = m.Skipped
	if err != nil || received == name || len(m.Entries) == 0 { // a file that was skipped is none
		return err
	}
	return root.Rename(path.Join(received, path.Base(src)), name)
}

// copyPrefix begins the names of what is not complete.
const copyPrefix = ".agentctl-cp-"

// temporary notes a file or a directory beside a copy, and removes what killed copies have left.
func temporary(state statedir.Dir, prefix string) (*statedir.Temporary, error) {
	_, _ = state.SweepTemporary(false) // 'agentctl gc' has its error
	return state.Temporary(prefix)
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

// In copies a path of this machine to the sandbox.
func (c *Copier) In(ctx context.Context, src, dst string) error {
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
	if !c.Git && tarfs.IsGitDir(filepath.Base(abs)) {
		return fmt.Errorf("%s is a .git: --git copies it all the same", src)
	}
	target := path.Clean(dst)
	there, err := c.Box.Stat(ctx, target)
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

func (c *Copier) sendDir(ctx context.Context, dir, target string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // opened for reading
	return c.send(ctx, target, func(w io.Writer) error {
		m, err := tarfs.Pack(ctx, root, tarfs.PackOptions{SkipGit: !c.Git}, w)
		c.Skipped = m.Skipped
		return err
	})
}

// sendFile sends a file with those permission bits that are sent.
func (c *Copier) sendFile(ctx context.Context, name string, info fs.FileInfo, target string) error {
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
func (c *Copier) send(ctx context.Context, dest string, pack func(io.Writer) error) error {
	read, write := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(write)
		_ = write.CloseWithError(err) // never fails; without an error it is the end
		packed <- err
	}()
	err := c.Box.CopyIn(ctx, dest, read, func(wire.ManifestEntry) error { return nil })
	_ = read.CloseWithError(io.ErrClosedPipe) // ends a packer whose output is not read any more
	if failed := <-packed; failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		return failed
	}
	return err
}
