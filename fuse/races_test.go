package fuse

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// while runs do again and again until the returned function is called.
func while(do func(round int) error) (stop func() error) {
	ended := make(chan struct{})
	var work sync.WaitGroup
	var first error
	work.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-ended:
				return
			default:
			}
			if err := do(i); err != nil && first == nil {
				first = err
			}
		}
	})
	return func() error {
		close(ended)
		work.Wait()
		return first
	}
}

// TestNoOpenFailsBesideAHost: a program that opens or creates a file gets it, however
// often the host removes, makes or replaces the file meanwhile. In a plain directory no
// such call fails.
func TestNoOpenFailsBesideAHost(t *testing.T) {
	hosts := map[string]func(name string, round int) error{
		"unlink and create": func(name string, _ int) error {
			return errors.Join(os.WriteFile(name, []byte("host"), 0o644), os.Remove(name))
		},
		"rename over and unlink": func(name string, _ int) error {
			return errors.Join(os.WriteFile(name+"~", []byte("host"), 0o644), os.Rename(name+"~", name), os.Remove(name))
		},
		"a symbolic link": func(name string, _ int) error {
			return errors.Join(os.Symlink("target", name+"~"), os.Rename(name+"~", name), os.Remove(name))
		},
	}
	for host, change := range hosts {
		for _, where := range []string{"", " without passthrough", " in a plain directory"} {
			for what, flags := range map[string]int{
				"O_CREAT": os.O_RDWR | os.O_CREATE, "O_CREAT and O_TRUNC": os.O_WRONLY | os.O_CREATE | os.O_TRUNC,
				"O_CREAT for reading": os.O_RDONLY | os.O_CREATE,
			} {
				t.Run(what+" beside "+host+where, func(t *testing.T) {
					inside, outside := t.TempDir(), ""
					if outside = inside; where != " in a plain directory" {
						s := start(t, options{plain: where != ""})
						inside, outside = s.dir, s.backing
					}
					stop := while(func(round int) error {
						_ = change(filepath.Join(outside, "f"), round) // a command may make the file meanwhile
						return nil
					})
					defer stop()
					opensBeside(t, filepath.Join(inside, "f"), flags)
				})
			}
		}
	}
}

// opensBeside opens a file again and again, and removes it every other time.
func opensBeside(t *testing.T, name string, flags int) {
	failed := map[error]int{}
	const opens = 1000
	for i := range opens {
		fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0o644)
		if err != nil {
			failed[err]++
			continue
		}
		if i%2 == 0 {
			_ = unix.Unlink(name)
		}
		_ = unix.Close(fd)
	}
	if len(failed) > 0 {
		t.Errorf("of %d opens: %v", opens, failed)
	}
}

// TestACreateOpensNoFileOfOthers: a file that the host makes while a command creates it
// is opened only if its mode allows that to the command's user.
func TestACreateOpensNoFileOfOthers(t *testing.T) {
	const user = 12345
	s := start(t, options{})
	must(t, os.Chmod(s.backing, 0o777))
	stop := while(func(int) error {
		return errors.Join(os.WriteFile(s.back("f~"), []byte("secret"), 0o600), os.Rename(s.back("f~"), s.back("f")), os.Remove(s.back("f")))
	})
	ended := make(chan int)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread has another identity
		_ = unix.Setfsuid(user)
		refused := 0
		for range 2000 {
			fd, err := unix.Open(s.path("f"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
			switch {
			case err == nil:
				var buf [10]byte
				if n, _ := unix.Read(fd, buf[:]); n > 0 {
					t.Errorf("the content %q of another user's file", buf[:n])
				}
				_ = unix.Close(fd)
			case errors.Is(err, unix.EACCES):
				refused++
			case !errors.Is(err, unix.ESTALE):
				t.Errorf("open: %v", err)
			}
		}
		ended <- refused
	}()
	if refused := <-ended; refused == 0 {
		t.Error("no open met the file of the other user")
	}
	_ = stop() // the command may have removed the file
}

// TestSizesAreRightOnceTheHostIsDone: after the host has changed a file in place, each
// open sees its size and all of its data, while others open and look at it too.
func TestSizesAreRightOnceTheHostIsDone(t *testing.T) {
	for name, o := range map[string]options{
		"": {}, "without passthrough": {plain: true}, "without passthrough and direct reads": {plain: true, noDirectReads: true},
		"with coarse times": {plain: true, coarseTimes: true, noDirectReads: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, o)
			s.seed(map[string]string{"f": "first"})
			old, err := os.Open(s.path("f")) // so that later opens cannot bypass the page cache
			must(t, err)
			defer old.Close()
			host, err := os.OpenFile(s.back("f"), os.O_RDWR, 0)
			must(t, err)
			defer host.Close()
			stop := while(func(int) error {
				_, err := os.Stat(s.path("f"))
				_, _ = old.ReadAt(make([]byte, 100), 0)
				return err
			})
			sizes := []int{9000, 10, 50_000, 4096, 0, 100, 100_000, 5000}
			for round := range 400 {
				text := strings.Repeat(string(rune('a'+round%26)), sizes[round%len(sizes)])
				_, err := host.WriteAt([]byte(text), 0)
				must(t, errors.Join(err, host.Truncate(int64(len(text)))))
				var readers sync.WaitGroup
				for reader := range 3 {
					readers.Go(func() {
						if err := readAlike(s.path("f"), text, reader == 0); err != nil {
							t.Errorf("round %d, %d bytes: %v", round, len(text), err)
						}
					})
				}
				readers.Wait()
			}
			must(t, stop())
		})
	}
}

// readAlike opens a file and compares what it reads, and its size after it or also
// before.
func readAlike(name, want string, before bool) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	sizeIs := func() error {
		st, err := f.Stat()
		if err != nil || st.Size() != int64(len(want)) {
			return fmt.Errorf("the size is %d, %w", st.Size(), err)
		}
		return nil
	}
	if before {
		if err := sizeIs(); err != nil {
			return err
		}
	}
	got, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if string(got) != want {
		return fmt.Errorf("%d bytes are read, %.3q", len(got), got)
	}
	return sizeIs()
}

// TestLocksDuringAFreeze: what holds a lock and what waits for one survive a freeze, also if
// the holder ends meanwhile. After the server's death no process hangs and nothing is locked.
func TestLocksDuringAFreeze(t *testing.T) {
	for _, kind := range []string{"posix", "ofd", "flock"} {
		t.Run(kind, func(t *testing.T) {
			s := start(t, options{})
			s.seed(map[string]string{"f": "text"})
			first := holdLock(t, s.path("f"), kind)
			first.says("has it")
			second := holdLock(t, s.path("f"), kind)
			second.sleeps()
			must(t, s.control.Freeze(t.Context()))
			if unlocked(t, s.back("f"), kind) {
				t.Error("a freeze releases the lock")
			}
			third := exec.Command("python3", "-c", "import sys; open(sys.argv[1])", s.path("f"))
			must(t, third.Start())
			first.end()
			must(t, s.control.Unfreeze(t.Context(), "ws", nil))
			second.says("has it")
			must(t, third.Wait())
			fourth := holdLock(t, s.path("f"), kind)
			fourth.sleeps()
			must(t, s.server.Process.Kill())
			_, _ = s.server.Process.Wait()
			if err := fourth.cmd.Wait(); err == nil {
				t.Error("a lock was granted by a dead server")
			}
			if !unlocked(t, s.back("f"), kind) {
				t.Error("a lock outlives the server")
			}
		})
	}
}
