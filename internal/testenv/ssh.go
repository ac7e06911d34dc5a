package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// SSHPlace puts an ssh program before those of PATH that starts a sshd of its own, with
// keys and a configuration in a directory. The state directory there is dir/place. It
// returns the address.
func SSHPlace(t testing.TB, dir string) string {
	t.Helper()
	sshd := sshKeys(t, dir)
	sshFiles(t, dir, "ProxyCommand "+sshd+" -i -f "+dir+"/sshd_config\n", "SetEnv XDG_STATE_HOME="+dir+"/place HOME="+dir+"\n", dir)
	return "ssh://root@place.example:2299"
}

// sshKeys makes the keys of a place in a directory. It returns the program of sshd.
func sshKeys(t testing.TB, dir string) string {
	t.Helper()
	Need(t, Root, Program("ssh"), Program("sshd"), Program("ssh-keygen"))
	sshd, err := exec.LookPath("sshd")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // sshd asks for it, see sshd(8), FILES
		t.Fatal(err)
	}
	for _, key := range []string{"host", "user"} {
		generate := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, key))
		if out, err := generate.CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v\n%s", err, out)
		}
	}
	return sshd
}

// sshFiles writes the files of both ends. files is the directory at the place in which sshd
// finds its own.
func sshFiles(t testing.TB, dir, client, server, files string) {
	t.Helper()
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.ReadFile(filepath.Join(dir, "host.pub"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"banner":      "Authorized users only.\n",
		"known_hosts": "place " + string(host),
		"sshd_config": fmt.Sprintf(`HostKey %[1]s/host
AuthorizedKeysFile %[1]s/user.pub
Banner %[1]s/banner
PermitRootLogin prohibit-password
PasswordAuthentication no
PidFile none
StrictModes no
UsePAM no
`, files) + server,
		"ssh_config": fmt.Sprintf(`Host *
HostKeyAlias place
IdentityFile %[1]s/user
IdentitiesOnly yes
UserKnownHostsFile %[1]s/known_hosts
StrictHostKeyChecking yes
`, dir) + client,
		"bin/ssh": fmt.Sprintf("#!/bin/sh\nexec %s -F %s/ssh_config \"$@\"\n", ssh, dir),
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
}

// enterRoot starts sshd in a root file system: ROOT and the devices are those of a machine.
const enterRoot = `#!/bin/sh
exec unshare -m sh -ec '
mount --bind "$1" "$1"; cd "$1"
mount -t proc proc proc; mount --rbind /sys sys; mount -t tmpfs -o mode=755 dev dev
mkdir -p dev/pts dev/shm old; mount -t devpts -o newinstance,ptmxmode=666 pts dev/pts; mount -t tmpfs -o mode=1777 shm dev/shm
for d in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 fuse:10:229; do
n=${d%%:*} m=${d#*:}; mknod -m 666 dev/$n c ${m%:*} ${m#*:}; done
ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd; ln -s /proc/self/fd/0 dev/stdin; ln -s /proc/self/fd/1 dev/stdout; ln -s /proc/self/fd/2 dev/stderr
pivot_root . old; exec chroot . /bin/sh -ec "umount -l /old; exec /usr/sbin/sshd -i -f /etc/place/sshd_config"' sh "$1" 2>>"$1/log"
`

// SSHBusybox is SSHPlace for a machine with the programs of busybox alone, and a user who has
// no home: uid 1000 is called nobody-home. The address has user as its user.
func SSHBusybox(t testing.TB, dir, user string) string {
	t.Helper()
	Need(t, Root, Program("busybox"), Program("ldd"))
	root := filepath.Join(dir, "root")
	sshd := sshKeys(t, dir)
	for _, d := range []string{"bin", "usr/sbin", "usr/lib", "etc/place", "proc", "sys", "dev", "root", "run/sshd", "var/empty",
		"sandbox", "old"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"tmp", "var/tmp"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(root, d), 0o1777); err != nil {
			t.Fatal(err)
		}
	}
	script := fmt.Sprintf(`set -e; cd %q
cp "$(command -v busybox)" bin/busybox; bin/busybox --install -s bin; for f in bin/*; do [ ! -L "$f" ] || ln -sf busybox "$f"; done
ln -s ../bin usr/bin
for p in %s $(ls /usr/lib/openssh/sshd-session /usr/lib/openssh/sshd-auth 2>/dev/null); do
mkdir -p ".${p%%/*}"; cp "$p" ".$p"; for l in $(ldd "$p" | grep -o '/[^ )]*'); do mkdir -p ".${l%%/*}"; cp -L "$l" ".$l"; done; done
printf 'root:x:0:0:root:/root:/bin/sh\nsshd:x:100:100::/var/empty:/bin/false\nnobody-home:*:1000:1000::/nonexistent:/bin/sh\n' >etc/passwd
printf 'root:x:0:\nnobody-home:x:1000:\n' >etc/group; echo 127.0.0.1 localhost >etc/hosts
cp ../host ../user.pub etc/place; chmod 600 etc/place/host; chmod 644 etc/place/user.pub
`, root, sshd)
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("root of busybox: %v\n%s", err, out)
	}
	enter := filepath.Join(dir, "enter")
	if err := os.WriteFile(enter, []byte(enterRoot), 0o755); err != nil {
		t.Fatal(err)
	}
	sshFiles(t, dir, "ProxyCommand "+enter+" "+root+"\n", "", "/etc/place")
	for _, name := range []string{"sshd_config", "banner"} {
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(root, "etc/place", name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if log, err := os.ReadFile(filepath.Join(root, "log")); err == nil && t.Failed() {
			t.Logf("sshd: %s", strings.ToValidUTF8(string(log), "?"))
		}
		_ = unix.Unmount(root, unix.MNT_DETACH) // it is none, unless a test has failed
	})
	return "ssh://" + user + "@place.example:2299"
}
