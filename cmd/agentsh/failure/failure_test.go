package failure

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestAnErrorOfTheMachineHasAHint(t *testing.T) {
	for text, c := range map[string]struct {
		err  error
		want string
	}{
		"a full disk":      {New(Ours, &os.PathError{Op: "write", Path: "/x", Err: syscall.ENOSPC}, ""), "hint: free space"},
		"a file of others": {New(Ours, &os.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}, ""), "hint: check who owns the path"},
		"no descriptor":    {New(Ours, &os.PathError{Op: "open", Path: "/x", Err: syscall.EMFILE}, ""), "hint: raise the limit of open files"},
		"a system call":    {New(Ours, os.NewSyscallError("unshare", syscall.EPERM), ""), ""},
		"a hint of its own": {
			New(Ours, &os.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}, "become root"), "hint: become root",
		},
		"another error": {New(Ours, errors.New("x"), ""), ""},
	} {
		var out bytes.Buffer
		if code := Report(&out, c.err); code != Ours {
			t.Errorf("%s: exit code %d", text, code)
		}
		if got := out.String(); !strings.Contains(got, c.want) || c.want == "" && strings.Contains(got, "hint") {
			t.Errorf("%s: %q, want %q", text, got, c.want)
		}
	}
}
