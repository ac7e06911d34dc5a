package fuse

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// A control socket that ends is no fault. One with another content is.
func TestAControlMessageThatIsNoneIsReported(t *testing.T) {
	for name, packet := range map[string][]byte{"an end": nil, "no JSON": {1, 'x'}, "a cut object": []byte("\x01{\"id\":")} {
		t.Run(name, func(t *testing.T) {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			c, err := NewControl(os.NewFile(uintptr(pair[0]), "ours"), func(wire.Event) {}, nil)
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := net.FileConn(os.NewFile(uintptr(pair[1]), "theirs"))
			if err != nil {
				t.Fatal(err)
			}
			if packet != nil {
				if _, err := theirs.Write(packet); err != nil {
					t.Fatal(err)
				}
			} else if err := unix.Shutdown(pair[1], unix.SHUT_RDWR); err != nil {
				t.Fatal(err)
			}
			<-c.Done()
			if err := c.Malformed(); (err != nil) != (packet != nil) {
				t.Errorf("%v", err)
			}
			if err := c.Ping(t.Context()); err == nil {
				t.Error("the server answers")
			}
			c.Close()
		})
	}
}
