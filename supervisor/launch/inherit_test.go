package launch_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

// portrait prints what a command has of the thread that forked it.
const portrait = `nice
chrt -p $$ | sed 's/.*://'; taskset -p $$ | sed 's/.*://'; ionice -p $$
umask; ulimit -aH | grep -v 'R)'; ulimit -aS | grep -v 'R)'
cat /proc/self/oom_score_adj /proc/self/coredump_filter /proc/self/timerslack_ns /proc/self/personality
sed 's/.*nice/autogroup/' /proc/self/autogroup
grep -E '^(Umask|Cpus_|Mems_|THP|Seccomp:|NoNew|Cap|SigIgn|SigBlk|Groups|Uid|Gid|CoreD|Specul)' /proc/self/status
python3 -c 'import ctypes; c = ctypes.CDLL(None)
for option in 3, 7, 21, 27, 30, 37, 42, 66: print(option, c.prctl(option, 0, 0, 0, 0))'`

// hostile tries every call and file that sets what a thread's children inherit,
// on the threads of the session init, by number, group and user. It prints which
// of them did not fail.
const hostile = `
import ctypes, os
c = ctypes.CDLL(None, use_errno=True)
word = ctypes.c_ulong(1)
null = ctypes.c_int(0)
attr = (ctypes.c_uint32 * 14)(56, 0, 0, 0, 19)
idle = (ctypes.c_uint32 * 14)(56, 5)
clamp = (ctypes.c_uint32 * 14)(56, 0, 0x60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
def call(what, *args):
    if c.syscall(*args) == 0: print("worked:", what, args[1:])
top = 1 << 32
for t in 1, 2, 3, %[1]d, %[1]d + 1, %[1]d + 2:
    for n in t, t + top:
        n = ctypes.c_ulong(n)
        call("setpriority", %[2]d, 0, n, 19)
        call("setpriority of a group", %[2]d, 1, n, 19)
        call("sched_setscheduler", %[3]d, n, 5, ctypes.byref(null))
        call("sched_setparam", %[4]d, n, ctypes.byref(null))
        call("sched_setaffinity", %[5]d, n, 8, ctypes.byref(word))
        call("sched_setattr", %[6]d, n, attr, 0)
        call("sched_setattr idle", %[6]d, n, idle, 0)
        call("sched_setattr clamp", %[6]d, n, clamp, 0)
        call("ioprio_set", %[7]d, 1, n, 3 << 13)
        call("ioprio_set of a group", %[7]d, 2, n, 3 << 13)
        call("migrate_pages", %[8]d, n, 8, ctypes.byref(word), ctypes.byref(word))
        call("move_pages", %[9]d, n, 1, ctypes.byref(word), ctypes.byref(null), ctypes.byref(null), 0)
        call("setpgid", %[10]d, n, 0)
        for limit in range(16): call("prlimit", %[11]d, n, limit, (ctypes.c_ulong * 2)(0, 0), None)
        call("core scheduling", %[12]d, 62, 2, n, 0, 0)
    for name in "oom_score_adj", "oom_adj", "coredump_filter", "timerslack_ns", "autogroup", "comm", "clear_refs", "sched", "loginuid", "uid_map", "setgroups", "attr/current":
        for at in "/proc/%%d/%%s", "/proc/1/task/%%d/%%s":
            try:
                with open(at %% (t, name), "w") as f: f.write("7")
                print("worked:", at %% (t, name))
            except OSError: pass
for n in os.getuid(), 0:
    call("setpriority of a user", %[2]d, 2, n, 19)
    call("ioprio_set of a user", %[7]d, 3, n, 3 << 13)
`

// TestTheNextCommandHasWhatTheFirstHad: no command sets what later ones inherit,
// neither on the threads that fork them nor on itself.
func TestTheNextCommandHasWhatTheFirstHad(t *testing.T) {
	both(t, func(t *testing.T) {
		testenv.Need(t, testenv.Program("python3"))
		s := start(t, config(t))
		code, before := s.run(t, portrait)
		if code != 0 || !strings.Contains(before, "autogroup") {
			t.Fatalf("%d\n%s", code, before)
		}
		script := fmt.Sprintf(hostile, s.PID(), unix.SYS_SETPRIORITY, unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETPARAM,
			unix.SYS_SCHED_SETAFFINITY, unix.SYS_SCHED_SETATTR, unix.SYS_IOPRIO_SET, unix.SYS_MIGRATE_PAGES, unix.SYS_MOVE_PAGES,
			unix.SYS_SETPGID, unix.SYS_PRLIMIT64, unix.SYS_PRCTL)
		if code, out := s.run(t, "cat >/tmp/h.py <<'END'\n"+script+"END\npython3 /tmp/h.py"); code != 0 || out != "" {
			t.Errorf("exit %d\n%s", code, out)
		}
		own := `renice 7 $$; ionice -c3 -p $$; taskset -p 1 $$; chrt -b -p 0 $$; umask 077; ulimit -n 20 -s 1000
echo 500 >/proc/self/oom_score_adj; echo 0 >/proc/self/coredump_filter; echo 9 >/proc/self/autogroup; echo 99999 >/proc/self/timerslack_ns
trap '' TERM; setsid sleep 0`
		s.run(t, own)
		if _, after := s.run(t, portrait); after != before {
			t.Errorf("before\n%s\nafter\n%s", before, after)
		}
	})
}

// A command is not told later than its caller that its time has passed.
func TestTimersOfCommandsAreAsExact(t *testing.T) {
	both(t, func(t *testing.T) {
		want, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if code, got := start(t, config(t)).run(t, "cat /proc/self/timerslack_ns"); code != 0 || got != strconv.Itoa(want) {
			t.Errorf("exit %d, %q, not %d", code, got, want)
		}
	})
}
