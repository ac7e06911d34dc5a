package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// approveGrace is the time that a killed program has to close its output.
const approveGrace = time.Second

// kept is what programs that are no part of a session have instead of what they would
// inherit from a supervisor: oom_score_adj and nice value; nil: they inherit it.
var kept struct{ score, nice atomic.Pointer[int] }

// KeepScore sets the oom_score_adj of programs that are no part of a session. The first
// call counts.
func KeepScore(score int) { kept.score.CompareAndSwap(nil, &score) }

// KeepNice sets the nice value of programs that are no part of a session. The first call
// counts.
func KeepNice(nice int) { kept.nice.CompareAndSwap(nil, &nice) }

// text is a kept value in a specification.
func text(value *int) string {
	if value == nil {
		return ""
	}
	return strconv.Itoa(*value)
}

// startOutside starts a program that is no part of a session. It has the kept values from
// its first instruction on. cmd.Args[0] is its path. See outside.c.
func startOutside(cmd *exec.Cmd) (*child, error) {
	s := newSpec()
	s.str(text(kept.score.Load()))
	s.str(text(kept.nice.Load()))
	s.strs(cmd.Args)
	program, err := s.file()
	if err != nil {
		return nil, err
	}
	defer program.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd.Path, cmd.Args, cmd.ExtraFiles = "/proc/self/exe", []string{"agentsh-outside"}, []*os.File{program, w}
	c, err := startChild(cmd)
	w.Close()
	if err != nil {
		return nil, err
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(r, b); err == nil {
		<-c.done
		return nil, unix.Errno(order.Uint32(b))
	}
	return c, nil // it executes the program, or was killed
}

// Approve runs the operator's approval program outside every session. The program reads
// question as JSON from its standard input. Exit status 0 approves, another status does
// not, and any other end is an error. Its environment has only PATH. It is killed when ctx
// ends.
func Approve(ctx context.Context, argv []string, question any) (bool, error) {
	if len(argv) == 0 || !filepath.IsAbs(argv[0]) {
		return false, errors.New("the approval program has no absolute path")
	}
	data, err := json.Marshal(question)
	if err != nil {
		return false, err
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	cmd.Stdin = bytes.NewReader(data)
	cmd.WaitDelay = approveGrace
	child, err := startOutside(cmd)
	if err != nil {
		return false, fmt.Errorf("approval program %s: %w", argv[0], err)
	}
	<-child.done
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return false, fmt.Errorf("approval program %s: %w", argv[0], ctx.Err())
	case child.err == nil:
		return true, nil
	case errors.As(child.err, &exit) && exit.Exited():
		return false, nil
	}
	return false, fmt.Errorf("approval program %s: %w", argv[0], child.err)
}
