package sandboxcmd

import (
	"context"
	"io/fs"
	"net"
	"os"
	"syscall"
	"testing"

	"agentsh/internal/channel"
	"agentsh/internal/wire"
)

// failing are files of which every stat fails.
type failing struct {
	channel.Files
	err error
}

func (f failing) Stat(context.Context, string) (wire.FileInfo, error) { return wire.FileInfo{}, f.err }

// supervisorOf is the handler of a supervisor with these files.
type supervisorOf struct {
	channel.Handler
	files channel.Files
}

func (s supervisorOf) Files() channel.Files { return s.files }

func socketPair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		if conns[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return conns[0], conns[1]
}

func TestACommandStartsInTheWorkspaceOnlyIfThereIsNoRepository(t *testing.T) {
	for _, tt := range []struct {
		stat error
		want string
	}{
		{fs.ErrNotExist, ""},
		{fs.ErrPermission, "/sandbox/workspace/repo"},
		{syscall.EIO, "/sandbox/workspace/repo"},
	} {
		hostKey, hostPub, err := channel.NewKeyPair()
		if err != nil {
			t.Fatal(err)
		}
		key, pub, err := channel.NewKeyPair()
		if err != nil {
			t.Fatal(err)
		}
		near, far := socketPair(t)
		ended := make(chan error)
		server := channel.NewServer(far, channel.ServerConfig{
			HostKey: hostKey, AuthorizedKey: pub, Handler: supervisorOf{files: failing{err: tt.stat}},
		})
		go func() { ended <- server.Serve(t.Context()) }()
		client, err := channel.NewClient(t.Context(), near, channel.ClientConfig{Key: key, HostKey: hostPub})
		if err != nil {
			t.Fatal(err)
		}
		if got := (&sandboxExec{}).dir(t.Context(), client, "/sandbox/workspace/repo"); got != tt.want {
			t.Errorf("after %v: %q, want %q", tt.stat, got, tt.want)
		}
		client.Close()
		<-ended
	}
}
