package supervisor

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentsh/internal/wire"
)

func TestAChangeRecordIsReadAsLongAsPartsCome(t *testing.T) {
	slow := func(pause time.Duration) changeParts {
		return func(ctx context.Context, fn func([]wire.Change)) error {
			for range 20 {
				select {
				case <-time.After(pause):
				case <-ctx.Done():
					return ctx.Err()
				}
				fn([]wire.Change{{Path: "a"}})
			}
			return nil
		}
	}
	synctest.Test(t, func(t *testing.T) {
		if list, err := slow(saveTimeout - time.Second).read(); err != nil || len(list) != 20 {
			t.Errorf("%d changes, %v", len(list), err)
		}
		if _, err := slow(saveTimeout + time.Second).read(); err == nil || !strings.Contains(err.Error(), "sent nothing for 5s") {
			t.Errorf("a file server that stopped: %v", err)
		}
	})
}
