package tarfs

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"agentsh/internal/wire"
)

func openRoot(t testing.TB, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func write(t testing.TB, dir, name, content string, mode fs.FileMode) {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, mode); err != nil {
		t.Fatal(err)
	}
}

func pack(t testing.TB, dir string, opts PackOptions) ([]byte, wire.Manifest) {
	t.Helper()
	var b bytes.Buffer
	m, err := Pack(context.Background(), openRoot(t, dir), opts, &b)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), m
}

// listing is every path below dir with its type, mode and content.
func listing(t testing.TB, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		line := rel + " " + info.Mode().String()
		switch info.Mode().Type() {
		case 0:
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += " " + string(data)
		case fs.ModeSymlink:
			target, _ := os.Readlink(p)
			line += " -> " + target
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestATreeArrivesAsItWas(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	write(t, src, "a/b/file", "hello", 0o644)
	write(t, src, "a/run.sh", "#!/bin/sh\n", 0o755)
	write(t, src, "empty", "", 0o600)
	write(t, src, "\u00fc name\nwith a line", "u", 0o644)
	write(t, src, "big", strings.Repeat("0123456789", 100_000), 0o644)
	write(t, src, "locked/inside", "x", 0o444)
	os.Chmod(filepath.Join(src, "locked"), 0o555)
	t.Cleanup(func() { os.Chmod(filepath.Join(src, "locked"), 0o755); os.Chmod(filepath.Join(dst, "locked"), 0o755) })
	os.Mkdir(filepath.Join(src, "emptydir"), 0o750)
	os.Symlink("b/file", filepath.Join(src, "a/link"))
	os.Symlink("../../empty", filepath.Join(src, "a/b/up"))
	os.Symlink("nowhere", filepath.Join(src, "dangling"))

	stream, sent := pack(t, src, PackOptions{Deleted: []string{"gone"}})
	got, err := Unpack(context.Background(), openRoot(t, dst), bytes.NewReader(stream), UnpackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, sent) {
		t.Errorf("manifest differs:\n sent %+v\n got  %+v", sent, got)
	}
	if want, have := listing(t, src), listing(t, dst); !slices.Equal(want, have) {
		t.Errorf("trees differ:\n want %q\n have %q", want, have)
	}
	again, _ := pack(t, dst, PackOptions{Deleted: []string{"gone"}})
	if !bytes.Equal(stream, again) {
		t.Error("packing what was unpacked gives another stream")
	}
}

func TestPackLeavesOutWhatMustNotTravel(t *testing.T) {
	src := t.TempDir()
	write(t, src, "keep", "k", 0o4777)
	write(t, src, ".git/config", "g", 0o644)
	write(t, src, "sub/.GIT/hooks/x", "g", 0o755)
	write(t, src, "bytes\xff", "b", 0o644) // travels: a name is any bytes
	syscall.Mkfifo(filepath.Join(src, "fifo"), 0o644)
	os.Symlink("/etc/passwd", filepath.Join(src, "absolute"))
	os.Symlink("../x", filepath.Join(src, "above"))
	os.Symlink("keep/../../x", filepath.Join(src, "crooked"))
	write(t, src, manifestName, "{}", 0o644)

	stream, m := pack(t, src, PackOptions{SkipGit: true})
	if len(m.Skipped) != 5 {
		t.Errorf("skipped %q, want 5", m.Skipped)
	}
	dst := t.TempDir()
	if _, err := Unpack(context.Background(), openRoot(t, dst), bytes.NewReader(stream), UnpackOptions{RefuseGit: true}); err != nil {
		t.Fatal(err)
	}
	want := []string{"bytes\xff -rw-r--r-- b", "keep -rwxrwxr-x k", "sub drwxr-xr-x"}
	if have := listing(t, dst); !slices.Equal(have, want) {
		t.Errorf("arrived %q, want %q", have, want)
	}
}

func TestPackTakesOnlyTheNamedPaths(t *testing.T) {
	src := t.TempDir()
	write(t, src, "a/b/c", "1", 0o644)
	write(t, src, "a/d", "2", 0o644)
	write(t, src, "e", "3", 0o644)
	os.Symlink("a", filepath.Join(src, "alias"))
	stream, _ := pack(t, src, PackOptions{Paths: []string{"a/b", "e"}})
	dst := t.TempDir()
	if _, err := Unpack(context.Background(), openRoot(t, dst), bytes.NewReader(stream), UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	want := []string{"a drwxr-xr-x", "a/b drwxr-xr-x", "a/b/c -rw-r--r-- 1", "e -rw-r--r-- 3"}
	if have := listing(t, dst); !slices.Equal(have, want) {
		t.Errorf("arrived %q, want %q", have, want)
	}
	for _, name := range []string{"missing", "alias/b"} {
		if _, err := Pack(context.Background(), openRoot(t, src), PackOptions{Paths: []string{name}}, io.Discard); err == nil {
			t.Errorf("%q was packed", name)
		}
	}
	for _, name := range []string{"missing", "missing/x", "e/x", "alias/b", "../e", "/e"} {
		_, m := pack(t, src, PackOptions{Names: []string{name}, Gone: true})
		if len(m.Entries) != 0 || len(m.Skipped) != 1 {
			t.Errorf("%q: %+v", name, m)
		}
	}
	if _, m := pack(t, src, PackOptions{Names: []string{"a"}}); len(m.Entries) != 1 {
		t.Errorf("a directory alone: %+v", m.Entries)
	}
}

// signed writes a stream of the given entries with a manifest that is true
// about them, as a liar who knows the format would.
func signed(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	var m wire.Manifest
	for _, h := range entries {
		content := ""
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			content = "PWNED"
			h.Size = int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		h.Uid, h.Gid = 12345, 12345
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(tw, content)
		e := wire.ManifestEntry{Path: wire.Name(strings.TrimSuffix(h.Name, "/")), Type: typeFile, Mode: uint32(h.Mode), Size: h.Size}
		switch h.Typeflag {
		case tar.TypeReg:
			e.SHA256 = sha256.Sum256([]byte(content))
		case tar.TypeDir:
			e.Type = typeDir
		case tar.TypeSymlink:
			e.Type, e.Mode, e.Target = typeSymlink, 0o777, wire.Name(h.Linkname)
		}
		m.Entries = append(m.Entries, e)
	}
	if err := writeManifest(tw, m); err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestUnpackRefusesHostileEntries(t *testing.T) {
	link := func(name, target string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
	}
	tests := map[string][]tar.Header{
		"a character device":                {{Name: "n", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
		"a block device":                    {{Name: "n", Typeflag: tar.TypeBlock, Devmajor: 8}},
		"a fifo":                            {{Name: "p", Typeflag: tar.TypeFifo}},
		"a hard link":                       {{Name: "f"}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "f"}},
		"a hard link out of the tree":       {{Name: "h", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}},
		"a name with dot-dot":               {{Name: "../out/pwned"}},
		"a name with dot-dot inside":        {{Name: "a/../../out"}},
		"an absolute name":                  {{Name: "/tmp/pwned"}},
		"a name with an empty component":    {{Name: "a//b"}},
		"a name with a dot component":       {{Name: "./a"}},
		"the root itself":                   {{Name: ".", Typeflag: tar.TypeDir}},
		"a set-user-id file":                {{Name: "s", Mode: 0o6777}},
		"a sticky directory":                {{Name: "s/", Typeflag: tar.TypeDir, Mode: 0o1755}},
		"a file everybody may write":        {{Name: "s", Mode: 0o666}},
		"mode bits beyond the twelve":       {{Name: "s", Mode: 0o100644}},
		"an absolute link":                  {link("l", "/etc/passwd")},
		"a link above the tree":             {link("d/l", "../../x")},
		"a link that climbs through a name": {link("p/q/l", "../../d"), link("p/q/m", "l/../..")},
		"a link without target text":        {link("l", strings.Repeat("x", 5000))},
		"a file over a link":                {link("r", "v"), {Name: "r"}},
		"a link over a file":                {{Name: "r"}, link("r", "v")},
		"a file below a link":               {link("d", "e"), {Name: "d/f"}},
		"a file below a file":               {{Name: "d"}, {Name: "d/f"}},
		"the same file twice":               {{Name: "f"}, {Name: "f"}},
		"the same directory twice": {
			{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755},
			{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755},
		},
		"a directory over a file":                      {{Name: "d"}, {Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}},
		"a file over a directory made for its content": {{Name: "d/f"}, {Name: "d"}},
		"git hooks":             {{Name: "w/.git/hooks/post-checkout", Mode: 0o755}},
		"git hooks in capitals": {{Name: "w/.Git/config"}},
		"git's short name":      {{Name: "git~1/config"}},
		"git with a character that some systems drop": {{Name: ".g\u200cit/config"}},
		"a git file that points elsewhere":            {{Name: "w/.git"}},
		"a second manifest":                           {{Name: manifestName}},
		"a name of 256 bytes":                         {{Name: strings.Repeat("n", 256)}},
		"a path of 65 directories":                    {{Name: strings.Repeat("d/", 65) + "f"}},
	}
	for name, entries := range tests {
		t.Run(name, func(t *testing.T) {
			outside := t.TempDir()
			dst := filepath.Join(outside, "dst")
			os.Mkdir(dst, 0o755)
			_, err := Receive(context.Background(), openRoot(t, dst), "got", bytes.NewReader(signed(t, entries...)),
				ReceiveOptions{UnpackOptions: UnpackOptions{RefuseGit: true}})
			if err == nil {
				t.Error("accepted")
			}
			if have := listing(t, outside); !slices.Equal(have, []string{"dst drwxr-xr-x"}) {
				t.Errorf("left behind %q", have)
			}
		})
	}
}

func TestOwnersOfAStreamAreNeverUsed(t *testing.T) {
	dst := t.TempDir()
	if _, err := Unpack(context.Background(), openRoot(t, dst), bytes.NewReader(signed(t, tar.Header{Name: "s"})),
		UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(filepath.Join(dst, "s"))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != os.Geteuid() {
		t.Errorf("owner is %d", st.Uid)
	}
}

func TestATruncatedStreamIsRefusedAtEveryLength(t *testing.T) {
	src := t.TempDir()
	write(t, src, "a", "first", 0o644)
	write(t, src, "d/b", strings.Repeat("second", 200), 0o644)
	stream, _ := pack(t, src, PackOptions{})
	end := bytes.LastIndexByte(stream, '}') + 1 // padding says nothing
	for n := 0; n < end; n += 97 {
		dst := t.TempDir()
		_, err := Receive(context.Background(), openRoot(t, dst), "got", bytes.NewReader(stream[:n]), ReceiveOptions{})
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%d of %d bytes: %v", n, len(stream), err)
		}
		if have := listing(t, dst); len(have) != 0 {
			t.Fatalf("%d bytes left %q behind", n, have)
		}
	}
}

func TestALyingManifestIsRefused(t *testing.T) {
	true_ := wire.ManifestEntry{Path: "f", Type: typeFile, Mode: 0o644, Size: 5, SHA256: sha256.Sum256([]byte("PWNED"))}
	change := func(f func(*wire.ManifestEntry)) wire.Manifest {
		e := true_
		f(&e)
		return wire.Manifest{Entries: []wire.ManifestEntry{e}}
	}
	tests := map[string]wire.Manifest{
		"another digest":            change(func(e *wire.ManifestEntry) { e.SHA256 = sha256.Sum256([]byte("other")) }),
		"another mode":              change(func(e *wire.ManifestEntry) { e.Mode = 0o755 }),
		"another name":              change(func(e *wire.ManifestEntry) { e.Path = "g" }),
		"another size":              change(func(e *wire.ManifestEntry) { e.Size = 6 }),
		"another type":              change(func(e *wire.ManifestEntry) { e.Type = typeSymlink }),
		"no entries":                {},
		"one entry too many":        {Entries: []wire.ManifestEntry{true_, true_}},
		"a deleted name above":      {Entries: []wire.ManifestEntry{true_}, Deleted: []string{"../x"}},
		"a deleted name from slash": {Entries: []wire.ManifestEntry{true_}, Deleted: []string{"/x"}},
	}
	for name, m := range tests {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			tw := tar.NewWriter(&b)
			tw.WriteHeader(&tar.Header{Name: "f", Mode: 0o644, Size: 5, Typeflag: tar.TypeReg})
			io.WriteString(tw, "PWNED")
			writeManifest(tw, m)
			tw.Close()
			if _, err := Unpack(context.Background(), openRoot(t, t.TempDir()), &b, UnpackOptions{}); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func hexSum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func TestLimitsApplyOnBothSides(t *testing.T) {
	src := t.TempDir()
	write(t, src, "d/e/f", "12345", 0o644)
	write(t, src, "g", "1234567890", 0o644)
	stream, _ := pack(t, src, PackOptions{Limits: Limits{AllNames: len("d" + "d/e" + "d/e/f" + "g")}})
	tests := map[string]Limits{
		"files":         {Files: 3},
		"bytes":         {Bytes: 14},
		"bytes of one":  {FileBytes: 9},
		"depth":         {Depth: 2},
		"name length":   {NameBytes: 4},
		"names":         {AllNames: len("d"+"d/e"+"d/e/f"+"g") - 1},
		"file and byte": {Files: 2, Bytes: 4},
	}
	for name, limits := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := Pack(context.Background(), openRoot(t, src), PackOptions{Limits: limits}, io.Discard); !errors.Is(err, ErrLimit) {
				t.Errorf("pack: %v", err)
			}
			if _, err := Unpack(context.Background(), openRoot(t, t.TempDir()), bytes.NewReader(stream), UnpackOptions{Limits: limits}); !errors.Is(
				err,
				ErrLimit,
			) {
				t.Errorf("unpack: %v", err)
			}
		})
	}
	exact := Limits{Files: 4, Bytes: 15, FileBytes: 10, Depth: 3, NameBytes: 5}
	if _, err := Unpack(context.Background(), openRoot(t, t.TempDir()), bytes.NewReader(stream), UnpackOptions{Limits: exact}); err != nil {
		t.Errorf("limits that just fit: %v", err)
	}
}

func TestAPartialTreeIsKeptAndMarkedOnlyWhenAsked(t *testing.T) {
	src := t.TempDir()
	write(t, src, "a", "first", 0o644)
	write(t, src, "b", strings.Repeat("x", 4096), 0o644)
	stream, _ := pack(t, src, PackOptions{})
	dst := t.TempDir()
	keep := ReceiveOptions{UnpackOptions: UnpackOptions{KeepPartial: true}}
	m, err := Receive(context.Background(), openRoot(t, dst), "got", bytes.NewReader(stream[:2048]), keep)
	if err == nil {
		t.Fatal("accepted")
	}
	if len(m.Entries) != 1 || m.Entries[0].Path != "a" {
		t.Errorf("entries that arrived whole: %+v", m.Entries)
	}
	if have := listing(t, dst); have[0] != "got.partial drwx------" || len(have) != 3 {
		t.Errorf("kept %.200q", have)
	}
}

func TestReceiveDoesNotTouchWhatExists(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	write(t, src, "a", "new", 0o644)
	stream, _ := pack(t, src, PackOptions{})
	os.Symlink("elsewhere", filepath.Join(dst, "got"))
	for _, name := range []string{"got", "../x", "a/b", ".", ""} {
		if _, err := Receive(context.Background(), openRoot(t, dst), name, bytes.NewReader(stream), ReceiveOptions{}); err == nil {
			t.Errorf("received as %q", name)
		}
	}
	if have := listing(t, dst); len(have) != 1 {
		t.Errorf("left %q", have)
	}
}

func TestInstallMergesIntoADirectory(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	write(t, src, "d/new", "n", 0o644)
	write(t, src, "d/old", "changed", 0o644)
	write(t, src, "link", "file now", 0o644)
	write(t, src, "fresh/x/y", "y", 0o644)
	write(t, dst, "d/old", "before", 0o600)
	write(t, dst, "d/kept", "kept", 0o644)
	write(t, dst, "victim", "v", 0o644)
	os.Symlink("victim", filepath.Join(dst, "link"))
	stream, _ := pack(t, src, PackOptions{})
	if _, err := Install(context.Background(), openRoot(t, dst), bytes.NewReader(stream), UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	want := []string{"d drwxr-xr-x", "d/kept -rw-r--r-- kept", "d/new -rw-r--r-- n", "d/old -rw-r--r-- changed",
		"fresh drwxr-xr-x", "fresh/x drwxr-xr-x", "fresh/x/y -rw-r--r-- y", "link -rw-r--r-- file now", "victim -rw-r--r-- v"}
	if have := listing(t, dst); !slices.Equal(have, want) {
		t.Errorf("got %q", have)
	}
}

func TestInstallMovesNothingWhenADirectoryMeetsAFile(t *testing.T) {
	src := t.TempDir()
	write(t, src, "a", "1", 0o644)
	write(t, src, "x/y", "2", 0o644)
	stream, _ := pack(t, src, PackOptions{})
	for name, make := range map[string]func(dst string){
		"file where a directory comes": func(dst string) { write(t, dst, "x", "file", 0o644) },
		"link where a directory comes": func(dst string) { os.Symlink("..", filepath.Join(dst, "x")) },
		"directory where a file comes": func(dst string) { os.Mkdir(filepath.Join(dst, "a"), 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			dst := t.TempDir()
			make(dst)
			before := listing(t, dst)
			if _, err := Install(context.Background(), openRoot(t, dst), bytes.NewReader(stream), UnpackOptions{}); !errors.Is(err, ErrRefused) {
				t.Fatalf("got %v", err)
			}
			if after := listing(t, dst); !slices.Equal(before, after) {
				t.Errorf("changed to %q", after)
			}
		})
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(signed(f, tar.Header{Name: "a/b"}, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "a"}))
	f.Add(signed(f, tar.Header{Name: "../x"}))
	f.Add(
		signed(
			f,
			tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755},
			tar.Header{Name: "d/l", Typeflag: tar.TypeSymlink, Linkname: "../d"},
		),
	)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, stream []byte) {
		outside := t.TempDir()
		dst := filepath.Join(outside, "dst")
		os.Mkdir(dst, 0o755)
		root := openRoot(t, dst)
		m, err := Receive(context.Background(), root, "got", bytes.NewReader(stream),
			ReceiveOptions{UnpackOptions: UnpackOptions{RefuseGit: true, Limits: Limits{Bytes: 1 << 20, Files: 100}}})
		if err != nil {
			if have := listing(t, outside); len(have) != 1 {
				t.Fatalf("refused (%v) and left %q", err, have)
			}
			return
		}
		for _, e := range m.Entries {
			info, err := root.Lstat(string("got/" + e.Path))
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky|fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 {
				t.Fatalf("%q has mode %v", e.Path, info.Mode())
			}
			if e.Type == typeSymlink {
				// The kernel's own resolution: a link may dangle, but not lead outside.
				if _, err := root.Stat(string("got/" + e.Path)); err != nil && strings.Contains(err.Error(), "escapes") {
					t.Fatalf("%q -> %q leaves the tree", e.Path, e.Target)
				}
			}
		}
	})
}

func benchTree(b *testing.B) string {
	dir := b.TempDir()
	for i := range 10_000 {
		write(
			b,
			dir,
			"d"+string(rune('a'+i%26))+"/e"+string(rune('a'+i/26%26))+"/f"+hexSum(string(rune(i)))[:8],
			strings.Repeat("x", i%3000),
			0o644,
		)
	}
	return dir
}

// BenchmarkPackUnpack moves 10,000 small files through a pipe.
func BenchmarkPackUnpack(b *testing.B) {
	src := benchTree(b)
	root := openRoot(b, src)
	for b.Loop() {
		b.StopTimer()
		dst := b.TempDir()
		out := openRoot(b, dst)
		b.StartTimer()
		r, w := io.Pipe()
		go func() {
			_, err := Pack(context.Background(), root, PackOptions{}, w)
			w.CloseWithError(err)
		}()
		if _, err := Unpack(context.Background(), out, r, UnpackOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestNothingComesAfterTheManifest(t *testing.T) {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	writeManifest(tw, wire.Manifest{})
	tw.WriteHeader(&tar.Header{Name: "late", Mode: 0o644, Typeflag: tar.TypeReg})
	tw.Close()
	if _, err := Unpack(context.Background(), openRoot(t, t.TempDir()), &b, UnpackOptions{}); !errors.Is(err, ErrRefused) {
		t.Errorf("%v", err)
	}
}

func TestANonEmptyDirectoryIsNotUnpackedInto(t *testing.T) {
	dst := t.TempDir()
	write(t, dst, "there", "x", 0o644)
	if _, err := Unpack(context.Background(), openRoot(t, dst), bytes.NewReader(signed(t, tar.Header{Name: "f"})),
		UnpackOptions{}); err == nil {
		t.Error("accepted")
	}
}

// A manifest is written entry by entry, with the bytes of json.Marshal.
func TestAManifestIsWrittenAsTheLibraryWouldWriteIt(t *testing.T) {
	entries := []wire.ManifestEntry{
		{Path: "a<b>&\xff\n", Type: typeFile, Mode: 0o644, Size: 1 << 40, SHA256: sha256.Sum256(nil)},
		{Path: "d", Type: typeDir, Mode: 0o755}, {Path: "l", Type: typeSymlink, Mode: 0o777, Target: "a\"b"},
	}
	for n := range len(entries) + 1 {
		for _, m := range []wire.Manifest{
			{Entries: entries[:n]},
			{Entries: entries[:n], Deleted: wire.Names{"x", "\xfe"}, Skipped: []string{"\"y\": a reason"}},
		} {
			want, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := encodeManifest(&got, m); err != nil || got.String() != string(want) {
				t.Errorf("%v: got %s, want %s", err, &got, want)
			}
		}
	}
}
