package remote

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWhatAProgramLeavesEndsWithItsStream(t *testing.T) {
	for name, c := range map[string]struct{ script, cause string }{
		"the program has ended":  {"sleep 1000 </dev/null >/dev/null 2>&1 & echo $!; exit 3", "sh: exit status 3"},
		"it holds its messages":  {"sleep 1000 & echo $!; echo lost >&2", "lost"},
		"a signal ended it":      {"sleep 1000 & echo $!; kill -TERM $$", "sh: signal: terminated"},
		"the program goes on":    {"sleep 1000 & echo $!; exec 2>&-; wait", "sh: signal: killed"},
		"it ignores its streams": {"trap '' HUP TERM; sleep 1000 & echo $!; exit 0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := program{"exec:sh", []string{"sh", "-c", c.script}}.Open(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Kill()
			line, err := bufio.NewReader(s).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			pid, err := strconv.Atoi(strings.TrimSpace(line))
			if err != nil {
				t.Fatal(err)
			}
			child, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Close(child) }()
			if name != "the program goes on" {
				<-s.Gone()
			}
			s.Kill()
			<-s.Gone()
			n, err := 0, error(unix.EINTR)
			for errors.Is(err, unix.EINTR) {
				n, err = unix.Poll([]unix.PollFd{{Fd: int32(child), Events: unix.POLLIN}}, 10_000)
			}
			if n != 1 {
				_ = unix.Kill(pid, unix.SIGKILL)
				t.Errorf("a child of the program goes on after its stream: %v", err)
			}
			if cause := s.Cause(); (cause != nil || c.cause != "") && (cause == nil || cause.Error() != c.cause) {
				t.Errorf("%v, not %q", cause, c.cause)
			}
			if _, err := io.ReadAll(s); err == nil {
				t.Error("the stream is not closed")
			}
		})
	}
}
