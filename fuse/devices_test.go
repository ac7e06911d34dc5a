package fuse

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDevicesAreReceivedByTheirTags(t *testing.T) {
	mounts := []MountConfig{{Tag: "/a"}, {Tag: "/b"}}
	for what, c := range map[string]struct {
		send func(socket, device *os.File) error
		want error
	}{
		"in another order": {func(socket, device *os.File) error {
			return errors.Join(SendDevice(socket, "/b", device), SendDevice(socket, "/a", device))
		}, nil},
		"one is missing": {func(socket, device *os.File) error { return SendDevice(socket, "/a", device) }, errNoDevices},
		"no descriptor": {func(socket, _ *os.File) error {
			_, err := socket.WriteString("/a")
			return err
		}, errMalformed},
		"two descriptors": {func(socket, device *os.File) error {
			return unix.Sendmsg(int(socket.Fd()), []byte("/a"), unix.UnixRights(int(device.Fd()), int(device.Fd())), nil, 0)
		}, errMalformed},
	} {
		t.Run(what, func(t *testing.T) {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
			device, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			defer device.Close()
			if err := errors.Join(c.send(ours, device), ours.Close()); err != nil {
				t.Fatal(err)
			}
			s := &server{donated: map[string]*os.File{DevicesName: theirs}}
			err = s.receiveDevices(mounts)
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			for _, f := range s.donated {
				f.Close()
			}
			if c.want == nil && len(s.donated) != len(mounts) {
				t.Errorf("%d devices", len(s.donated))
			}
		})
	}
}
