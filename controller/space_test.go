package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// attempts does a part that fails as said until it is done often enough, and returns how often it was done.
func attempts(c *control, most int, failed error) (n int, err error) {
	err = c.do(context.Background(), "a test", func(ctx context.Context) error {
		if left, ok := ctx.Deadline(); !ok || time.Until(left) != cleanupTime {
			return fmt.Errorf("an attempt has %s", time.Until(left))
		}
		if n++; n == most {
			return nil
		}
		return failed
	})
	return n, err
}

func TestAPartIsDoneAgainWhereTheDiskWasFull(t *testing.T) {
	quota := fmt.Errorf("write x: %w", syscall.EDQUOT)
	for name, tt := range map[string]struct {
		failed error
		left   time.Duration
		most   int           // the attempt that succeeds
		want   int           // attempts
		after  time.Duration // that it ends
	}{
		"a quota that is raised":        {quota, 10 * time.Minute, 4, 4, 7 * time.Second},
		"a disk with room":              {syscall.ENOSPC, 10 * time.Minute, 2, 2, time.Second},
		"no longer than a minute apart": {quota, 10 * time.Minute, 8, 8, 123 * time.Second},
		"nobody raises the quota":       {quota, 10 * time.Second, 100, 5, 10 * time.Second},
		"nothing waits":                 {quota, 0, 2, 1, 0},
		"another error":                 {syscall.EIO, time.Minute, 2, 1, 0},
		"another failure":               {fail(ExitScan, "", quota), time.Minute, 2, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, c := newControl(t.Context(), nil)
				defer c.close()
				var said []string
				c.space = space{dirs: []string{"/"}, left: tt.left, giveUp: "x", progress: func(u Update) { said = append(said, u.Text) }}
				started := time.Now()
				n, err := attempts(c, tt.most, tt.failed)
				if n != tt.want || time.Since(started) != tt.after || (err == nil) != (n == tt.most) || err != nil && !errors.Is(err, tt.failed) {
					t.Errorf("%d attempts, %s, %v", n, time.Since(started), err)
				}
				if warned := len(said) == 1 && strings.Contains(said[0], "goes on by itself"); warned != (tt.after > 0) {
					t.Errorf("it says %q", said)
				}
				if c.space.left != tt.left-tt.after {
					t.Errorf("%s are left", c.space.left)
				}
			})
		})
	}
}

func TestTheWaitForSpaceEndsWithTheSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, how := range []string{"gone", "forced"} {
			forced, force := context.WithCancel(t.Context())
			_, c := newControl(t.Context(), forced)
			gone := make(chan struct{})
			c.space = space{left: time.Hour, gone: gone}
			started := time.Now()
			time.AfterFunc(90*time.Millisecond, func() {
				if how == "gone" {
					close(gone)
				} else {
					force()
				}
			})
			if n, err := attempts(c, 2, syscall.ENOSPC); n != 1 || !errors.Is(err, syscall.ENOSPC) || time.Since(started) > time.Second {
				t.Errorf("%s: %d attempts, %s, %v", how, n, time.Since(started), err)
			}
			force()
			c.close()
		}
	})
}
