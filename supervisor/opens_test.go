package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

// opensPolicy decides on single files of /proc.
const opensPolicy = `version: 1
name: test
approvals: {via: channel}
command_rules: [{name: rest, commands: ['*'], decision: allow}]
file_rules:
  - {name: own-stat, paths: ['/proc/*/stat'], operations: [read], decision: allow}
  - {name: secrets, paths: ['/proc/*/environ', '/proc/*/mem'], operations: [read, write], decision: deny, message: variables are secret}
  - {name: watched, paths: ['/proc/*/maps', /proc/meminfo], operations: [read], decision: audit}
  - {name: asked, paths: ['/proc/*/cmdline'], operations: [read], decision: approve}
  - {name: rest, paths: ['${WORKSPACE}/**', '/tmp/**', '/dev/**'], operations: ['*'], decision: allow}
  - {name: system, paths: ['/usr/**', '/bin/**', '/lib/**', '/lib64/**', '/etc/**'], operations: [read, list, stat, execute], decision: allow}
`

// opensScript tries what it is to open files of /proc: each line it prints is a
// name and what came of it.
const opensScript = `
import os, errno, ctypes, sys, threading, fcntl
libc = ctypes.CDLL(None, use_errno=True)
def tell(name, f):
    try: print(name, f(), flush=True)
    except OSError as e: print(name, errno.errorcode[e.errno], flush=True)
def read(path, flags=os.O_RDONLY, **kw):
    fd = os.open(path, flags, **kw)
    try: return 'yes' if len(os.read(fd, 100)) else 'empty'
    finally: os.close(fd)
def at(): # by a descriptor of a directory
    d = os.open('/proc/self', os.O_PATH|os.O_DIRECTORY)
    try: return read('environ', dir_fd=d)
    finally: os.close(d)
def cwd():
    os.chdir('/proc/self')
    try: return read('../self/task/%d/environ' % os.getpid())
    finally: os.chdir(work)
def link():
    os.symlink('/proc/self/environ', work+'/link')
    return read(work+'/link')
def again(path): # an O_PATH handle opened again by its magic link
    fd = os.open(path, os.O_PATH)
    try: return read('/proc/self/fd/%d' % fd)
    finally: os.close(fd)
class how(ctypes.Structure): _fields_ = [('flags', ctypes.c_uint64), ('mode', ctypes.c_uint64), ('resolve', ctypes.c_uint64)]
def openat2(path, resolve=0):
    fd = libc.syscall(437, -100, path.encode(), ctypes.byref(how(os.O_RDONLY|os.O_CLOEXEC, 0, resolve)), 24)
    if fd < 0: raise OSError(ctypes.get_errno(), '')
    os.close(fd)
    return 'yes'
def flags(path, f):
    libc.open.restype = ctypes.c_int
    fd = libc.open(path.encode(), f)
    if fd < 0: raise OSError(ctypes.get_errno(), '')
    try: return '%d %d' % (fcntl.fcntl(fd, fcntl.F_GETFD), fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE|os.O_NONBLOCK))
    finally: os.close(fd)
def thread():
    out = []
    t = threading.Thread(target=lambda: out.append(os.readlink('/proc/thread-self') + ' ' + open('/proc/thread-self/stat').read().split()[0]))
    t.start(); t.join()
    link, tid = out[0].split()
    return link.endswith('/' + tid)
def full():
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try: return read('/proc/self/maps')
    finally: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
work = os.getcwd()
me = '/proc/%d' % os.getpid()
tell('environ', lambda: read('/proc/self/environ'))
tell('numbered', lambda: read(me+'/environ'))
tell('task', lambda: read('/proc/thread-self/environ'))
tell('init', lambda: read('/proc/1/environ'))
tell('at', at)
tell('cwd', cwd)
tell('link', link)
tell('again', lambda: again('/proc/self/environ'))
tell('root', lambda: read('/proc/self/root/proc/self/environ'))
tell('openat2', lambda: openat2('/proc/self/environ'))
tell('mem', lambda: read('/proc/self/mem'))
tell('writing', lambda: read('/proc/self/environ', os.O_RDWR))
tell('maps', lambda: read('/proc/self/maps'))
tell('taskmaps', lambda: read('/proc/thread-self/maps'))
tell('meminfo', lambda: openat2('/proc/meminfo'))
tell('beneath', lambda: openat2('/proc/meminfo', 4))
tell('stat', lambda: read('/proc/self/stat'))
tell('thread', thread)
tell('status', lambda: read('/proc/self/status'))
tell('missing', lambda: read('/proc/self/nothing'))
tell('gone', lambda: read('/proc/4194303/maps'))
tell('nofollow', lambda: read('/proc/self/exe', os.O_RDONLY|os.O_NOFOLLOW))
tell('exe', lambda: read('/proc/self/exe'))
tell('excl', lambda: read('/proc/self/maps', os.O_RDONLY|os.O_CREAT|os.O_EXCL))
tell('list', lambda: len(os.listdir('/proc/self')) > 20)
tell('cloexec', lambda: flags('/proc/self/maps', os.O_RDONLY|os.O_CLOEXEC|os.O_NONBLOCK))
tell('open', lambda: flags('/proc/self/maps', os.O_RDONLY))
tell('full', full)
def fd():
    f, (r, w) = os.open('/etc/passwd', os.O_RDONLY), os.pipe()
    os.write(w, b'x')
    return read('/proc/self/fd/%d' % f) + ' ' + read('/dev/fd/%d' % r)
tell('fd', fd)
tell('devnull', lambda: read('/dev/null'))
tell('plain', lambda: read('/etc/passwd'))
`

// opensWant is what opensScript prints.
const opensWant = `environ EACCES
numbered EACCES
task EACCES
init EACCES
at EACCES
cwd EACCES
link EACCES
again EACCES
root EACCES
openat2 EACCES
mem EACCES
writing EACCES
maps yes
taskmaps yes
meminfo yes
beneath EACCES
stat yes
thread True
status yes
missing ENOENT
gone ENOENT
nofollow ELOOP
exe yes
excl EEXIST
list True
cloexec 1 2048
open 0 0
full EMFILE
fd yes yes
devnull empty
plain yes
`

// asBoth runs a test as root and again as user 1000, whose sessions have a user
// namespace. It reports whether this is the run of that user.
func asBoth(t *testing.T) (unprivileged bool) {
	t.Helper()
	return asUser(t, "1000")
}

// asUser runs the test as another user as well, in a new process.
func asUser(t *testing.T, id string) (unprivileged bool) {
	t.Helper()
	testenv.Need(t, testenv.UserNotif, testenv.FUSE, testenv.Landlock, testenv.UserNS)
	if os.Geteuid() != 0 {
		return true
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	cmd := exec.Command(
		"unshare",
		"-m",
		"sh",
		"-ec",
		`mount -t tmpfs none /mnt; mknod -m 666 /mnt/fuse c 10 229; mount --bind /mnt/fuse /dev/fuse; mkdir -m 777 /mnt/tmp; mkdir -m 2777 /mnt/group; exec env TMPDIR=/mnt/tmp "$@"`,
		"sh",
		"setpriv",
		"--reuid",
		id,
		"--regid",
		id,
		"--clear-groups",
		"/proc/self/fd/3",
		"-test.run=^"+t.Name()+"$",
		"-test.v",
	)
	cmd.Dir, cmd.ExtraFiles = "/", []*os.File{self}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as user %s: %v\n%s", id, err, out)
	}
	return false
}

// openEither opens a session as root or as another user; judge answers its
// questions, nil: nobody does.
func openEither(t *testing.T, unprivileged bool, text string, judge func(wire.Pending) bool) *box {
	t.Helper()
	cfg, log := testConfig(t, text)
	cfg.Channel = judge != nil
	if unprivileged {
		cfg.User = ""
	}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	following := make(chan error, 1)
	go func() {
		if judge == nil {
			following <- nil
			return
		}
		following <- s.Approvals().Follow(context.Background(), "", func(list []wire.Pending) error {
			for _, p := range list {
				_ = s.Approvals().Answer(wire.ApprovalAnswer{ID: p.ID, Allow: judge(p), By: "ann"}) // its time may be over
			}
			return nil
		})
	}()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-following); err != nil {
			t.Error(err)
		}
	})
	return &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
}

// TestFilesOfProcAreDecidedOneByOne: by every name and call that opens them, and
// as the kernel answers for all else.
func TestFilesOfProcAreDecidedOneByOne(t *testing.T) {
	b := openEither(t, asBoth(t), opensPolicy, nil)
	if err := os.WriteFile(filepath.Join(b.workspace, "opens.py"), []byte(opensScript), 0o644); err != nil {
		t.Fatal(err)
	}
	_, out := b.run(t, "python3", "opens.py")
	if out != opensWant {
		t.Errorf("it printed:\n%s", out)
	}
	seen := map[string]int{}
	for _, e := range b.events(t, func(e wire.Event) bool { return e.Type == wire.EventFile && e.Mechanism == "seccomp" }) {
		if e.Command != t.Name() || e.Process == nil || !strings.Contains(e.Process.Exe, "python") || e.Rule == nil ||
			!strings.HasPrefix(e.Rule.Position(), "test.yaml:") ||
			e.Op != "read" {
			t.Errorf("event %+v", e)
		}
		seen[e.Rule.Name+" "+e.Decision]++
	}
	if got := fmt.Sprint(seen); got != "map[secrets deny:11 watched audit:6]" {
		t.Errorf("events %s", got)
	}
}

// TestAPersonDecidesOnAFileOfProc, while the caller waits, and with it goes a
// question that nobody needs answered any more.
func TestAPersonDecidesOnAFileOfProc(t *testing.T) {
	unprivileged := asBoth(t)
	b := openEither(
		t,
		unprivileged,
		opensPolicy,
		func(p wire.Pending) bool {
			return p.Kind == wire.AskFile && !strings.Contains(string(p.Subject), "/1/")
		},
	)
	if _, out := b.run(t, "sh", "-c", "tr '\\0' ' ' </proc/$$/cmdline; cat /proc/meminfo >/dev/null && echo read"); !strings.HasPrefix(
		out,
		"sh -c tr",
	) ||
		!strings.HasSuffix(out, "read\n") {
		t.Errorf("approved: %q", out)
	}
	found := b.events(t, func(e wire.Event) bool {
		return e.Type == wire.EventFile && e.Decision == "approve" && e.By == "ann" && e.Rule.Name == "asked"
	})
	if len(found) != 1 {
		t.Errorf("%d events of an approved open", len(found))
	}
	refused := openEither(t, unprivileged, strings.Replace(opensPolicy, "approvals: {via: channel}\n", "", 1), nil)
	if _, out := refused.run(t, "sh", "-c", "cat /proc/$$/cmdline 2>/dev/null || echo no"); out != "no\n" {
		t.Errorf("nobody to ask: %q", out)
	}
	if len(refused.events(t, func(e wire.Event) bool {
		return e.Type == wire.EventFile && e.Decision == "deny" && strings.Contains(e.Message, "approv")
	})) != 1 {
		t.Error("no event of a denied open")
	}
}

// opensAttack opens a path that another thread exchanges all the time.
const opensAttack = `
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static char path[64];
static volatile int done;
static void name(const char *to) { memcpy(path + 12, to, 7); for (volatile int i = 0; i < 300; i++); }
static void *flip(void *x) { while (!done) { name("nviron"); name("xe\0\0\0\0"); } return x; }
int main(void) {
	pthread_t t; int won = 0, opened = 0; char buf[4096];
	strcpy(path, "/proc/self/exe");
	pthread_create(&t, 0, flip, 0);
	for (int i = 0; i < 20000; i++) {
		int fd = open(path, O_RDONLY);
		if (fd < 0) continue;
		opened++;
		long n = read(fd, buf, sizeof buf - 1);
		if (n < 4 || memcmp(buf, "\177ELF", 4)) won++; /* no program: the variables */
		close(fd);
	}
	done = 1; pthread_join(t, 0);
	printf("%d %s\n", won, opened > 0 ? "opened" : "nothing opened");
}
`

// TestAnExchangedNameOpensNoDeniedFile: the name is read before it is judged and
// never by the kernel after that.
func TestAnExchangedNameOpensNoDeniedFile(t *testing.T) {
	testenv.Need(t, testenv.Program("gcc"))
	b := openEither(t, asBoth(t), opensPolicy, nil)
	compile := exec.Command("gcc", "-O1", "-D_GNU_SOURCE", "-pthread", "-x", "c", "-o", filepath.Join(b.workspace, "attack"), "-")
	compile.Stdin = strings.NewReader(opensAttack)
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, out := b.run(t, "./attack"); out != "0 opened\n" {
		t.Errorf("attack: %q", out)
	}
}

// TestTheOpenerIsOutOfReach: commands of its user neither see nor end it.
func TestTheOpenerIsOutOfReach(t *testing.T) {
	b := openEither(t, asBoth(t), opensPolicy, nil)
	_, out := b.run(t, "python3", "-c", `
import os, signal
seen = [d for d in os.listdir('/proc') if d.isdigit()]
print(seen == [str(os.getpid())])
for pid in range(1, 100):
    if pid != os.getpid():
        try: os.kill(pid, signal.SIGKILL) # a thread of the init takes it and stays
        except OSError: pass
print(len(open('/proc/meminfo').read()) > 0)`)
	if out != "True\nTrue\n" {
		t.Errorf("it printed %q", out)
	}
}

// TestAnOpenerThatIsGoneOpensNothing and nothing else is hurt.
func TestAnOpenerThatIsGoneOpensNothing(t *testing.T) {
	b := openBox(t, opensPolicy)
	if err := b.loop.opener.Close(); err != nil {
		t.Fatal(err)
	}
	if _, out := b.run(t, "sh", "-c", "cat /proc/meminfo 2>/dev/null || echo no; head -c 4 /etc/passwd"); out != "no\nroot" {
		t.Errorf("it printed %q", out)
	}
	lost := func(e wire.Event) bool {
		return e.Type == wire.EventFault && strings.Contains(e.Message, "opener has ended")
	}
	if len(b.events(t, lost)) == 0 {
		t.Error("the audit log does not tell of it")
	}
}

// TestWhetherFilesOfProcAreDecidedIsFixed: the layer that shuts commands out is
// there from the start or not at all.
func TestWhetherFilesOfProcAreDecidedIsFixed(t *testing.T) {
	plain := strings.NewReplacer(
		"operations: [read, write], decision: deny, message: variables are secret",
		"operations: [read], decision: allow",
		"decision: audit",
		"decision: allow",
		"decision: approve",
		"decision: allow",
	).Replace(
		opensPolicy,
	)
	b := openBox(t, plain)
	p, err := syntax.Load(policy.Source{Name: "test.yaml", Data: []byte(opensPolicy)}, syntax.Options{Vars: b.rules.policy().Vars()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Reload(context.Background(), p); err == nil || !strings.Contains(err.Error(), "/proc would be opened file by file") {
		t.Errorf("error %v", err)
	}
	other := openBox(t, opensPolicy)
	p, err = syntax.Load(
		policy.Source{Name: "test.yaml", Data: []byte(strings.Replace(opensPolicy, "'/proc/*/mem'", "/proc/meminfo", 1))},
		syntax.Options{Vars: other.rules.policy().Vars()},
	)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Reload(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	if _, out := other.run(t, "sh", "-c", "cat /proc/meminfo 2>/dev/null || echo no"); out != "no\n" {
		t.Errorf("after a reload: %q", out)
	}
}
