package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/wire"
)

func openReader(t *testing.T, dir string) *Reader {
	t.Helper()
	r, err := OpenReader(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// rest reads paths of events until the first error.
func rest(r *Reader) ([]string, error) {
	var paths []string
	for {
		e, err := r.Next()
		if err != nil {
			return paths, err
		}
		paths = append(paths, e.Path)
	}
}

func TestAReaderSeesWholeLinesOfAFileThatGrows(t *testing.T) {
	dir := filled(t, 3)
	whole := read(t, dir)
	r := openReader(t, dir)
	if paths, err := rest(r); len(paths) != 3 || !errors.Is(err, io.EOF) {
		t.Fatalf("read %q, %v", paths, err)
	}
	if want := whole[strings.LastIndex(string(whole[:len(whole)-1]), "\n")+1 : len(whole)-1]; string(r.Line()) != string(want) {
		t.Errorf("the last line is %q, want %q", r.Line(), want)
	}
	rewrite(t, dir, append(whole, whole[:40]...))
	if paths, err := rest(r); len(paths) != 0 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("half a line gave %q, %v", paths, err)
	}
	rewrite(t, dir, append(whole, whole...))
	if paths, err := rest(r); len(paths) != 3 || !errors.Is(err, io.EOF) {
		t.Fatalf("the rest of it gave %q, %v", paths, err)
	}
	rewrite(t, dir, whole[:100])
	if _, err := rest(r); err == nil || !strings.Contains(err.Error(), "cut to 100 bytes") {
		t.Errorf("a cut log gave %v", err)
	}
}

func TestAReaderNamesTheLineThatIsNoEvent(t *testing.T) {
	dir := filled(t, 2)
	for name, c := range map[string]struct{ add, want string }{
		"no JSON":              {"hello\n", "line 3: not an audit event"},
		"a line that is long":  {strings.Repeat("x", 2*MaxLine) + "\n", "line 3: longer than"},
		"a long line unending": {strings.Repeat("x", 3*MaxLine), "line 3: longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			whole := read(t, dir)
			defer rewrite(t, dir, whole)
			rewrite(t, dir, append(whole[:len(whole):len(whole)], c.add...))
			_, err := rest(openReader(t, dir))
			var line *LineError
			if !errors.As(err, &line) || line.Line != 3 || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %s", err, c.want)
			}
		})
	}
}

func TestAReaderFollowsAWriterToItsEnd(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	r := openReader(t, dir)
	const n = 200
	wrote := make(chan error, 1)
	go func() {
		var err error
		for i := range n {
			err = errors.Join(err, l.Append(wire.Event{Type: wire.EventExec, Path: fmt.Sprint(i), Decision: "allow"}))
		}
		wrote <- err
	}()
	for i := 0; i < n; {
		e, err := r.Next()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = r.Wait(t.Context())
			if err == nil {
				continue
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if e.Path != fmt.Sprint(i) {
			t.Fatalf("event %d is %s", i, e.Path)
		}
		i++
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	shut(t, l)
}

func TestWaitingForALogEndsWithItsContextAndItsFile(t *testing.T) {
	dir := filled(t, 1)
	r := openReader(t, dir)
	if _, err := rest(r); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if err := r.Wait(t.Context()); err != nil { // the watch begins
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want canceled", err)
	}
	r = openReader(t, dir)
	if err := r.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	for range 3 { // the change of its attributes first
		if err := r.Wait(t.Context()); errors.Is(err, ErrRemoved) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("a removed log is waited for")
}

// The size of a log that others write to can be within a line.
func TestEventsSinceAnySizeBeginWithAWholeLine(t *testing.T) {
	dir := filled(t, 5)
	log := read(t, dir)
	path := filepath.Join(dir, "log")
	for size := int64(0); size <= int64(len(log)); size++ {
		var got []uint64
		if err := ReadSince(path, size, func(e wire.Event) { got = append(got, e.Seq) }); err != nil {
			t.Fatalf("size %d: %v", size, err)
		}
		var want []uint64
		for seq := uint64(bytes.Count(log[:size], []byte("\n"))) + 1; seq <= 5; seq++ {
			want = append(want, seq)
		}
		if !slices.Equal(got, want) {
			t.Errorf("size %d: events %v, want %v", size, got, want)
		}
	}
}

// The last line may be half written, and a failed write is cut off again.
func TestEventsSinceASizeLeaveOutAnUnfinishedLine(t *testing.T) {
	dir := filled(t, 3)
	log := read(t, dir)
	second := int64(bytes.IndexByte(log, '\n') + 1)
	rewrite(t, dir, log[:len(log)-10])
	for _, size := range []int64{second, second + 5, int64(len(log)) + 100} {
		var got []uint64
		if err := ReadSince(filepath.Join(dir, "log"), size, func(e wire.Event) { got = append(got, e.Seq) }); err != nil {
			t.Fatalf("size %d: %v", size, err)
		}
		if size < int64(len(log)) && !slices.Equal(got, []uint64{2}) || size > int64(len(log)) && len(got) != 0 {
			t.Errorf("size %d: events %v", size, got)
		}
	}
	rewrite(t, dir, append([]byte("nothing\n"), log...))
	if err := ReadSince(filepath.Join(dir, "log"), 3, func(wire.Event) {}); err == nil || !strings.Contains(err.Error(), "at byte 0") {
		t.Errorf("%v", err)
	}
}
