package target

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

func resolved(t *testing.T, target *Target, path string) *Handle {
	t.Helper()
	h, err := target.Resolve(Lookup{Dir: unix.AT_FDCWD, Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func TestACopyDoesNotChange(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("first"), 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := OpenView(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	h := resolved(t, self, file)
	if _, err := h.Copy(4); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a file of 5 bytes, of which 4 are taken: %v", err)
	}
	copied, err := h.Copy(5)
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	if err := os.WriteFile(file, []byte("other text"), 0o755); err != nil {
		t.Fatal(err)
	}
	if f, err := os.OpenFile(procFD(copied.fd), os.O_RDWR, 0); err == nil {
		if _, err := f.WriteString("x"); !errors.Is(err, unix.EPERM) {
			t.Errorf("writing to what is copied: %v", err)
		}
		f.Close()
	}
	f, err := copied.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if data, err := io.ReadAll(f); string(data) != "first" || err != nil || copied.Path != file || copied.Stat.Ino != h.Stat.Ino ||
		copied.Stat.Size != 5 {
		t.Errorf("%q %v, %s of %d bytes", data, err, copied.Path, copied.Stat.Size)
	}
}

func TestAWalkNotesItsLinks(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link": "sub/../other", "other": dir + "/sub/file"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sub/file", "sub/second"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := OpenView(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	l := Lookup{Dir: unix.AT_FDCWD, Path: dir + "/link"}
	route, err := self.Walk(l, resolved(t, self, l.Path))
	if err != nil || route.Fixed || len(route.Links) != 2 || route.Links[dir+"/link"] != "sub/../other" ||
		route.Links[dir+"/other"] != dir+"/sub/file" {
		t.Errorf("%+v %v", route, err)
	}
	if _, err := self.Walk(l, resolved(t, self, dir+"/sub/second")); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a walk to another file: %v", err)
	}
}

// On read-only mounts nothing on the route can be exchanged.
func TestARouteOnReadOnlyMountsIsFixed(t *testing.T) {
	testenv.Need(t, testenv.Root)
	type result struct {
		path  string
		fixed bool
		err   error
	}
	results := make(chan result)
	go func() {
		defer close(results)
		runtime.LockOSThread() // the thread ends with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			results <- result{err: err}
			return
		}
		err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
		}
		if err == nil {
			err = unix.Mount("tmpfs", "/mnt", "tmpfs", 0, "")
		}
		if err == nil {
			err = os.Symlink("/usr/bin/env", "/mnt/env")
		}
		self, open := OpenView(unix.Gettid())
		if err = errors.Join(err, open); err != nil {
			results <- result{err: err}
			return
		}
		defer self.Close()
		for _, path := range []string{"/usr/bin/env", "/usr/bin/../bin/env", "/mnt/env", "/mnt/../usr/bin/env"} {
			h, err := self.Resolve(Lookup{Dir: unix.AT_FDCWD, Path: path})
			if err != nil {
				results <- result{path: path, err: err}
				continue
			}
			route, err := self.Walk(Lookup{Dir: unix.AT_FDCWD, Path: path}, h)
			h.Close()
			results <- result{path, route.Fixed, err}
		}
	}()
	for r := range results {
		if want := r.path == "/usr/bin/env" || r.path == "/usr/bin/../bin/env" || r.path == "/mnt/../usr/bin/env"; r.err != nil ||
			r.fixed != want {
			t.Errorf("%s is fixed: %v, %v", r.path, r.fixed, r.err)
		}
	}
}

// The file system of a script may be that of another program, which each open waits for.
func TestAScriptIsOpenedOnceToBeCopied(t *testing.T) {
	file := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // the first thread may be in other mounts: a test before had it
	defer runtime.UnlockOSThread()
	self, err := OpenView(unix.Gettid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	events, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(events)
	if _, err := unix.InotifyAddWatch(events, file, unix.IN_OPEN|unix.IN_CLOSE); err != nil {
		t.Fatal(err)
	}
	h := resolved(t, self, file)
	if head, err := h.Head(2); err != nil || string(head) != "#!" {
		t.Fatalf("%q, %v", head, err)
	}
	copied, err := h.Copy(100)
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	var all bytes.Buffer
	if head, err := copied.Head(4); err != nil || string(head) != "#!/b" {
		t.Errorf("%q, %v", head, err)
	}
	if n, err := copied.CopyTo(&all, 100); n != 10 || err != nil || all.String() != "#!/bin/sh\n" {
		t.Errorf("%d bytes, %v: %q", n, err, all.String())
	}
	buf := make([]byte, 4096)
	n, err := unix.Read(events, buf)
	opened := 0
	for at := 0; at < n; at += unix.SizeofInotifyEvent {
		if binary.NativeEndian.Uint32(buf[at+4:])&unix.IN_OPEN != 0 {
			opened++
		}
	}
	if err != nil || opened != 1 || h.kept != 0 {
		t.Errorf("it was opened %d times, %v; kept: %d", opened, err, h.kept)
	}
}

// A file can be longer than its status says, as in procfs, and longer than a buffer.
func TestFilesAreCopiedInParts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	data := bytes.Repeat([]byte("0123456789abcdef"), 3*maxBuffer/16)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := OpenView(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	for size, limit := range map[int64]int64{0: 1 << 20, 1: int64(len(data)), 1 << 20: maxBuffer + 1} {
		h := resolved(t, self, file)
		h.Stat.Size = size
		var all bytes.Buffer
		n, err := h.CopyTo(&all, limit)
		if want := data[:min(limit, int64(len(data)))]; err != nil || n != int64(len(want)) || !bytes.Equal(all.Bytes(), want) {
			t.Errorf("status of %d bytes, at most %d: %d bytes, %v", size, limit, n, err)
		}
	}
}
