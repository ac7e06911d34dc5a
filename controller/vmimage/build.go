package vmimage

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/Microsoft/hcsshim/ext4/tar2ext4"

	"agentsh/controller/image"
	"agentsh/internal/statedir"
)

// BuildOptions say what an image is made of.
type BuildOptions struct {
	Source  string // a directory, an OCI layout or an archive; empty: the image has no root disk
	Kernel  string
	Modules string // directory; empty: see [FindModules]
	Output  string // directory of the image; it must not exist
}

// maxDisk bounds a root disk, in bytes. The library writes the second list of a file's extents wrongly, which
// begins at 42.5 GiB: see writeExtents of compactext4.
const maxDisk = 40 << 30

// Build makes an image. It is complete or absent. Nothing has to be installed for it, and it
// needs no root.
func Build(ctx context.Context, o BuildOptions) (_ Image, err error) {
	if _, err := os.Lstat(o.Output); err == nil {
		return Image{}, fmt.Errorf("%s exists: remove it, or name another directory with --to", o.Output)
	}
	kernel, err := OpenKernel(o.Kernel)
	if err != nil {
		return Image{}, err
	}
	if o.Modules == "" {
		o.Modules = FindModules(kernel)
	}
	modules, err := OpenModules(o.Modules)
	if err != nil {
		return Image{}, err
	}
	var source image.Stream
	if o.Source != "" {
		if source, err = image.OpenStream(o.Source); err != nil {
			return Image{}, err
		}
	}
	if err := os.MkdirAll(filepath.Dir(o.Output), 0o755); err != nil {
		return Image{}, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(o.Output), "."+filepath.Base(o.Output)+".")
	if err != nil {
		return Image{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, statedir.RemoveTree(dir))
		}
	}()
	x := index{Version: 1, Release: kernel.Release, Arch: kernel.Arch, All: modules.all}
	if x.Modules, err = storeModules(modules, filepath.Join(dir, modulesName)); err != nil {
		return Image{}, err
	}
	if err := copyFile(kernel.File, filepath.Join(dir, kernelName)); err != nil {
		return Image{}, fmt.Errorf("kernel: %w", err)
	}
	if o.Source != "" {
		x.Root = &rootDisk{File: rootName, Source: o.Source}
		if x.Root.Digest, err = makeRoot(ctx, source, filepath.Join(dir, rootName)); err != nil {
			return Image{}, fmt.Errorf("root disk of %s: %w", o.Source, err)
		}
	}
	data, err := json.MarshalIndent(x, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, indexName), append(data, '\n'), 0o644)
	}
	if err == nil {
		err = errors.Join(os.Chmod(dir, 0o755), os.Rename(dir, o.Output))
	}
	if err != nil {
		return Image{}, err
	}
	return Open(o.Output)
}

// storeModules stores modules without compression.
func storeModules(m Modules, dir string) (Modules, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return m, err
	}
	out := Modules{Builtin: m.Builtin}
	for _, x := range m.Loaded {
		data, err := m.read(x)
		if err != nil {
			return m, err
		}
		x.File = x.Name + ".ko"
		if err := os.WriteFile(filepath.Join(dir, x.File), data, 0o644); err != nil {
			return m, err
		}
		out.Loaded = append(out.Loaded, x)
	}
	return out, nil
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}

// makeRoot makes a root disk: ext4 without room for more, as it is only read. It returns its digest.
func makeRoot(ctx context.Context, source image.Stream, file string) (_ string, err error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r, w := io.Pipe()
	go func() { // ends when r is closed
		_, err := source.Write(ctx, tar.NewWriter(w))
		_ = w.CloseWithError(err)
	}()
	err = tar2ext4.ConvertTarToExt4(r, f, tar2ext4.MaximumDiskSize(maxDisk))
	if err = errors.Join(err, r.Close()); err != nil {
		return "", err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}
