package launch_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/internal/selfexec"
	"agentsh/internal/testenv"
	"agentsh/supervisor/launch"
)

const serverName = "agentsh-test-server"

// serve is the server process: it serves the FUSE descriptor it is given, or
// says what it was given, until its control descriptor closes.
func serve() int {
	files, err := launch.Donations()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if dev := files["fuse"]; dev != nil {
		_, err := fs.Mount(fmt.Sprintf("/dev/fd/%d", dev.Fd()), &fs.Inode{}, &fs.Options{
			MountOptions: fuse.MountOptions{Options: []string{"default_permissions"}},
			OnAdd:        func(ctx context.Context) {},
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if out := files["out"]; out != nil {
		fmt.Fprintf(out, "%d descriptors, %d variables, arguments %q\n", len(files), len(os.Environ()), os.Args)
		out.Close()
	}
	io.Copy(io.Discard, files["control"])
	return 7
}

func TestAServerGetsItsDescriptorsByName(t *testing.T) {
	testenv.Need(t)
	control, theirs := pipe(t)
	out, theirOut := pipe(t)
	server, err := launch.StartServer(serverName, []launch.Donation{{Name: "control", File: control}, {Name: "out", File: theirOut}})
	if err != nil {
		t.Fatal(err)
	}
	control.Close()
	theirOut.Close()
	b, err := io.ReadAll(out)
	if want := fmt.Sprintf("2 descriptors, %d variables, arguments [%q]\n", len(selfexec.Environment())+1, serverName); err != nil ||
		string(b) != want {
		t.Errorf("%q, %v instead of %q", b, err, want)
	}
	theirs.Close()
	ctx, cancel := context.WithTimeout(context.Background(), guard)
	defer cancel()
	server.Stop(ctx)
	if err := server.Err(); !strings.Contains(err.Error(), "exit status 7") {
		t.Error(err)
	}
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func TestAFUSEMountIsServedFromOutside(t *testing.T) {
	testenv.Need(t, testenv.FUSE, testenv.UserNotif, testenv.UserNS)
	if os.Geteuid() == 0 {
		// Distributions open /dev/fuse to everybody; this machine may not.
		defer asUser(t, `mount -t tmpfs none /mnt; mknod -m 666 /mnt/fuse c 10 229; mount --bind /mnt/fuse /dev/fuse; exec "$@"`)
	}
	func() {
		c := config(t)
		c.Mounts = append(c.Mounts, launch.Mount{Kind: launch.FUSE, Target: "/work", Tag: "work", Options: []string{"default_permissions"}})
		control, theirs := pipe(t)
		var server *launch.Server
		i, err := launch.NewInit(context.Background(), c, func(tag string, dev *os.File) error {
			defer dev.Close()
			if tag != "work" {
				t.Errorf("tag %q", tag)
			}
			var err error
			server, err = launch.StartServer(serverName, []launch.Donation{{Name: "fuse", File: dev}, {Name: "control", File: control}})
			return err
		})
		if server != nil {
			defer server.Kill()
		}
		if err != nil {
			t.Fatal(err)
		}
		s := serveSession(t, i)
		code, out := s.run(t, "stat -f -c %T /work; ls -la /work | wc -l; cd /work && touch x")
		if code != 1 || !strings.HasPrefix(out, "fuseblk\n") && !strings.HasPrefix(out, "fuse\n") {
			t.Errorf("%d %q", code, out)
		}
		theirs.Close()
		server.Kill()
		if _, out := s.run(t, "ls /work"); !strings.Contains(out, unix.ENOTCONN.Error()) && !strings.Contains(out, "not connected") {
			t.Errorf("without its server: %q", out)
		}
	}()
}
