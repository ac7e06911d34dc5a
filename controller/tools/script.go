package tools

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"

	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// Exit statuses of our scripts.
const (
	statusMissing = 41 // the file does not exist
	statusOther   = 42 // it is no regular file, or no directory
	statusChanged = 43 // its content is not the one that was read
)

// thereScript ends with status 41 if the file $1 does not exist. Where a directory above cannot be searched, nobody
// knows that.
const thereScript = `export LC_ALL=C
if [ ! -e "$1" ] && [ ! -L "$1" ]; then
	why=$(stat -- "$1" 2>&1)
	case $why in *'ermission denied') printf '%s\n' "$why" >&2; exit 1 ;; esac
	exit 41
fi
`

// scriptError is the failure of a script.
type scriptError struct {
	status   int
	message  string
	refusals []Refusal
	killed   bool // it began, and did not end by itself
}

func (e *scriptError) Error() string {
	if len(e.refusals) > 0 {
		return strings.TrimSpace(tell(e.message, e.refusals))
	}
	return e.message
}

// status is the exit status of the script that failed, or -1. What a refused script says of a
// file is not known.
func status(err error) int {
	var of *scriptError
	if errors.As(err, &of) && len(of.refusals) == 0 {
		return of.status
	}
	return -1
}

// limited keeps the first bytes that are written, and counts all.
type limited struct {
	bytes.Buffer
	limit int
	cut   bool
}

// Write fails with an error at the limit, so that the command is ended.
func (l *limited) Write(p []byte) (int, error) {
	if room := l.limit - l.Len(); len(p) > room {
		l.Buffer.Write(p[:room])
		l.cut = true
		return room, errFull
	}
	return l.Buffer.Write(p)
}

var errFull = errors.New("the output is larger than its limit")

// script runs a script of sh in the sandbox. Its arguments are values, never text of the
// script. With a limit the output is cut there, which is no error.
func (t *Toolbox) script(ctx context.Context, text string, stdin io.Reader, limit int, args ...string) (out *limited, err error) {
	if err := t.take(ctx); err != nil {
		return nil, err
	}
	defer func() { <-t.slots }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out = &limited{limit: limit}
	said := &limited{limit: 4 << 10}
	req := wire.ExecRequest{
		ID: "tool-" + rand.Text(), Argv: append([]string{"sh", "-c", text, "sh"}, args...), Cwd: t.cfg.Dir, Env: t.cfg.Env, Run: t.cfg.Run,
	}
	t.refused.Begin(req.ID)
	exit, err := t.cfg.Sandbox.Run(ctx, req, wire.Streams{Stdin: stdin, Stdout: stopAt{out, cancel}, Stderr: quiet{said}})
	refused := t.refused.Finish(req.ID, exit)
	if out.cut {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	if exit.Kind == wire.ExitExited && exit.Code == 0 {
		return out, nil
	}
	return nil, failed(exit, said.String(), refused)
}

// stopAt ends a command when its output is full.
type stopAt struct {
	*limited
	stop context.CancelFunc
}

func (s stopAt) Write(p []byte) (int, error) {
	n, err := s.limited.Write(p)
	if err != nil {
		s.stop()
	}
	return n, err
}

// quiet drops what is beyond the limit.
type quiet struct{ l *limited }

func (q quiet) Write(p []byte) (int, error) {
	_, _ = q.l.Write(p)
	return len(p), nil
}

// failed is the failure of a script that ended otherwise than with status 0.
func failed(exit wire.Exit, said string, refused []Refusal) error {
	killed := exit.Kind != wire.ExitExited && exit.Kind != wire.ExitDenied && exit.Kind != wire.ExitSpawnFailed
	message := strings.TrimSpace(said)
	message = strings.TrimPrefix(message, "sh: ")
	if message == "" && len(refused) == 0 {
		message = fmt.Sprintf("it ended with exit status %d", exit.ExitCode())
	}
	if exit.Kind != wire.ExitExited {
		message = exit.Message
		if exit.Kind == wire.ExitDenied && len(refused) == 0 {
			refused = []Refusal{ofExit("sh", exit)}
		}
	}
	return &scriptError{
		status: exit.Code, message: text.Line(strings.ReplaceAll(message, "\n", "; ")), refusals: refused, killed: killed,
	}
}
