package gateways

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/host"
	"agentsh/internal/statedir"
	"agentsh/internal/text"
)

// Service is the command that starts the gateway which OpenShell's packages install for a user. Its program has had no command for
// that since 0.0.37; before, it was 'openshell gateway start'.
var Service = []string{"systemctl", "--user", "start", "openshell-gateway"}

// startWait is how long a gateway has to become healthy.
const startWait = 2 * time.Minute

// look is the time between two questions.
const look = 250 * time.Millisecond

// Starter starts the gateway of this machine. It never stops one.
type Starter struct {
	Command []string      // see [Service]; a program may go on running, and then it is the gateway
	Dir     string        // has the lock and the output of the command
	Environ []string      // of agentctl; the command gets a part of it
	Wait    time.Duration // until it is healthy; 0: two minutes
}

// ErrElsewhere reports a gateway that cannot be started from here.
var ErrElsewhere = errors.New(
	"start: the gateway is at another machine: leave start out of openshell in agentctl.yaml, and start it there",
)

// Local returns [ErrElsewhere] if an address is not one of this machine.
func Local(address string) error {
	u, err := url.Parse(address)
	if err == nil {
		if ip := net.ParseIP(u.Hostname()); u.Hostname() == "localhost" || ip != nil && ip.IsLoopback() {
			return nil
		}
	}
	return ErrElsewhere
}

// Health asks a gateway for its health. answers reports that there is one, healthy or not.
type Health func(ctx context.Context) (answers bool, err error)

// Ensure returns once a gateway is healthy. It starts one only if none answers. Another agentctl that does the same meanwhile waits,
// and finds it healthy.
func (s Starter) Ensure(ctx context.Context, healthy Health) error {
	if answers, err := healthy(ctx); answers {
		return err
	}
	wait := s.Wait
	if wait == 0 {
		wait = startWait
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errDeadline)
	defer cancel()
	unlock, err := s.lock(ctx)
	if err != nil {
		return fmt.Errorf("start the gateway: %w", err)
	}
	defer unlock()
	answers, err := healthy(ctx)
	if answers {
		return err
	}
	return s.start(ctx, healthy, err)
}

var errDeadline = errors.New("the time for its start is over")

// passes reports an error that may be another one once the gateway has started.
func passes(err error) bool {
	var end *sandbox.End
	return errors.As(err, &end) && end.Kind == sandbox.EndUnreachable
}

// lock takes the lock of those who start a gateway.
func (s Starter) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, err
	}
	t := time.NewTicker(look)
	defer t.Stop()
	for {
		f, err := statedir.TakeLock(filepath.Join(s.Dir, "start.lock"), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil, s.end("another agentctl starts it, and is not ready", context.Cause(ctx))
		}
	}
}

// start runs the command and waits until the gateway is healthy. last is why it is not.
func (s Starter) start(ctx context.Context, healthy Health, last error) error {
	output, err := os.OpenFile(s.output(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("start the gateway: %w", err)
	}
	defer output.Close()
	run, err := host.StartService(s.Command, passed(s.Environ), output)
	if err != nil {
		end := s.end("its command cannot run", err)
		if errors.Is(err, host.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			end.Hint = "install OpenShell, or name the command: openshell: {start: [PROGRAM, ARGUMENT]} in agentctl.yaml"
		}
		return end
	}
	t := time.NewTicker(look)
	defer t.Stop()
	ended := run.Ended()
	for {
		select {
		case <-ended:
			if err := run.Err(); err != nil {
				return s.end("its command failed", err)
			}
			ended = nil // it has started something else
		case <-t.C:
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, errDeadline) {
				return cause
			}
			return s.end("it was not healthy in time", last)
		}
		if _, err := healthy(ctx); ctx.Err() == nil {
			if !passes(err) {
				return err
			}
			last = err
		}
	}
}

func (s Starter) output() string { return filepath.Join(s.Dir, "gateway.log") }

// end is a gateway that did not start.
func (s Starter) end(what string, err error) *sandbox.End {
	end := &sandbox.End{
		Kind: sandbox.EndUnreachable,
		Err:  err,
		Text: fmt.Sprintf("start the gateway of OpenShell by '%s': %s", strings.Join(s.Command, " "), what),
		Hint: "see " + s.output() + ", and start it by hand",
	}
	if err != nil {
		end.Text += ": " + err.Error()
	}
	if said, failed := os.ReadFile(s.output()); failed == nil {
		lines := strings.Split(strings.TrimSpace(string(said)), "\n")
		if last := text.Short(lines[len(lines)-1], maxSaid); last != "" {
			end.Text += ": " + last
		}
	}
	return end
}

// maxSaid bounds what is shown of the output of a command, in characters.
const maxSaid = 300

// Environ is the part of an environment that a program of OpenShell gets: no variable that may have a credential. The gateway is
// named on its command line.
func Environ(environ []string) []string {
	return slices.DeleteFunc(passed(environ), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == envGateway || name == envEndpoint || name == "OPENSHELL_SANDBOX_POLICY"
	})
}

// passed is the part of an environment that the command gets: no variable that may have a credential.
func passed(environ []string) []string {
	names := []string{
		"PATH",
		"HOME",
		"USER",
		"LOGNAME",
		"SHELL",
		"LANG",
		"LC_ALL",
		"TMPDIR",
		"DBUS_SESSION_BUS_ADDRESS",
		"DOCKER_HOST",
		"CONTAINER_HOST",
	}
	var out []string
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		token := strings.Contains(name, "TOKEN") || strings.Contains(name, "SECRET") || strings.Contains(name, "PASSWORD")
		if slices.Contains(names, name) || (strings.HasPrefix(name, "XDG_") || strings.HasPrefix(name, "OPENSHELL_")) && !token {
			out = append(out, v)
		}
	}
	return out
}
