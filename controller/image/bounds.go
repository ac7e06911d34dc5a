package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Limits of what is stored in memory while an image is read.
const (
	maxList  = 4 << 20   // bytes of an index, a manifest or a configuration, as registries have it
	maxName  = 4096      // bytes of a name, see PATH_MAX in path_resolution(7)
	maxHeads = 512 << 20 // bytes of all names and attributes
)

// bounds counts the entries of an archive.
type bounds struct {
	entries int
	heads   int64 // bytes of names and attributes
}

// add counts an entry. It returns an error if there are too many, or if their names are too long.
func (b *bounds) add(h *tar.Header) error {
	if b.entries++; b.entries > maxEntries {
		return fmt.Errorf("more than %d files", maxEntries)
	}
	if n := max(len(h.Name), len(h.Linkname)); n > maxName {
		return fmt.Errorf("%.40q...: a name of %d bytes, at most %d", h.Name, n, maxName)
	}
	b.heads += int64(len(h.Name) + len(h.Linkname))
	for key, value := range h.PAXRecords {
		b.heads += int64(len(key) + len(value))
	}
	if b.heads > maxHeads {
		return fmt.Errorf("the names and attributes of the image have more than %d bytes", int64(maxHeads))
	}
	return nil
}

// bounded is an image whose layers have bounds. The library stores the names of all their entries.
type bounded struct{ v1.Image }

// Layers implements [v1.Image].
func (i bounded) Layers() ([]v1.Layer, error) {
	layers, err := i.Image.Layers()
	all := &bounds{} // the library reads one layer after the other
	for n, l := range layers {
		layers[n] = boundedLayer{l, all}
	}
	return layers, err
}

type boundedLayer struct {
	v1.Layer
	all *bounds
}

// Uncompressed implements [v1.Layer]. The reader fails when the entries are out of bounds.
func (l boundedLayer) Uncompressed() (io.ReadCloser, error) {
	in, err := l.Layer.Uncompressed()
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	counted := make(chan struct{})
	go func() { // ends when w is closed
		defer close(counted)
		_ = r.CloseWithError(l.count(r))
	}()
	return &counting{in, w, counted}, nil
}

// count counts the entries of a layer, and reads it to its end.
func (l boundedLayer) count(in io.Reader) error {
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if err != nil { // the library reports what is no archive
			_, err = io.Copy(io.Discard, in)
			return err
		}
		if err := l.all.add(h); err != nil {
			return err
		}
	}
}

// counting is the reader of a layer that is counted.
type counting struct {
	layer   io.ReadCloser
	to      *io.PipeWriter
	counted <-chan struct{}
}

// Read implements [io.Reader]. It returns no bytes after which the layer is out of bounds: who reads full blocks would miss the error.
func (c *counting) Read(p []byte) (int, error) {
	n, err := c.layer.Read(p)
	if _, failed := c.to.Write(p[:n]); failed != nil {
		return 0, failed
	}
	return n, err
}

// Close implements [io.Closer].
func (c *counting) Close() error {
	_ = c.to.Close() // never fails, see [io.PipeWriter]
	<-c.counted
	return c.layer.Close()
}

// checkList checks the size of an index, a manifest or a configuration.
func checkList(name string, size int64) error {
	if size > maxList {
		return fmt.Errorf("%s has %d bytes, at most %d are read", name, size, maxList)
	}
	return nil
}

// checkIndex checks the file of the first index of an OCI layout, before the library reads it.
func checkIndex(dir string) error {
	const name = "index.json"
	info, err := os.Stat(filepath.Join(dir, name))
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New(name + " is no file")
	}
	if err != nil {
		return err
	}
	return checkList(name, info.Size())
}

// checkBlob checks that a blob of an OCI layout is that of its digest. The library does not. A list has a bound.
func checkBlob(dir string, digest v1.Hash, list bool) error {
	in, err := layout.Path(dir).Blob(digest)
	if err != nil {
		return err
	}
	defer in.Close()
	h := sha256.New()
	r := in.(io.Reader)
	if list {
		r = io.LimitReader(in, maxList+1)
	}
	n, err := io.Copy(h, r)
	if err != nil {
		return err
	}
	if list {
		if err := checkList("blob "+digest.String(), n); err != nil {
			return err
		}
	}
	if digest.Algorithm != "sha256" || hex.EncodeToString(h.Sum(nil)) != digest.Hex {
		return fmt.Errorf("blob %s is not the content of its digest: copy the image again", digest)
	}
	return nil
}

// checkSaved checks the manifest of an archive of docker save, and the configuration that it names: the library reads both as a whole. It
// returns false if the archive has no manifest.
func checkSaved(archive string) (docker bool, err error) {
	const name = "manifest.json"
	var all tarball.Manifest
	err = first(archive, name, func(h *tar.Header, in io.Reader) error {
		if docker = h.Name == name; !docker {
			return nil // the library would take it for the manifest
		}
		if err := checkFile(h); err != nil {
			return err
		}
		if err := json.NewDecoder(in).Decode(&all); err != nil {
			return fmt.Errorf("not a Docker archive of one image: %w", err)
		}
		return nil
	})
	if err != nil || len(all) != 1 { // the library refuses several
		return docker, err
	}
	return docker, first(archive, all[0].Config, func(h *tar.Header, _ io.Reader) error { return checkFile(h) })
}

// checkFile checks an entry that is read as a whole.
func checkFile(h *tar.Header) error {
	if h.Typeflag != tar.TypeReg {
		return fmt.Errorf("%.100q is no file", h.Name)
	}
	return checkList(fmt.Sprintf("%.100q", h.Name), h.Size)
}

// first calls read with the entry of an archive that the library takes for a name, if there is one.
func first(archive, name string, read func(*tar.Header, io.Reader) error) error {
	in, err := openTar(archive)
	if err != nil {
		return err
	}
	defer in.Close()
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("not a tar archive: %w", err)
		case path.Clean(h.Name) == path.Clean(name):
			return read(h, r)
		}
	}
}
