package channel

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
)

// served is a client of one directory, shown as /sandbox, and that directory.
func served(t testing.TB) (*Client, string, *[]string) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	var changed []string
	f, err := NewRoots(RootsConfig{Mounts: []Mount{{Path: "/sandbox", Root: root}},
		Limits: tarfs.Limits{FileBytes: 1 << 20}, Changed: func(p []string) { changed = append(changed, p...) }})
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, &handler{files: f}), dir, &changed
}

func TestFilesGoInAndComeOut(t *testing.T) {
	c, dir, changed := served(t)
	ctx := context.Background()
	if err := c.Mkdir(ctx, "/sandbox/a/b", 0o750); err != nil {
		t.Fatal(err)
	}
	content := strings.Repeat("0123456789", 50_000)
	info, err := c.Write(ctx, wire.WriteFile{Path: "/sandbox/a/b/f", Mode: 0o640}, strings.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(content))
	if info.SHA256 != hex.EncodeToString(sum[:]) || info.Size != int64(len(content)) || info.Mode != 0o640 || info.Type != "file" {
		t.Errorf("%+v", info)
	}
	if data, err := c.ReadFile(ctx, "/sandbox/a/b/f", 1<<20); err != nil || string(data) != content {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	var part bytes.Buffer
	if _, err := c.Read(ctx, wire.ReadRange{Path: "/sandbox/a/b/f", Offset: 5, Length: 3}, &part); err != nil || part.String() != "567" {
		t.Errorf("%q %v", part.String(), err)
	}
	os.Symlink("f", filepath.Join(dir, "a/b/l"))
	list, err := c.List(ctx, "/sandbox/a/b")
	if err != nil || len(list) != 2 || list[0].Name != "f" || list[1].Type != "symlink" || list[1].Target != "f" {
		t.Errorf("%+v %v", list, err)
	}
	if info, err := c.Stat(ctx, "/sandbox"); err != nil || info.Type != "dir" {
		t.Errorf("%+v %v", info, err)
	}
	if err := c.Remove(ctx, "/sandbox/a", false); err == nil {
		t.Error("removed a directory with content")
	}
	if err := c.Remove(ctx, "/sandbox/a", true); err != nil {
		t.Error(err)
	}
	want := []string{"/sandbox/a/b", "/sandbox/a", "/sandbox/a/b/f", "/sandbox/a"}
	if !slices.Equal(*changed, want) {
		t.Errorf("told of %q", *changed)
	}
	if names, _ := os.ReadDir(dir); len(names) != 0 {
		t.Errorf("left %v", names)
	}
}

func TestAWriteReplacesAsAWhole(t *testing.T) {
	c, dir, _ := served(t)
	ctx := context.Background()
	file := filepath.Join(dir, "f")
	os.WriteFile(file, []byte("old"), 0o600)
	write := func(f wire.WriteFile, content string) error {
		f.Path, f.Mode = "/sandbox/f", 0o600
		_, err := c.Write(ctx, f, strings.NewReader(content))
		return err
	}
	digest := func(s string) string { sum := sha256.Sum256([]byte(s)); return hex.EncodeToString(sum[:]) }
	var told *wire.Error
	if err := write(wire.WriteFile{IfMatch: digest("other")}, "x"); !errors.As(err, &told) || told.Code != wire.CodeMismatch {
		t.Errorf("other content: %v", err)
	}
	if err := write(wire.WriteFile{IfAbsent: true}, "x"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("not absent: %v", err)
	}
	if err := write(wire.WriteFile{IfMatch: digest("old")}, "new"); err != nil {
		t.Errorf("same content: %v", err)
	}
	if err := write(wire.WriteFile{}, strings.Repeat("x", 1<<20+1)); err == nil {
		t.Error("wrote above the limit")
	}
	broken := io.MultiReader(strings.NewReader("half"), errReader{})
	if _, err := c.Write(ctx, wire.WriteFile{Path: "/sandbox/f", Mode: 0o600}, broken); err == nil ||
		!strings.Contains(err.Error(), "reader broke") {
		t.Errorf("broken reader: %v", err)
	}
	if data, _ := os.ReadFile(file); string(data) != "new" {
		t.Errorf("file holds %q", data)
	}
	os.Symlink("f", filepath.Join(dir, "l"))
	if err := c.WriteFile(ctx, "/sandbox/l", []byte("own"), 0o644); err != nil {
		t.Error(err)
	}
	if data, _ := os.ReadFile(file); string(data) != "new" {
		t.Errorf("wrote through a link: %q", data)
	}
	if names, _ := os.ReadDir(dir); len(names) != 2 {
		t.Errorf("left %v", names)
	}
}

type errReader struct{}

// none ignores an entry.
func none(wire.ManifestEntry) error { return nil }

func (errReader) Read([]byte) (int, error) { return 0, errors.New("reader broke") }

func TestNothingBeyondTheRootIsReached(t *testing.T) {
	c, dir, _ := served(t)
	ctx := context.Background()
	os.Symlink("/etc", filepath.Join(dir, "abs"))
	os.Symlink("../..", filepath.Join(dir, "up"))
	os.Symlink("/etc/passwd", filepath.Join(dir, "secret"))
	syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600)
	for _, name := range []string{"/etc/passwd", "/sandboxed", "/", "", "sandbox", "/sandbox/../etc/passwd", "/sandbox//x", "/sandbox/",
		"/sandbox/abs/passwd", "/sandbox/up/etc/passwd", "/sandbox/secret", "/sandbox/fifo", "/sandbox/x\x00y", "/sandbox"} {
		if data, err := c.ReadFile(ctx, name, 1<<20); err == nil {
			t.Errorf("read %d bytes of %q", len(data), name)
		}
	}
	for _, name := range []string{"/sandbox", "/sandbox/abs/x", "/sandbox/up/x", "/etc/x", "/sandbox/none/x"} {
		if err := c.WriteFile(ctx, name, nil, 0o600); err == nil {
			t.Errorf("wrote %q", name)
		}
		if err := c.Remove(ctx, name, true); err == nil {
			t.Errorf("removed %q", name)
		}
		if name != "/sandbox" && name != "/sandbox/none/x" {
			if err := c.Mkdir(ctx, name, 0o700); err == nil {
				t.Errorf("made %q", name)
			}
			if err := c.CopyIn(ctx, name, strings.NewReader(""), none); err == nil {
				t.Errorf("copied into %q", name)
			}
		}
	}
	if _, err := c.Write(ctx, wire.WriteFile{Path: "/sandbox/s", Mode: 0o4755}, strings.NewReader("")); err == nil {
		t.Error("wrote a set-user-id file")
	}
	if _, err := c.file(ctx, wire.FileRequest{Op: "chmod", Path: "/sandbox"}, body{}); err == nil {
		t.Error("an unknown operation was done")
	}
	if _, err := c.Stat(ctx, "/sandbox/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}

func TestATreeGoesInAndComesOut(t *testing.T) {
	c, dir, changed := served(t)
	ctx := context.Background()
	src := t.TempDir()
	for i := range 50 {
		os.MkdirAll(filepath.Join(src, fmt.Sprint(i%7)), 0o755)
		os.WriteFile(filepath.Join(src, fmt.Sprint(i%7), fmt.Sprint(i)), []byte(strings.Repeat("z", i*1000)), 0o644)
	}
	root, _ := os.OpenRoot(src)
	defer root.Close()
	var stream bytes.Buffer
	sent, err := tarfs.Pack(ctx, root, tarfs.PackOptions{}, &stream)
	if err != nil {
		t.Fatal(err)
	}
	var got []wire.ManifestEntry
	err = c.CopyIn(ctx, "/sandbox/work/tree", bytes.NewReader(stream.Bytes()), collect(&got))
	if err != nil || !slices.Equal(got, sent.Entries) {
		t.Fatalf("%d entries, %v", len(got), err)
	}
	if len(*changed) != len(sent.Entries)+1 || (*changed)[0] != "/sandbox/work/tree" {
		t.Errorf("told of %d", len(*changed))
	}
	var out bytes.Buffer
	err = c.CopyOut(ctx, wire.CopyOut{Dir: "/sandbox/work/tree"}, &out)
	if err != nil || !bytes.Equal(out.Bytes(), stream.Bytes()) {
		t.Errorf("%d of %d bytes, %v", out.Len(), stream.Len(), err)
	}
	if err := c.CopyIn(ctx, "/sandbox/cut", bytes.NewReader(stream.Bytes()[:stream.Len()/2]), none); err == nil {
		t.Error("half a tree was taken")
	}
	if names, _ := os.ReadDir(filepath.Join(dir, "cut")); len(names) != 0 {
		t.Errorf("half a tree left %v", names)
	}
	if err := c.CopyIn(ctx, "/sandbox/cut", io.MultiReader(bytes.NewReader(stream.Bytes()[:2000]), errReader{}), none); err == nil ||
		!strings.Contains(err.Error(), "reader broke") {
		t.Errorf("broken reader: %v", err)
	}
	if err := c.CopyOut(ctx, wire.CopyOut{Dir: "/sandbox/none"}, io.Discard); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
}

func TestARefusedArchiveStopsAtOnce(t *testing.T) {
	c, _, _ := served(t)
	// An endless stream of nonsense: the refusal must not wait for its end.
	if err := c.CopyIn(context.Background(), "/sandbox/x", endless{}, none); err == nil {
		t.Error("nonsense was taken")
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'n'
	}
	return len(p), nil
}

func TestEventsStreamFromASequenceNumber(t *testing.T) {
	h := &handler{changes: []wire.Change{{Path: "a", Kind: "created"}}}
	h.events = func(ctx context.Context, req wire.EventRequest) iter.Seq2[wire.Event, error] {
		return func(yield func(wire.Event, error) bool) {
			for i := req.From; i < req.From+3; i++ {
				if !yield(wire.Event{Seq: i, Type: wire.EventExec}, nil) {
					return
				}
			}
			switch req.From {
			case 10:
				yield(wire.Event{}, errors.New("log is gone"))
			case 20:
				<-ctx.Done()
			}
		}
	}
	c := connect(t, h)
	collect := func(ctx context.Context, from uint64, stopAt uint64, stop func()) ([]uint64, error) {
		var seqs []uint64
		err := c.Events(ctx, wire.EventRequest{From: from}, func(e wire.Event) error {
			seqs = append(seqs, e.Seq)
			if e.Seq == stopAt {
				stop()
			}
			return nil
		})
		return seqs, err
	}
	if seqs, err := collect(context.Background(), 1, 0, nil); err != nil || !slices.Equal(seqs, []uint64{1, 2, 3}) {
		t.Errorf("%v %v", seqs, err)
	}
	if seqs, err := collect(context.Background(), 10, 0, nil); err == nil || !strings.Contains(err.Error(), "log is gone") || len(seqs) != 3 {
		t.Errorf("%v %v", seqs, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if seqs, err := collect(ctx, 20, 22, cancel); !errors.Is(err, context.Canceled) || len(seqs) != 3 {
		t.Errorf("%v %v", seqs, err)
	}
	if changes, err := c.Changes(context.Background()); err != nil || len(changes) != 1 || changes[0].Path != "a" {
		t.Errorf("%v %v", changes, err)
	}
	stopped := errors.New("enough")
	if err := c.Events(t.Context(), wire.EventRequest{From: 20}, func(wire.Event) error { return stopped }); !errors.Is(err, stopped) {
		t.Errorf("%v", err)
	}
}

// FuzzFrame feeds the readers of frames and bodies.
func FuzzFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	f.Add([]byte{0, 0, 0, 1, 'x', 0, 0, 0, 0})
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		var req wire.FileRequest
		_ = readFrame(bytes.NewReader(data), &req)
		whole, err := io.ReadAll(&bodyReader{r: bytes.NewReader(data)})
		if len(whole) > len(data) {
			t.Fatalf("%d bytes out of %d", len(whole), len(data))
		}
		if err != nil {
			return
		}
		var again bytes.Buffer
		w := newBodyWriter(&again)
		w.Write(whole)
		if err := w.end(); err != nil {
			t.Fatal(err)
		}
		if back, err := io.ReadAll(&bodyReader{r: &again}); err != nil || !bytes.Equal(back, whole) {
			t.Fatalf("%v", err)
		}
	})
}

func TestAnInputOfTheWrongLengthIsIncomplete(t *testing.T) {
	for total, want := range map[int64]error{3: nil, 4: io.ErrUnexpectedEOF} {
		s := &stdinReader{r: strings.NewReader("abc"), end: make(chan int64, 1)}
		s.end <- total
		if data, err := io.ReadAll(s); !errors.Is(err, want) || string(data) != "abc" {
			t.Errorf("announced %d: %q %v", total, data, err)
		}
	}
}
