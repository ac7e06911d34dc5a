package netns

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Send sends the messages in the network namespace of the calling thread. It
// returns the first error that the kernel reports.
func (b Batch) Send() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, b.Protocol)
	if err != nil {
		return fmt.Errorf("netlink socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Sendto(fd, b.Messages, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send to the kernel: %w", err)
	}
	answer := make([]byte, 16<<10)
	for left := b.Acks; left > 0; {
		n, _, err := unix.Recvfrom(fd, answer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("receive from the kernel: %w", err)
		}
		acks, err := acknowledged(answer[:n])
		if err != nil {
			return err
		}
		left -= acks
	}
	return nil
}

// acknowledged counts the acknowledgements in an answer.
func acknowledged(answer []byte) (int, error) {
	acks := 0
	for len(answer) >= unix.NLMSG_HDRLEN+4 {
		length := int(binary.NativeEndian.Uint32(answer))
		if length < unix.NLMSG_HDRLEN+4 || length > len(answer) {
			return 0, errors.New("malformed answer from the kernel")
		}
		if binary.NativeEndian.Uint16(answer[4:]) == unix.NLMSG_ERROR {
			if errno := int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:])); errno != 0 {
				return 0, unix.Errno(-errno)
			}
			acks++
		}
		answer = answer[min((length+3)&^3, len(answer)):]
	}
	return acks, nil
}
