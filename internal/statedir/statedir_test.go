package statedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsh/internal/layout"

	"golang.org/x/sys/unix"
)

func TestOpenRefusesADirectoryOthersCanWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if _, err := Open(layout.State(dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(layout.State(dir)); err == nil || !strings.Contains(err.Error(), "nobody else may write") {
		t.Errorf("a world-writable directory was taken: %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(layout.State(link)); err == nil {
		t.Error("a link was taken for the directory")
	}
}

func TestALockEndsWithItsFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	f, err := TakeLock(name, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TakeLock(name, unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatalf("a second lock: %v", err)
	}
	f.Close()
	if f, err = TakeLock(name, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	f.Close()
}

func TestAReaderNeverSeesHalfAFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "record.json")
	long := strings.Repeat("x", 100_000)
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 20 {
				if err := WriteJSON(name, long); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for {
		data, err := os.ReadFile(name)
		if err == nil && string(data) != `"`+long+"\"\n" {
			t.Fatalf("read %d bytes", len(data))
		}
		select {
		case <-done:
			left, err := os.ReadDir(filepath.Dir(name))
			if err != nil || len(left) != 1 {
				t.Errorf("left behind: %v %v", left, err)
			}
			return
		default:
		}
	}
}

func TestRemoveTreeRemovesDirectoriesWithoutPermissions(t *testing.T) {
	root := filepath.Join(t.TempDir(), "tree")
	if err := os.MkdirAll(filepath.Join(root, "a/b/c"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "a/b/c/f"), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"a/b/c", "a/b", "a"} {
		if err := os.Chmod(filepath.Join(root, d), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveTree(root); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(root); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
	if err := RemoveTree(root); err != nil {
		t.Errorf("a tree that is not there: %v", err)
	}
}

func TestCheckRoomNamesWhatIsMissing(t *testing.T) {
	err := CheckRoom(t.TempDir(), 1<<62)
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "MiB are needed") {
		t.Errorf("err = %v", err)
	}
}

func TestALockThatIsNotReleasedNamesItsHolder(t *testing.T) {
	s, err := Open(layout.State(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := s.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.lock(50 * time.Millisecond); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("by process %d (", os.Getpid())) {
		t.Errorf("a second lock: %v", err)
	}
	unlock()
	if unlock, err = s.Lock(); err != nil { // what waited before gives it back
		t.Fatal(err)
	}
	unlock()
}
