package engine

import (
	"errors"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// What a worker waits for is what it traces: a thread that has started a process
// is none.
func TestAWorkerHasNoChildrenOfItsThread(t *testing.T) {
	for range 64 {
		cmd := exec.Command("/bin/cat")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		runtime.LockOSThread()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if !hasChildren() {
			t.Error("the process is no child of its thread")
		}
		result := make(chan error, 1)
		// From here on the thread is free for the worker.
		go func() {
			result <- OnThread(func() error {
				_, err := unix.Wait4(-1, nil, unix.WALL|unix.WNOTHREAD|unix.WNOHANG, nil)
				return err
			})
		}()
		runtime.UnlockOSThread()
		if err := <-result; !errors.Is(err, unix.ECHILD) {
			t.Errorf("the worker can wait for a process: %v", err)
		}
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}
