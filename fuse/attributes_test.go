package fuse

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSetUserIDBitsAreRefused(t *testing.T) {
	s := start(t, options{})
	must(t, os.WriteFile(s.path("f"), []byte("x"), 0o755))
	for _, mode := range []uint32{0o4755, 0o2755, 0o6755} {
		if err := unix.Chmod(s.path("f"), mode); !errors.Is(err, unix.EPERM) {
			t.Errorf("chmod %o: got %v, want EPERM", mode, err)
		}
		if fd, err := unix.Open(s.path("new"), unix.O_CREAT|unix.O_WRONLY, mode); !errors.Is(err, unix.EPERM) {
			closeFD(fd)
			t.Errorf("create %o: got %v, want EPERM", mode, err)
		}
		if err := unix.Mknod(s.path("node"), unix.S_IFREG|mode, 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("mknod %o: got %v, want EPERM", mode, err)
		}
	}
	for _, kind := range []uint32{unix.S_IFCHR, unix.S_IFBLK} {
		if err := unix.Mknod(s.path("dev"), kind|0o666, int(unix.Mkdev(1, 3))); !errors.Is(err, unix.EPERM) {
			t.Errorf("mknod of a device: got %v, want EPERM", err)
		}
	}
	must(t, unix.Mkdir(s.path("d"), 0o755))
	must(t, unix.Chmod(s.path("d"), 0o2775)) // on a directory the bit shares a group
	must(t, unix.Mkdir(s.path("d/below"), 0o755))
	if fi, err := os.Stat(s.back("d/below")); err != nil || fi.Mode()&os.ModeSetgid == 0 {
		t.Errorf("the bit is not inherited: %v %v", fi, err)
	}
	must(t, os.Chown(s.back("d"), 0, 50))
	must(t, os.WriteFile(s.path("d/f"), nil, 0o644))
	var st unix.Stat_t
	if err := unix.Stat(s.back("d/f"), &st); err != nil || st.Gid != 50 {
		t.Errorf("group %d is not the directory's, %v", st.Gid, err)
	}
	capability := make([]byte, 20) // struct vfs_cap_data, revision 2
	capability[3] = 2
	for _, name := range []string{"security.capability", "trusted.x", "security.selinux"} {
		if err := unix.Setxattr(s.path("f"), name, capability, 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("set %s: got %v, want EPERM", name, err)
		}
	}
	if err := unix.Setxattr(s.path("f"), "system.posix_acl_access", []byte("x"), 0); err == nil {
		t.Error("an access list was set")
	}
}

// asUser runs a shell script as uid 1000 in dir.
func asUser(dir, script string) (string, error) {
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// open gives uid 1000 the way to a directory of the tests.
func openWay(t *testing.T, dir string) {
	for d := dir; d != "/tmp" && d != "/"; d = filepath.Dir(d) {
		must(t, os.Chmod(d, 0o755))
	}
}

func TestTheOutsideOwnerIsShownAsTheInsideUser(t *testing.T) {
	s := start(t, options{owner: Owner{InsideUID: 1000, InsideGID: 1000, OutsideUID: 2000, OutsideGID: 2001}})
	openWay(t, filepath.Dir(s.dir))
	must(t, os.Chown(s.backing, 2000, 2001))
	s.seed(map[string]string{"mine": "x", "roots": "x"})
	must(t, os.Chown(s.back("mine"), 2000, 2001))
	s.seed(map[string]string{"strangers": "x"})
	must(t, os.Chown(s.back("strangers"), 1000, 1000)) // outside another user
	for _, c := range []struct{ script, want string }{
		{"stat -c %u:%g mine roots strangers .", "1000:1000\n0:0\n65534:65534\n1000:1000"},
		{"echo y > mine; echo y > new; mkdir d; ln -s new l; mkfifo p; stat -c %u:%g new d l p", "1000:1000\n1000:1000\n1000:1000\n1000:1000"},
		{"chmod 600 new && chown 1000:1000 new && touch new && echo fine", "fine"},
	} {
		if got, err := asUser(s.dir, c.script); err != nil || got != c.want {
			t.Errorf("%s: got %q, %v, want %q", c.script, got, err, c.want)
		}
	}
	for _, script := range []string{"echo z > roots", "echo z > strangers", "chmod 777 strangers", "chmod 600 roots", "chown 0 mine",
		"chown 2000 mine", "touch roots", "cat /proc/self/root" + s.back("none")} {
		if got, err := asUser(s.dir, script); err == nil {
			t.Errorf("%s succeeded: %s", script, got)
		}
	}
	for _, name := range []string{"new", "d", "l", "p"} {
		var st unix.Stat_t
		must(t, unix.Lstat(s.back(name), &st))
		if st.Uid != 2000 || st.Gid != 2001 {
			t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
		}
	}
}

func TestAWriteTakesSetUserIDBitsAway(t *testing.T) {
	writes := map[string]string{
		"write":    "echo x > f",
		"append":   "echo x >> f",
		"truncate": "truncate -s 0 f",
		"in place": "dd if=/dev/zero of=f bs=1 count=1 conv=notrunc 2>/dev/null",
	}
	for name, script := range writes {
		t.Run(name, func(t *testing.T) {
			s := start(t, options{owner: Owner{InsideUID: 1000, InsideGID: 1000, OutsideUID: 1000, OutsideGID: 1000}})
			openWay(t, filepath.Dir(s.dir))
			s.seed(map[string]string{"f": "program"})
			must(t, os.Chown(s.back("f"), 1000, 1000))
			must(t, unix.Chmod(s.back("f"), 0o6777))
			if out, err := asUser(s.dir, script); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var st unix.Stat_t
			must(t, unix.Stat(s.back("f"), &st))
			if st.Mode&suidBits != 0 {
				t.Errorf("mode is %o", st.Mode)
			}
			must(t, unix.Stat(s.path("f"), &st))
			if st.Mode&suidBits != 0 {
				t.Errorf("the mount still shows mode %o", st.Mode)
			}
		})
	}
}

func TestOddNames(t *testing.T) {
	s := start(t, options{policy: `
file_rules:
  - {name: deny, paths: ["WS/denied/**"], operations: [create], decision: deny}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`})
	for _, name := range []string{strings.Repeat("n", 255), "bytes \xff\xfe\x01", "line\nbreak", "-rf", "...", "trailing ", "\u202etxt",
		"%s%n"} {
		p := filepath.Join(s.dir, name)
		must(t, os.WriteFile(p, []byte(name), 0o644))
		got, err := os.ReadFile(filepath.Join(s.backing, name))
		if err != nil || string(got) != name {
			t.Errorf("%q: %q %v", name, got, err)
		}
		must(t, os.Rename(p, s.path("x")))
		must(t, os.Rename(s.path("x"), p))
	}
	if err := os.WriteFile(s.path(strings.Repeat("n", 256)), nil, 0o644); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("256 bytes: %v", err)
	}
	list, err := os.ReadDir(s.dir)
	if err != nil || len(list) != 8 {
		t.Errorf("%d entries, %v", len(list), err)
	}
	changes, err := s.control.Changes(t.Context(), "ws")
	must(t, err)
	if len(changes) != 8 {
		t.Errorf("%d changes: %q", len(changes), changes)
	}
	for _, c := range changes {
		if _, err := os.Lstat(filepath.Join(s.backing, string(c.Path))); err != nil {
			t.Errorf("change names %q: %v", c.Path, err)
		}
	}
}

func TestTreesDeeperThanAPathMayBeLong(t *testing.T) {
	s := start(t, options{})
	fd, err := unix.Open(s.dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	name := strings.Repeat("d", 200)
	for range 50 { // 10,000 bytes
		must(t, unix.Mkdirat(fd, name, 0o755))
		next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		closeFD(fd)
		must(t, err)
		fd = next
	}
	f, err := unix.Openat(fd, "f", unix.O_CREAT|unix.O_WRONLY, 0o644)
	must(t, err)
	closeFD(f)
	closeFD(fd)
	if out, err := exec.Command("rm", "-rf", s.path(name)).CombinedOutput(); err != nil {
		t.Errorf("rm -rf: %v: %.200s", err, out)
	}
	if list, err := os.ReadDir(s.backing); err != nil || len(list) != 0 {
		t.Errorf("left: %v %v", list, err)
	}
}

func TestTheTimeOfBirthIsTold(t *testing.T) {
	s := start(t, options{})
	s.seed(map[string]string{"f": "text", "d/g": ""})
	must(t, os.Symlink("f", s.back("l")))
	for _, name := range []string{"f", "d", "l", ""} {
		var want, got unix.Statx_t
		const flags = unix.AT_SYMLINK_NOFOLLOW
		must(t, unix.Statx(unix.AT_FDCWD, s.back(name), flags, unix.STATX_BTIME|unix.STATX_BASIC_STATS, &want))
		for range 2 { // the second answer is the kernel's
			must(t, unix.Statx(unix.AT_FDCWD, s.path(name), flags, unix.STATX_BTIME|unix.STATX_BASIC_STATS, &got))
			if want.Mask&unix.STATX_BTIME == 0 {
				t.Fatal("the backing has no time of birth")
			}
			if got.Mask&unix.STATX_BTIME == 0 || got.Btime != want.Btime || got.Size != want.Size ||
				got.Mode != want.Mode || got.Mtime != want.Mtime {
				t.Errorf("%q: %+v, want %+v", name, got, want)
			}
		}
	}
}

// TestAccessListsAreRefused holds what doc/files.md says of them.
func TestAccessListsAreRefused(t *testing.T) {
	s := start(t, options{})
	s.seed(map[string]string{"d/f": ""})
	list := []byte("\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x06\x00\xe8\x03\x00\x00" +
		"\x04\x00\x04\x00\xff\xff\xff\xff\x10\x00\x06\x00\xff\xff\xff\xff\x20\x00\x04\x00\xff\xff\xff\xff")
	must(t, unix.Setxattr(s.back("d/f"), "system.posix_acl_access", list, 0))
	const access, preset = "system.posix_acl_access", "system.posix_acl_default"
	for path, names := range map[string][]string{"d/f": {access}, "d": {access, preset}} {
		for _, name := range names {
			if err := unix.Setxattr(s.path(path), name, list, 0); !errors.Is(err, unix.EOPNOTSUPP) {
				t.Errorf("set %s of %s: %v", name, path, err)
			}
			_, err := unix.Getxattr(s.path(path), name, make([]byte, 100))
			if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENODATA) {
				t.Errorf("get %s of %s: %v", name, path, err)
			}
		}
	}
	buf := make([]byte, 100)
	if n, err := unix.Listxattr(s.path("d/f"), buf); err != nil || n != 0 {
		t.Errorf("list: %q, %v", buf[:max(n, 0)], err)
	}
	var st unix.Stat_t
	if err := unix.Stat(s.path("d/f"), &st); err != nil || st.Mode&0o777 != 0o664 { // the mask stands for the group
		t.Errorf("mode %o, %v", st.Mode, err)
	}
}
