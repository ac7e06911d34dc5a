package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// writeLayout writes an OCI layout of [layered], in an index of its own if nested.
func writeLayout(t *testing.T, dir string, nested bool) v1.Image {
	t.Helper()
	img := layered(t)
	at, err := layout.Write(dir, empty.Index)
	switch {
	case err != nil:
	case nested:
		err = at.AppendIndex(mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img}))
	default:
		err = at.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestABlobOfAnotherDigestIsRefused changes one blob of a layout at a time. What is extracted is stored under the digest of the manifest,
// so an image could otherwise be stored under the digest of another one.
func TestABlobOfAnotherDigestIsRefused(t *testing.T) {
	list := t.TempDir()
	writeLayout(t, list, true)
	blobs, err := filepath.Glob(list + "/blobs/sha256/*")
	if err != nil || len(blobs) != 5 { // an index, a manifest, a configuration and two layers
		t.Fatal(blobs, err)
	}
	refused := 0
	for _, blob := range blobs {
		dir := t.TempDir()
		img := writeLayout(t, dir, true)
		file := filepath.Join(dir, "blobs/sha256", filepath.Base(blob))
		data, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, append(data, '\n'), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		c := Config{Places: map[string]string{"x": dir}, Cache: t.TempDir()}
		_, err = c.Open(context.Background(), "x")
		s, streamErr := OpenStream(dir)
		if streamErr == nil {
			_, streamErr = s.Write(context.Background(), tar.NewWriter(io.Discard))
		}
		config, configErr := img.ConfigName()
		if configErr != nil {
			t.Fatal(configErr)
		}
		if config.Hex == filepath.Base(blob) { // nothing reads it
			continue
		}
		for _, err := range []error{err, streamErr} {
			if err == nil || !strings.Contains(err.Error(), "not the content of its digest") {
				t.Errorf("%s: err = %v", filepath.Base(blob), err)
				continue
			}
			refused++
		}
	}
	if refused != 8 {
		t.Errorf("%d were refused", refused)
	}
}

// TestTheListsOfAnImageAreBounded has lists that a small archive or a sparse file makes large.
func TestTheListsOfAnImageAreBounded(t *testing.T) {
	large := strings.Repeat(" ", maxList+1)
	manifest := `[{"Config":"c.json","Layers":["l.tar"]}]`
	layer := string(archive(t, [2]string{"a", "x"}))
	for name, entries := range map[string][][2]string{
		"a manifest":                 {{"manifest.json", large}},
		"a configuration":            {{"manifest.json", manifest}, {"l.tar", layer}, {"c.json", large}},
		"a configuration with a dot": {{"manifest.json", manifest}, {"l.tar", layer}, {"./c.json", large}, {"c.json", "{}"}},
		"a link to a configuration":  {{"manifest.json", manifest}, {"l.tar", layer}, {"c.json", "->other"}, {"other", large}},
		"a link to a manifest":       {{"manifest.json", "->other"}, {"other", large}},
	} {
		t.Run(name, func(t *testing.T) {
			var data bytes.Buffer
			z := gzip.NewWriter(&data)
			if _, err := z.Write(archive(t, entries...)); err != nil {
				t.Fatal(err)
			}
			if err := z.Close(); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "x.tar.gz")
			if err := os.WriteFile(file, data.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := OpenStream(file)
			if err == nil || !strings.Contains(err.Error(), "bytes, at most") && !strings.Contains(err.Error(), "is no file") {
				t.Errorf("err = %v", err)
			}
		})
	}
	for _, which := range []string{"index.json", "manifest"} {
		t.Run("a layout: "+which, func(t *testing.T) {
			dir := t.TempDir()
			digest, err := writeLayout(t, dir, false).Digest()
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, which)
			if which == "manifest" {
				file = filepath.Join(dir, "blobs/sha256", digest.Hex)
			}
			if err := os.Truncate(file, maxList+1); err != nil {
				t.Fatal(err)
			}
			if _, err := OpenStream(dir); err == nil || !strings.Contains(err.Error(), "bytes, at most") {
				t.Errorf("err = %v", err)
			}
		})
	}
}

// TestAnIndexCannotMultiplyItself has an index that lists another one often, which lists images often.
func TestAnIndexCannotMultiplyItself(t *testing.T) {
	dir := t.TempDir()
	const times = 34 // its square is more than maxListed
	inner := v1.ImageIndex(empty.Index)
	for img := layered(t); ; {
		list, err := inner.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Manifests) == times {
			break
		}
		inner = mutate.AppendManifests(inner, mutate.IndexAddendum{Add: img})
	}
	at, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = at.AppendIndex(inner)
	}
	for range times {
		if err == nil {
			err = at.AppendDescriptor(listed(t, at))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStream(dir); err == nil || !strings.Contains(err.Error(), "lists more than") {
		t.Errorf("err = %v", err)
	}
}

// listed is the first image or index of a layout.
func listed(t *testing.T, at layout.Path) v1.Descriptor {
	t.Helper()
	index, err := at.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	list, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	return list.Manifests[0]
}

// TestTheNamesOfAnImageAreBounded has names in a layer that no file of the image has: they are whiteouts.
func TestTheNamesOfAnImageAreBounded(t *testing.T) {
	long := strings.Repeat("d/", maxName/2)
	data := archive(t, [2]string{"a", "x"}, [2]string{long + ".wh.x", ""})
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	at, err := layout.Write(dir+"/oci", empty.Index)
	if err == nil {
		err = at.AppendImage(img)
	}
	if err == nil {
		err = os.WriteFile(dir+"/plain.tar", archive(t, [2]string{long + "x", "y"}), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"oci", "plain.tar"} {
		c := Config{Places: map[string]string{"x": filepath.Join(dir, file)}, Cache: t.TempDir()}
		_, err := c.Open(context.Background(), "x")
		s, streamErr := OpenStream(filepath.Join(dir, file))
		if streamErr == nil {
			_, streamErr = s.Write(context.Background(), tar.NewWriter(io.Discard))
		}
		for _, err := range []error{err, streamErr} {
			if err == nil || !strings.Contains(err.Error(), "a name of") {
				t.Errorf("%s: err = %v", file, err)
			}
		}
	}
	var b bounds
	h := &tar.Header{Name: strings.Repeat("n", maxName)}
	for n := 0; ; n++ {
		if err := b.add(h); err != nil {
			if n != maxHeads/maxName || !strings.Contains(err.Error(), "names and attributes") {
				t.Errorf("after %d: %v", n, err)
			}
			return
		}
	}
}

// TestAnImageThatCannotBeReadIsNotCut has images of which the first part can be read.
func TestAnImageThatCannotBeReadIsNotCut(t *testing.T) {
	if os.Geteuid() == 0 && os.Getenv(unprivileged) == "" {
		asNobody(t)
		return
	}
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "b"), 0); err != nil {
		t.Fatal(err)
	}
	check := func(what, file, want string) {
		t.Helper()
		s, err := OpenStream(file)
		if err == nil {
			_, err = s.Write(context.Background(), tar.NewWriter(io.Discard))
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: err = %v", what, err)
		}
	}
	check("a directory", dir, "permission denied")

	img := empty.Image
	for _, data := range [][]byte{[]byte(strings.Repeat("not an archive", 100)), archive(t, [2]string{"upper", "x"})} {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
		if err == nil {
			img, err = mutate.AppendLayers(img, layer)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	oci := filepath.Join(t.TempDir(), "oci")
	at, err := layout.Write(oci, empty.Index)
	if err == nil {
		err = at.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	check("a layout", oci, "invalid tar header")
	c := Config{Places: map[string]string{"x": oci}, Cache: t.TempDir()}
	if _, err := c.Open(context.Background(), "x"); err == nil || !strings.Contains(err.Error(), "invalid tar header") {
		t.Errorf("a layout that is extracted: err = %v", err)
	}
}

// unprivileged tells a test that root has started it again as another user.
const unprivileged = "IMAGE_TEST_UNPRIVILEGED"

// asNobody runs a test again as a user who cannot read all files.
func asNobody(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "image") //nolint:usetesting // the other user must reach it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := filepath.Join(dir, "test")
	data, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(program, data, 0o755)
	}
	if err == nil {
		err = os.Chmod(dir, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), unprivileged+"=1", "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as another user: %v\n%s", err, out)
	}
}
