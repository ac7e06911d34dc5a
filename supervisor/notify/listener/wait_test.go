package listener

import (
	"os/exec"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"agentsh/internal/testenv"

	"golang.org/x/sys/unix"
)

func TestAWaitForAnExecKeepsNoProcessor(t *testing.T) {
	testenv.GivesProcessorUp(t, func(plain bool) time.Duration {
		cmd := exec.Command("/bin/cat")
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		var begun atomic.Pointer[time.Time]
		ended := make(chan unix.WaitStatus)
		go func() {
			runtime.LockOSThread() // ends with the goroutine
			if err := cmd.Start(); err != nil {
				t.Error(err)
			}
			var status unix.WaitStatus
			wait := waitLong
			if plain {
				wait = func(status *unix.WaitStatus) (int, error) {
					return unix.Wait4(-1, status, unix.WALL|unix.WNOTHREAD, nil)
				}
			}
			now := time.Now()
			begun.Store(&now)
			if _, err := wait(&status); err != nil {
				t.Error(err)
			}
			ended <- status
		}()
		for begun.Load() == nil {
			runtime.Gosched()
		}
		took := time.Since(*begun.Load())
		stdin.Close()
		if status := <-ended; !status.Exited() || status.ExitStatus() != 0 {
			t.Errorf("cat ended with %v", status)
		}
		cmd.Process.Release()
		return took
	})
}
