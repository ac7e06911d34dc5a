package vmimage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"agentsh/internal/fsmagic"
)

// Image is what machines boot from. Its parts are files in one directory, or wherever the
// operator has them.
type Image struct {
	Path    string // that was opened, absolute
	Kernel  Kernel // without a file: the operator names one
	Modules Modules
	Root    string // path of the root disk; empty: none
	Digest  string // of the root disk, "sha256:" and hex; empty: unknown
}

// Names in the directory of an image.
const (
	indexName   = "image.json"
	kernelName  = "kernel"
	modulesName = "modules"
	rootName    = "root.ext4"
)

// index is the content of image.json.
type index struct {
	Version int       `json:"version"` // 1
	Release string    `json:"kernel_release"`
	Arch    string    `json:"arch"`
	Modules Modules   `json:"modules"`
	All     bool      `json:"modules_builtin,omitempty"` // the kernel needs no module
	Root    *rootDisk `json:"root,omitempty"`
}

type rootDisk struct {
	File   string `json:"file"`
	Digest string `json:"digest"`
	Source string `json:"source"` // what it was made of
}

// Open opens an image that [Build] made, or a file that is a root disk. Such a file has no kernel.
func Open(path string) (Image, error) {
	i := Image{Path: path}
	info, err := os.Stat(path)
	if err != nil {
		return i, fmt.Errorf("image: %w", err)
	}
	if info.Mode().IsRegular() {
		i.Root = path
		return i, nil
	}
	data, err := os.ReadFile(filepath.Join(path, indexName))
	if errors.Is(err, fs.ErrNotExist) {
		return i, fmt.Errorf("image: %s is no image of virtual machines: make one of it with 'agentctl image build'", path)
	}
	var x index
	if err == nil {
		err = json.Unmarshal(data, &x)
	}
	if err != nil {
		return i, fmt.Errorf("image: %s: %w", filepath.Join(path, indexName), err)
	}
	if x.Version != 1 {
		return i, fmt.Errorf("image: %s is of version %d, and this build reads version 1: build it again", path, x.Version)
	}
	if i.Kernel, err = OpenKernel(filepath.Join(path, kernelName)); err != nil {
		return i, fmt.Errorf("image: %s: %w", path, err)
	}
	i.Modules = x.Modules
	i.Modules.Dir, i.Modules.all = filepath.Join(path, modulesName), x.All
	for _, m := range i.Modules.Loaded {
		if !filepath.IsLocal(m.File) {
			return i, fmt.Errorf("image: %s: module %s is not in the image", path, m.Name)
		}
	}
	if x.Root != nil {
		if !filepath.IsLocal(x.Root.File) {
			return i, fmt.Errorf("image: %s: the root disk is not in the image", path)
		}
		i.Root, i.Digest = filepath.Join(path, x.Root.File), x.Root.Digest
		if _, err := os.Stat(i.Root); err != nil {
			return i, fmt.Errorf("image: %w", err)
		}
	}
	return i, nil
}

// FindModules is the usual directory of the modules of a kernel; empty: there is none, so the
// kernel must have everything itself.
func FindModules(k Kernel) string {
	// Beside a kernel that was unpacked from a package, too.
	base, _, _ := strings.Cut(k.File, "/boot/")
	for _, dir := range []string{base + "/lib/modules", base + "/usr/lib/modules"} {
		dir = filepath.Join(dir, k.Release)
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
	}
	return ""
}

// FileSystem is the kind of the file system on a root disk, as the kernel names it.
func FileSystem(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	kind, err := fsmagic.Of(f)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return kind, nil
}
