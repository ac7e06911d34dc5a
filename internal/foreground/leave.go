package foreground

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"time"

	"agentsh/internal/wire"
)

// leaveWait is the time that a command has to end after the second signal of a kind.
const leaveWait = 1800 * time.Millisecond

// ErrLeft reports that the end of a command was not awaited.
var ErrLeft = errors.New("the command did not end in time after the second signal")

// Leave returns f that is not awaited after the second signal of a kind: it returns
// [ErrLeft] 1.8 seconds later. f then goes on, so the process must end soon. It is for
// a command of another process, whose supervisor ends it when the connection ends.
func Leave[R any](f Execute[R]) Execute[R] {
	return func(ctx context.Context, request wire.ExecRequest, streams wire.Streams) (R, error) {
		got := make(chan os.Signal, 8)
		signal.Notify(got, passed()...)
		defer signal.Stop(got)
		type result struct {
			r   R
			err error
		}
		done := make(chan result, 1)
		go func() { // ends with f, or with the process
			r, err := f(ctx, request, streams)
			done <- result{r, err}
		}()
		seen := map[os.Signal]bool{}
		var limit <-chan time.Time
		for {
			select {
			case x := <-done:
				return x.r, x.err
			case <-limit:
				var none R
				return none, ErrLeft
			case s := <-got:
				if seen[s] && limit == nil {
					limit = time.After(leaveWait)
				}
				seen[s] = true
			}
		}
	}
}
