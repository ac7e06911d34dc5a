package fuse

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// mountInUserNS is the session's side: it mounts, hands the descriptor out over
// descriptor 3, waits until the mount is served, and becomes a shell.
func mountInUserNS(dir, script string) int {
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions", dev)
		err = unix.Mount("agentsh", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, data)
	}
	if err == nil {
		err = unix.Sendmsg(3, []byte{1}, unix.UnixRights(dev), nil, 0)
	}
	if err == nil {
		_, err = unix.Read(3, make([]byte, 1))
	}
	if err == nil {
		err = unix.Chdir(dir)
	}
	if err == nil {
		err = unix.Exec("/bin/sh", []string{"sh", "-c", script}, nil)
	}
	fmt.Fprintln(os.Stderr, "session:", err)
	return 1
}

func TestAMountInAUserNamespace(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE, testenv.UserNS)
	base := t.TempDir()
	backing, dir := filepath.Join(base, "backing"), filepath.Join(base, "ws")
	must(t, os.Mkdir(backing, 0o755))
	must(t, os.Chown(backing, 2000, 2000))
	for name, uid := range map[string]int{"mine": 2000, "roots": 0, "others": 3000} {
		p := filepath.Join(backing, name)
		must(t, os.WriteFile(p, []byte("original"), 0o644))
		must(t, os.Chown(p, uid, uid))
	}
	must(t, os.Mkdir(dir, 0o755))
	ours, theirs := socketPair(t)
	session := exec.Command("/proc/self/exe", dir,
		`stat -c %U:%u mine roots others; echo new > mine; echo made > made; stat -c %u made
		for f in roots others; do echo evil > $f || echo refused; chmod 777 $f || echo refused; done 2>/dev/null`)
	session.Args[0] = userNSName
	session.ExtraFiles = []*os.File{theirs}
	var out strings.Builder
	session.Stdout, session.Stderr = &out, os.Stderr
	one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	session.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: one, GidMappings: one}
	must(t, session.Start())
	theirs.Close()
	defer ours.Close()

	buf, control := make([]byte, 1), make([]byte, 100)
	_, size, _, _, err := unix.Recvmsg(int(ours.Fd()), buf, control, unix.MSG_CMSG_CLOEXEC)
	must(t, err)
	messages, err := unix.ParseSocketControlMessage(control[:size])
	must(t, err)
	fds, err := unix.ParseUnixRights(&messages[0])
	must(t, err)
	c := serve(t, os.NewFile(uintptr(fds[0]), "fuse"), backing, Config{
		Mounts: []MountConfig{{Tag: "ws", Path: "/ws"}},
		Policy: []wire.PolicySource{{Name: "p", Data: []byte("version: 1\nname: p\n" + strings.ReplaceAll(allowAll, "WS", "/ws"))}},
		Owner:  Owner{OutsideUID: 2000, OutsideGID: 2000},
	})
	defer c.Close()
	_, err = ours.Write([]byte{1})
	must(t, err)
	if err := session.Wait(); err != nil {
		t.Errorf("session: %v", err)
	}
	want := "root:0\nnobody:65534\nnobody:65534\n0\nrefused\nrefused\nrefused\nrefused\n"
	if out.String() != want {
		t.Errorf("the session says\n%s\nwant\n%s", out.String(), want)
	}
	for name, text := range map[string]string{"mine": "new\n", "made": "made\n", "roots": "original", "others": "original"} {
		if got, err := os.ReadFile(filepath.Join(backing, name)); err != nil || string(got) != text {
			t.Errorf("%s holds %q, %v", name, got, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(backing, "made"), &st); err != nil || st.Uid != 2000 || st.Gid != 2000 {
		t.Errorf("made belongs to %d:%d, %v", st.Uid, st.Gid, err)
	}
}

// serve starts a file server for one mount, "ws".
func serve(t *testing.T, dev *os.File, backing string, cfg Config) *Control {
	t.Helper()
	back, err := os.OpenFile(backing, unix.O_PATH|unix.O_CLOEXEC, 0)
	must(t, err)
	ours, theirs := socketPair(t)
	cmd := exec.Command("/proc/self/exe", "ws")
	cmd.Args[0] = serverName
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{theirs, dev, back}
	must(t, cmd.Start())
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	c, err := NewControl(ours, func(wire.Event) {}, nil)
	must(t, err)
	t.Cleanup(func() { c.Close(); cmd.Wait() })
	must(t, c.Configure(t.Context(), cfg))
	return c
}
