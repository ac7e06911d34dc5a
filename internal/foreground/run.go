package foreground

import (
	"sync"

	"agentsh/internal/channel"
	"agentsh/internal/wire"
)

// Run runs a command and passes signals and sizes of its terminal on.
func Run(cmd *channel.Cmd, streams channel.Streams) (wire.Exit, error) {
	if streams.Started != nil {
		streams.Started(wire.Started{}) // signals reach it from now on
	}
	if streams.Exited != nil {
		cmd.OnExit = streams.Exited
	}
	if err := cmd.Start(); err != nil {
		return wire.Exit{Kind: wire.ExitLost, Message: err.Error()}, err
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case m := <-streams.Control: // the command's end tells of a lost connection
				if m.TTY != nil {
					_ = cmd.Resize(m.TTY.Rows, m.TTY.Cols)
				} else {
					_ = cmd.Signal(m.Signal)
				}
			}
		}
	})
	exit, err := cmd.Wait()
	close(done)
	wg.Wait()
	return exit, err
}
