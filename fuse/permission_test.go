package fuse

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

// permissionCalls makes every call on every file and prints what came of each.
// Calls that succeed are undone by whoever prepared the tree.
const permissionCalls = `
import os, errno, sys, itertools
def say(name, f):
    try: r = f(); print(name, 'ok' if r is None or isinstance(r, int) else r)
    except OSError as e: print(name, errno.errorcode[e.errno])
def opened(path, flags):
    os.close(os.open(path, flags, 0o644))
def show(path):
    s = os.lstat(path); return '%o %d %d %d' % (s.st_mode, s.st_uid, s.st_gid, s.st_nlink)
dirs = sorted(os.listdir('.'))
for d in dirs:
    say('access %s' % d, lambda: str([os.access(d, m) for m in (os.R_OK, os.W_OK, os.X_OK)]))
    say('list %s' % d, lambda: str(sorted(os.listdir(d))))
    say('create %s' % d, lambda: opened(d+'/new', os.O_CREAT|os.O_EXCL|os.O_WRONLY))
    say('mkdir %s' % d, lambda: os.mkdir(d+'/newdir'))
    say('symlink %s' % d, lambda: os.symlink('x', d+'/newlink'))
    say('mkfifo %s' % d, lambda: os.mkfifo(d+'/newfifo'))
    for n in ('new', 'newdir', 'newlink', 'newfifo'):
        say('made %s/%s' % (d, n), lambda: show(d+'/'+n))
    say('chmod dir %s' % d, lambda: os.chmod(d, os.lstat(d).st_mode & 0o7777))
    say('chown dir %s' % d, lambda: os.chown(d, -1, 3000))
    say('utime dir %s' % d, lambda: os.utime(d, (1, 2)))
    say('touch dir %s' % d, lambda: os.utime(d))
    for f in ('mine-644', 'mine-400', 'mine-000', 'other-644', 'other-666', 'other-600', 'sub'):
        p = d+'/'+f
        for name, flags in (('read', os.O_RDONLY), ('write', os.O_WRONLY), ('both', os.O_RDWR), ('trunc', os.O_WRONLY|os.O_TRUNC), ('append', os.O_WRONLY|os.O_APPEND), ('path', os.O_PATH)):
            say('%s %s' % (name, p), lambda: opened(p, flags))
        say('access %s' % p, lambda: str([os.access(p, m) for m in (os.F_OK, os.R_OK, os.W_OK, os.X_OK)]))
        say('truncate %s' % p, lambda: os.truncate(p, 1))
        say('chmod %s' % p, lambda: os.chmod(p, os.lstat(p).st_mode & 0o7777))
        say('setgid %s' % p, lambda: os.chmod(p, 0o2640) if f == 'other-644' else None)
        say('chown %s' % p, lambda: os.chown(p, 3000, -1))
        say('chgrp %s' % p, lambda: os.chown(p, -1, 1000))
        say('utime %s' % p, lambda: os.utime(p, (1, 2)))
        say('touch %s' % p, lambda: os.utime(p))
        say('getxattr %s' % p, lambda: os.getxattr(p, 'user.mark').decode())
        say('setxattr %s' % p, lambda: os.setxattr(p, 'user.mark', b'old'))
        say('link %s' % p, lambda: os.link(p, d+'/linked-'+f))
        say('rename %s' % p, lambda: os.rename(p, d+'/moved-'+f))
        say('back %s' % p, lambda: os.rename(d+'/moved-'+f, p))
        say('rename out %s' % p, lambda: os.rename(p, 'open/out-'+d+f))
        say('back in %s' % p, lambda: os.rename('open/out-'+d+f, p))
        say('over %s' % p, lambda: os.replace('open/spare', p) if f == 'other-600' and d != 'open' else None)
        say('unlink %s' % p, lambda: os.unlink(p))
        say('rmdir %s' % p, lambda: os.rmdir(p))
        say('left %s' % p, lambda: show(p))
`

// preparePermissions makes directories of two users with the modes that matter,
// each with the same files.
func preparePermissions(t *testing.T, root string) {
	t.Helper()
	dirs := []struct {
		name string
		mode uint32
		uid  int
	}{
		{"open", 0o777, 3000}, {"sticky", 0o1777, 3000}, {"sticky-mine", 0o1777, 1000}, {"mine", 0o755, 1000}, {"mine-read-only", 0o555, 1000},
		{
			"mine-no-search",
			0o666,
			1000,
		}, {"other", 0o755, 3000}, {"other-search", 0o711, 3000}, {"other-closed", 0o700, 3000}, {"setgid", 0o2777, 3000},
		{"sticky-group", 0o1775, 3000},
	}
	files := []struct {
		name string
		mode uint32
		uid  int
	}{{"mine-644", 0o644, 1000}, {"mine-400", 0o400, 1000}, {"mine-000", 0, 1000}, {"other-644", 0o644, 3000}, {"other-666", 0o666, 3000},
		{"other-600", 0o600, 3000}}
	for _, d := range dirs {
		dir := filepath.Join(root, d.name)
		must(t, os.Mkdir(dir, 0o755))
		must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
		must(t, os.Chown(filepath.Join(dir, "sub"), 3000, 3000))
		for _, f := range files {
			name := filepath.Join(dir, f.name)
			must(t, os.WriteFile(name, []byte("text"), 0o644))
			must(t, unix.Setxattr(name, "user.mark", []byte("old"), 0))
			must(t, os.Chown(name, f.uid, f.uid))
			must(t, unix.Chmod(name, f.mode))
		}
		if d.name == "open" {
			must(t, os.WriteFile(filepath.Join(dir, "spare"), nil, 0o644))
		}
		must(t, os.Chown(dir, d.uid, d.uid))
		must(t, unix.Chmod(dir, d.mode))
	}
}

// TestModesAndOwnersDecideWhatAUserMayDo: more than two thousand calls of user
// 1000 on files of two users, also in sticky directories, come out as on the
// filesystem itself.
func TestModesAndOwnersDecideWhatAUserMayDo(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.FUSE, testenv.Program("python3"))
	plain := t.TempDir()
	openWay(t, plain)
	preparePermissions(t, plain)
	want, err := asUser(plain, "umask 022; exec /usr/bin/python3 - <<'EOF'\n"+permissionCalls+"EOF")
	if lines := strings.Count(want, "\n"); err != nil || lines < 2000 {
		t.Fatalf("%d calls, %v", lines, err)
	}
	s := start(t, options{owner: Owner{InsideUID: 1000, InsideGID: 1000, OutsideUID: 1000, OutsideGID: 1000}})
	openWay(t, filepath.Dir(s.dir))
	preparePermissions(t, s.backing)
	got, err := asUser(s.dir, "umask 022; exec /usr/bin/python3 - <<'EOF'\n"+permissionCalls+"EOF")
	if err != nil {
		t.Fatal(err, got)
	}
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	differ := 0
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] && differ < 20 {
			differ++
			t.Errorf("%q, on the mount %q", a[i], b[i])
		}
	}
	if len(a) != len(b) {
		t.Errorf("%d lines, on the mount %d", len(a), len(b))
	}
}
