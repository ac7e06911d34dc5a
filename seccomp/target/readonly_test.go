package target

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

// fuseServer answers what a mount without files asks.
type fuseServer struct {
	mu    sync.Mutex
	asked []uint32 // opcodes
}

func (s *fuseServer) serve(fd int) {
	const initialize, getattr, statfs = 26, 3, 17
	for buf := make([]byte, 128<<10); ; {
		n, err := unix.Read(fd, buf)
		if err != nil || n < 40 {
			return // the mount has ended
		}
		opcode := binary.NativeEndian.Uint32(buf[4:])
		s.mu.Lock()
		s.asked = append(s.asked, opcode)
		s.mu.Unlock()
		out := make([]byte, 16)
		copy(out[8:], buf[8:16])
		switch opcode {
		case initialize:
			out = append(out, make([]byte, 64)...)
			binary.NativeEndian.PutUint32(out[16:], 7)
			binary.NativeEndian.PutUint32(out[20:], 31)
		case getattr: // valid for an hour; a directory of everybody
			out = append(out, make([]byte, 104)...)
			binary.NativeEndian.PutUint64(out[16:], 3600)
			binary.NativeEndian.PutUint64(out[32:], 1)
			binary.NativeEndian.PutUint32(out[16+16+60:], unix.S_IFDIR|0o777)
			binary.NativeEndian.PutUint32(out[16+16+64:], 2)
		case statfs:
			out = append(out, make([]byte, 80)...)
		default:
			errno := -int32(unix.ENOSYS)
			binary.NativeEndian.PutUint32(out[4:], uint32(errno))
		}
		binary.NativeEndian.PutUint32(out, uint32(len(out)))
		_, _ = unix.Write(fd, out)
	}
}

// Whether a mount is read-only does not depend on its server, which may be slow.
func TestAServerIsNotAskedWhetherItsMountIsReadOnly(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE)
	dir := t.TempDir()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ended sync.WaitGroup
	defer ended.Wait()
	defer unix.Close(fd)
	if err := unix.Mount("test", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,default_permissions", fd)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	var server fuseServer
	ended.Go(func() { server.serve(fd) })
	root, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	h, err := ResolveIn(root, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if fixed, err := h.ReadOnly(); err != nil || fixed {
		t.Errorf("a mount is read-only: %v, %v", fixed, err)
	}
	const statfs = 17
	server.mu.Lock()
	if slices.Contains(server.asked, statfs) {
		t.Errorf("the server was asked: %d", server.asked)
	}
	server.mu.Unlock()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if fixed, err := h.ReadOnly(); err != nil || !fixed {
		t.Errorf("a read-only mount is not: %v, %v", fixed, err)
	}
}
