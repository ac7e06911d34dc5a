package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/google/go-containerregistry/pkg/name"
)

// archive makes an archive. An entry without content is a directory, one with
// "->" a symbolic link, one with "=" a hard link, and "?" is of an unknown type.
func archive(t *testing.T, entries ...[2]string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Name: e[0], Mode: 0o755, Typeflag: tar.TypeReg, Size: int64(len(e[1]))}
		link, symbolic := strings.CutPrefix(e[1], "->")
		hard, isHard := strings.CutPrefix(e[1], "=")
		switch {
		case symbolic:
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, link, 0
		case isHard:
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, hard, 0
		case e[1] == "?":
			h.Typeflag = 'Z'
		case strings.HasSuffix(e[0], "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, e[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// layered is an image of two layers. The second removes a file and empties a
// directory of the first.
func layered(t *testing.T) v1.Image {
	t.Helper()
	img := empty.Image
	for _, data := range [][]byte{
		archive(
			t,
			[2]string{"usr/bin/", ""},
			[2]string{"usr/bin/tool", "one"},
			[2]string{"old", "x"},
			[2]string{"d/a", "x"},
			[2]string{"bin", "->usr/bin"},
		),
		archive(t, [2]string{"usr/bin/tool", "two"}, [2]string{".wh.old", ""}, [2]string{"d/.wh..wh..opq", ""}, [2]string{"d/b", "y"}),
	} {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
		if err == nil {
			img, err = mutate.AppendLayers(img, layer)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return img
}

// files are the names below a directory with their contents.
func files(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(at)
		out = append(out, strings.TrimPrefix(at, dir+"/")+"="+string(data))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, " ")
}

func TestLayersAreAppliedWithTheirWhiteouts(t *testing.T) {
	img, dir := layered(t), t.TempDir()
	tag, err := name.NewTag("example.com/x:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(dir+"/docker.tar", tag, img); err != nil {
		t.Fatal(err)
	}
	at, err := layout.Write(dir+"/oci", empty.Index)
	if err == nil {
		err = at.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Places: map[string]string{"docker": dir + "/docker.tar", "oci": dir + "/oci"}, Cache: dir + "/cache"}
	for image := range c.Places {
		for range 2 { // the second is from the cache
			root, err := c.Open(context.Background(), image)
			if err != nil {
				t.Fatal(err)
			}
			if got := files(t, root.Dir); got != "d/b=y usr/bin/tool=two" || !strings.HasPrefix(root.Digest, "sha256:") {
				t.Errorf("%s: %q %s", image, got, root.Digest)
			}
			if at, err := root.Find("tool"); err != nil || at != "/usr/bin/tool" {
				t.Errorf("%s: Find = %q, %v", image, at, err)
			}
			if at, err := root.Find("/bin/tool"); err != nil || at != "/bin/tool" {
				t.Errorf("%s: Find by a link = %q, %v", image, at, err)
			}
		}
	}
}

func TestABadArchiveIsRefusedAndLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	if err := os.WriteFile(outside, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, want string
		data       []byte
	}{
		{"no archive", "not a tar archive", []byte(strings.Repeat("x", 2048))},
		{"nothing", "holds no files", nil},
		{"an empty archive", "holds no files", archive(t)},
		{"an entry of another type", "unknown type 'Z'", archive(t, [2]string{"a", "x"}, [2]string{"b", "?"})},
		{"a name above", "leads out of the image", archive(t, [2]string{"../x", "y"})},
		{"a file through a link", `extract: "a/outside"`, archive(t, [2]string{"a", "->" + dir}, [2]string{"a/outside", "y"})},
		{"a file through a relative link", `extract: "a/outside"`, archive(t, [2]string{"a", "->../.."}, [2]string{"a/outside", "y"})},
		{"a hard link to the machine", "escapes", archive(t, [2]string{"a", "->" + dir}, [2]string{"b", "=a/outside"})},
		{"a cut archive", "unexpected EOF", archive(t, [2]string{"a", strings.Repeat("y", 4096)})[:2048]},
		{"a cut compressed archive", "EOF", []byte{0x1f, 0x8b, 8}},
		{"a manifest without layers", "not a Docker archive", archive(t, [2]string{"manifest.json", "[]"})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "image.tar")
			if err := os.WriteFile(file, tt.data, 0o600); err != nil {
				t.Fatal(err)
			}
			c := Config{Places: map[string]string{"x": file}, Cache: filepath.Join(t.TempDir(), "cache")}
			_, err := c.Open(context.Background(), "x")
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), file) {
				t.Errorf("err = %v, want %q", err, tt.want)
			}
			left, _ := filepath.Glob(c.Cache + "/*")
			for _, name := range left {
				if !strings.HasSuffix(name, ".lock") {
					t.Errorf("left behind: %s", name)
				}
			}
		})
	}
	if data, err := os.ReadFile(outside); err != nil || string(data) != "kept" {
		t.Errorf("a file outside: %q, %v", data, err)
	}
}

func TestAProgramIsNotFoundOutsideTheImage(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/usr/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"bash": "/bin/bash", "sh": "../../../../../../../../bin/sh", "loop": "loop"} {
		if err := os.Symlink(target, dir+"/usr/bin/"+name); err != nil {
			t.Fatal(err)
		}
		if at, err := (Root{Dir: dir}).Find(name); err == nil {
			t.Errorf("%s is found at %s", name, at)
		}
	}
}

func TestTheImageForThisMachineIsChosen(t *testing.T) {
	img := layered(t)
	index := func(platforms ...string) string {
		inner := v1.ImageIndex(empty.Index)
		for _, p := range platforms {
			platform, err := v1.ParsePlatform(p)
			if err != nil {
				t.Fatal(err)
			}
			inner = mutate.AppendManifests(inner, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: platform}})
		}
		dir := t.TempDir()
		at, err := layout.Write(dir, empty.Index)
		if err == nil && len(platforms) > 0 {
			err = at.AppendIndex(inner)
		}
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	open := func(dir string) (Root, error) {
		return Config{Places: map[string]string{"x": dir}, Cache: t.TempDir()}.Open(t.Context(), "x")
	}
	root, err := open(index("linux/s390x", "linux/"+runtime.GOARCH, "unknown/unknown"))
	if err != nil || !strings.Contains(files(t, root.Dir), "usr/bin/tool=two") {
		t.Errorf("%+v, %v", root, err)
	}
	_, err = open(index("linux/s390x", "windows/amd64"))
	if err == nil || !strings.Contains(err.Error(), "but for: linux/s390x, windows/amd64") {
		t.Errorf("another platform: %v", err)
	}
	if _, err := open(index()); err == nil {
		t.Error("an index without images")
	}
}

func TestAnUnusedImageIsCollected(t *testing.T) {
	dir, cache := t.TempDir(), t.TempDir()
	if err := os.WriteFile(dir+"/a.tar", archive(t, [2]string{"a", "x"}), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := Config{Places: map[string]string{"x": dir + "/a.tar"}, Cache: cache}.Open(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	var used func(string) (bool, error)
	collect := func(dryRun bool, want int) {
		t.Helper()
		got, err := Collect(cache, CollectOptions{DryRun: dryRun, Used: used})
		if err != nil || len(got) != want || want == 1 && got[0] != root.Digest {
			t.Errorf("collected %q, %v", got, err)
		}
	}
	collect(false, 0) // used a moment ago
	old := time.Now().Add(-2 * minAge)
	if err := os.Chtimes(root.Dir+lockSuffix, old, old); err != nil {
		t.Fatal(err)
	}
	collect(false, 0) // used by this process
	held.Lock()
	for _, lock := range held.locks {
		_ = lock.Close()
	}
	held.locks = nil
	held.Unlock()
	used = func(dir string) (bool, error) { return dir == root.Dir, nil }
	collect(false, 0) // used by a sandbox whose controller is gone
	used = func(string) (bool, error) { return false, fs.ErrPermission }
	if got, err := Collect(cache, CollectOptions{Used: used}); len(got) != 0 || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("without an answer: collected %q, %v", got, err)
	}
	used = nil
	collect(true, 1)
	if _, err := os.Stat(root.Dir); err != nil {
		t.Error(err)
	}
	collect(false, 1)
	if _, err := os.Stat(root.Dir); err == nil {
		t.Error("it is left")
	}
	collect(false, 0)
}
