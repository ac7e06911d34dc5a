package image

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// opener opens the files of an image as one tar archive.
type opener func() (io.ReadCloser, error)

// isLayout reports whether a directory is an OCI image layout.
func isLayout(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, "oci-layout"))
	return err == nil && info.Mode().IsRegular()
}

// openLayout opens the image of an OCI image layout for the platform of this machine.
func openLayout(dir string) (digest string, _ opener, err error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return "", nil, fmt.Errorf("not an OCI layout: %w", err)
	}
	all, err := candidates(index, 0)
	if err != nil {
		return "", nil, fmt.Errorf("not an OCI layout: %w", err)
	}
	one, err := choose(all)
	if err != nil {
		return "", nil, err
	}
	img, err := one.in.Image(one.Digest)
	if err != nil {
		return "", nil, fmt.Errorf("not an OCI layout: %w", err)
	}
	return one.Digest.String(), flattened(img), nil
}

// candidate is one image of an index.
type candidate struct {
	v1.Descriptor
	in v1.ImageIndex
}

// maxIndexes bounds the indexes within each other.
const maxIndexes = 4

// candidates lists the images of an index and of the indexes in it.
func candidates(index v1.ImageIndex, depth int) ([]candidate, error) {
	if depth == maxIndexes {
		return nil, errors.New("too many indexes are within each other")
	}
	list, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var all []candidate
	for _, d := range list.Manifests {
		switch {
		case d.MediaType.IsIndex():
			inner, err := index.ImageIndex(d.Digest)
			if err != nil {
				return nil, err
			}
			more, err := candidates(inner, depth+1)
			if err != nil {
				return nil, err
			}
			all = append(all, more...)
		case d.MediaType.IsImage() && (d.Platform == nil || d.Platform.OS != "unknown"): // else a statement about another image
			all = append(all, candidate{d, index})
		}
	}
	return all, nil
}

// choose returns the image for the platform of this machine. An image that is alone
// and names no platform is taken as it is.
func choose(all []candidate) (candidate, error) {
	var platforms []string
	var found []candidate
	for _, c := range all {
		switch p := c.Platform; {
		case p == nil && len(all) == 1, p != nil && p.OS == "linux" && p.Architecture == runtime.GOARCH:
			found = append(found, c)
		case p == nil:
			platforms = append(platforms, "one without a platform")
		default:
			platforms = append(platforms, p.String())
		}
	}
	machine := "linux/" + runtime.GOARCH
	switch {
	case len(all) == 0:
		return candidate{}, errors.New("the OCI layout holds no image")
	case len(found) == 0:
		return candidate{}, fmt.Errorf("the OCI layout has no image for %s, but for: %s", machine, strings.Join(platforms, ", "))
	case len(found) > 1:
		return candidate{}, fmt.Errorf("the OCI layout has %d images for %s: copy one of them into a layout of its own", len(found), machine)
	}
	return found[0], nil
}

// openArchive opens an archive of docker save, or a plain archive of files. Both
// may be compressed by gzip. The digest is that of the archive.
func openArchive(name string) (digest string, _ opener, err error) {
	if digest, err = fileDigest(name); err != nil {
		return "", nil, err
	}
	docker, err := isDocker(name)
	if err != nil {
		return "", nil, err
	}
	open := func() (io.ReadCloser, error) { return openTar(name) }
	if !docker {
		return digest, open, nil
	}
	img, err := tarball.Image(open, nil)
	if err != nil {
		return "", nil, fmt.Errorf("not a Docker archive of one image: %w", err)
	}
	return digest, flattened(img), nil
}

// flattened applies the layers of an image with their whiteouts. The library
// checks the digest of each layer when it is read to its end.
func flattened(img v1.Image) opener {
	return func() (io.ReadCloser, error) { return mutate.Extract(img), nil }
}

func fileDigest(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// isDocker reports whether an archive has a manifest of docker save.
func isDocker(name string) (bool, error) {
	in, err := openTar(name)
	if err != nil {
		return false, err
	}
	defer in.Close()
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("not a tar archive: %w", err)
		case h.Name == "manifest.json":
			return true, nil
		}
	}
}

// openTar opens an archive and decompresses it.
func openTar(name string) (io.ReadCloser, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	buffered := bufio.NewReader(f)
	if magic, err := buffered.Peek(2); err != nil || magic[0] != 0x1f || magic[1] != 0x8b { // RFC 1952, 2.3.1
		return readCloser{buffered, f}, nil
	}
	z, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return readCloser{z, f}, nil
}

type readCloser struct {
	io.Reader
	io.Closer
}
