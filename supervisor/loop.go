package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/notify"
)

// loop answers the notifications of a session's filter. Its methods may be called
// on nil.
type loop struct {
	*notify.Loop
	engine string         // its name
	root   *os.File       // the root directory that commands see
	opener *launch.Opener // nil: files are not opened for commands
	stop   context.CancelFunc
	done   chan struct{}
}

// startLoop answers the notifications of init from now on. cfg is completed by
// the engine, the root directory and, if c emulates opens, by the function that opens
// files below [notify.Emulated]. If there is no error the loop owns root. ended is called when
// the loop fails.
func startLoop(cfg notify.Config, init *launch.Init, root *os.File, c *confined, ended func(error)) (*loop, error) {
	l := &loop{root: root, done: make(chan struct{})}
	var err error
	if cfg.Engine, err = openEngine(init, cfg.TraceAs, c.beside, cfg.Log); err != nil {
		return nil, err
	}
	if c.plan.Emulated {
		if l.opener, err = init.Opener(); err != nil {
			return nil, errors.Join(err, cfg.Engine.Close())
		}
		cfg.Open = l.opener.Open
	}
	// The filter refuses whatever would give a command another root.
	if cfg.Root, err = target.NewRoot(root); err != nil {
		return nil, errors.Join(err, cfg.Engine.Close(), l.opener.Close())
	}
	l.Loop, l.engine = notify.New(cfg), cfg.Engine.Name()
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	go func() {
		defer close(l.done)
		if err := l.Run(ctx); err != nil && ctx.Err() == nil {
			ended(err)
		}
	}()
	return l, nil
}

// openRoot opens the root directory that commands see.
func openRoot(name string) (*os.File, error) {
	root, err := os.OpenFile(name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("identities of denied programs: %w", err)
	}
	return root, nil
}

// command is the command that a mark belongs to; empty: none.
func (l *loop) command(mark uint64) string {
	if l == nil {
		return ""
	}
	return l.Marked(mark)
}

// end stops answering and waits for the answers that are under way.
func (l *loop) end() {
	l.stop()
	<-l.done
}

// close closes what end leaves open.
func (l *loop) close() error {
	if l == nil {
		return nil
	}
	return errors.Join(l.opener.Close(), l.root.Close())
}
