package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"
)

// approveGrace is how long a program that is told to end may keep its output open.
const approveGrace = time.Second

// Approve runs the operator's program outside every session with question as JSON on
// its standard input, and reports whether it ended with exit status 0. Another
// status is no; what is not an end by itself is an error. It has an empty
// environment but PATH, and is killed when ctx ends.
func Approve(ctx context.Context, argv []string, question any) (bool, error) {
	if len(argv) == 0 || !filepath.IsAbs(argv[0]) {
		return false, errors.New("the program that is asked has no absolute path")
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
	child, err := startChild(cmd)
	if err != nil {
		return false, fmt.Errorf("ask %s: %w", argv[0], err)
	}
	<-child.done
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return false, fmt.Errorf("ask %s: %w", argv[0], ctx.Err())
	case child.err == nil:
		return true, nil
	case errors.As(child.err, &exit) && exit.Exited():
		return false, nil
	}
	return false, fmt.Errorf("ask %s: %w", argv[0], child.err)
}
