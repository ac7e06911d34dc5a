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

// approveGrace is the time that a killed program has to close its output.
const approveGrace = time.Second

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
	child, err := startChild(cmd)
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
