package image

import (
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
	if err := checkIndex(dir); err != nil {
		return "", nil, fmt.Errorf("not an OCI layout: %w", err)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return "", nil, fmt.Errorf("not an OCI layout: %w", err)
	}
	left := maxListed
	all, err := candidates(dir, index, 0, &left)
	if err != nil {
		return "", nil, fmt.Errorf("not an OCI layout: %w", err)
	}
	one, err := choose(all)
	if err != nil {
		return "", nil, err
	}
	if err := checkBlob(dir, one.Digest, true); err != nil {
		return "", nil, fmt.Errorf("not an OCI layout: %w", err)
	}
	img, err := one.in.Image(one.Digest)
	if err != nil {
		return "", nil, fmt.Errorf("not an OCI layout: %w", err)
	}
	return one.Digest.String(), func() (io.ReadCloser, error) {
		m, err := img.Manifest()
		if err != nil {
			return nil, err
		}
		for _, l := range m.Layers {
			if err := checkBlob(dir, l.Digest, false); err != nil {
				return nil, err
			}
		}
		return flattened(img)()
	}, nil
}

// candidate is one image of an index.
type candidate struct {
	v1.Descriptor
	in v1.ImageIndex
}

// Limits of indexes.
const (
	maxIndexes = 4    // within each other
	maxListed  = 1000 // images and indexes in all of them
)

// candidates lists the images of an index and of the indexes in it. left is how many more may be listed.
func candidates(dir string, index v1.ImageIndex, depth int, left *int) ([]candidate, error) {
	if depth == maxIndexes {
		return nil, errors.New("too many indexes are within each other")
	}
	list, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var all []candidate
	for _, d := range list.Manifests {
		if *left--; *left < 0 {
			return nil, fmt.Errorf("it lists more than %d images", maxListed)
		}
		switch {
		case d.MediaType.IsIndex():
			if err := checkBlob(dir, d.Digest, true); err != nil {
				return nil, err
			}
			inner, err := index.ImageIndex(d.Digest)
			if err != nil {
				return nil, err
			}
			more, err := candidates(dir, inner, depth+1, left)
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
	docker, err := checkSaved(name)
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

// flattened applies the layers of an image with their whiteouts.
func flattened(img v1.Image) opener {
	return func() (io.ReadCloser, error) { return mutate.Extract(bounded{img}), nil }
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

// end reads what follows the end of an archive. [mutate.Extract] ends the archive also where a layer cannot be read, and tells the error
// behind it. A compressed archive has its checksum there.
func end(in io.Reader) error {
	_, err := io.Copy(io.Discard, in)
	return err
}
