package tarfs

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"runtime"
	"testing"
)

// inUse is the memory in use, in bytes.
func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// An archive is as large as its sender likes. So each entry has to be small until the
// manifest arrives.
func TestAnEntryThatArrivedTakesLittleMemory(t *testing.T) {
	const files, most = 10_000, 125 // bytes of each
	r, w := io.Pipe()
	stopped := errors.New("stopped")
	var used int64
	go func() { // ends with the pipe
		tw := tar.NewWriter(w)
		var before int64
		for i := range files {
			if i == 1 { // the first entry arrived, and so the buffers of Unpack are there
				before = inUse()
			}
			if err := tw.WriteHeader(&tar.Header{Name: fmt.Sprint("file", i), Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
				return
			}
		}
		used = inUse() - before
		_ = w.CloseWithError(stopped)
	}()
	m, err := Unpack(t.Context(), openRoot(t, t.TempDir()), r, UnpackOptions{KeepPartial: true})
	if !errors.Is(err, stopped) || len(m.Entries) < files-1 {
		t.Fatalf("%d entries, %v", len(m.Entries), err)
	}
	t.Logf("%d bytes of each entry", used/files)
	if used > files*most {
		t.Errorf("%d bytes of each entry, at most %d", used/files, most)
	}
}
