"""Locks of several processes in one directory: locks.py DIRECTORY CASE

Each case prints what its calls return. The output is the same in a plain
directory and in a governed one."""

import errno
import fcntl
import os
import signal
import struct
import sys
import time

GETLK, SETLK, SETLKW = fcntl.F_GETLK, fcntl.F_SETLK, fcntl.F_SETLKW
OFD_GETLK, OFD_SETLK, OFD_SETLKW = 36, 37, 38
R, W, U = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
NAMES = {R: "read", W: "write", U: "none"}
FORMAT = "hhqqi4x"
directory, case = sys.argv[1], sys.argv[2]
base = os.getpid()
known = {base: "parent"}


def path(name="f"):
    return os.path.join(directory, name)


def opened(name="f", flags=os.O_RDWR | os.O_CREAT):
    return os.open(path(name), flags | os.O_CLOEXEC, 0o644)


said = []  # in a helper: its output, which the parent prints


def say(*words):
    if os.getpid() in helpers:
        said.append(" ".join(map(str, words)))
    else:
        print(*words, flush=True)


helpers = set()


def told(what, do):
    try:
        result = do()
        say(what, "ok" if result is None else result)
    except OSError as e:
        say(what, errno.errorcode[e.errno])


def lock(fd, cmd, kind, start=0, size=0, whence=0):
    def do():
        got = fcntl.fcntl(fd, cmd, struct.pack(FORMAT, kind, whence, start, size, 0))
        if cmd in (GETLK, OFD_GETLK):
            kind_, _, start_, size_, pid = struct.unpack(FORMAT, got)
            if kind_ == U:
                return "none"
            return "%s %d+%d" % (NAMES[kind_], start_, size_) + (" by " + known.get(pid, "another") if cmd == GETLK else "")
        return None
    told("%d %s %d+%d:" % (cmd, NAMES[kind], start, size), do)


def flock(fd, how):
    told("flock %d:" % how, lambda: fcntl.flock(fd, how))


def child(do):
    """Runs do in a child and waits for its end. Its output comes first."""
    pid = os.fork()
    if pid == 0:
        try:
            do()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


class Helper:
    """A child that carries out one function after the other, as it is told."""

    def __init__(self, *steps):
        self.go = os.pipe()
        self.done = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.go[1])
            os.close(self.done[0])
            helpers.add(os.getpid())
            for step in steps:
                if os.read(self.go[0], 1) == b"q":
                    os._exit(0)
                step()
                os.write(self.done[1], b"\n".join(s.encode() for s in said) or b"nothing")
                said.clear()
            os.read(self.go[0], 1)
            os._exit(0)
        os.close(self.go[0])
        os.close(self.done[1])
        known[self.pid] = "child"

    def begin(self):
        os.write(self.go[1], b"x")

    def wait(self):
        print("child:", os.read(self.done[0], 4096).decode(), flush=True)

    def step(self):
        self.begin()
        self.wait()

    def end(self, sig=None):
        if sig:
            os.kill(self.pid, sig)
        else:
            os.write(self.go[1], b"q")
        return os.waitpid(self.pid, 0)[1]

    def blocked(self):
        """Waits until the child sleeps in its lock call."""
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            with open("/proc/%d/syscall" % self.pid) as f:
                number = f.read().split()[0]
            if number in ("72", "73", "25", "32"):  # fcntl and flock, on both architectures
                return
            os.sched_yield()
        say("never blocked")


def probe(start=0, size=0, kind=W):
    """Another process looks at a range and tries to lock it."""
    def do():
        fd = opened()
        lock(fd, GETLK, kind, start, size)
        lock(fd, SETLK, kind, start, size)
    child(do)


def ranges():
    fd = opened()
    lock(fd, SETLK, W, 10, 10)
    lock(fd, SETLK, R, 13, 3)  # split
    for start in (9, 10, 13, 16, 19, 20):
        probe(start, 1, R)
        probe(start, 1, W)
    lock(fd, SETLK, W, 13, 3)  # merged again
    probe(0, 0)
    lock(fd, SETLK, U, 12, 2)
    probe(10, 10)
    probe(12, 2)
    lock(fd, SETLK, U)
    probe()
    lock(fd, SETLK, W, 100, -10)
    probe(89, 1)
    probe(90, 1)
    os.lseek(fd, 200, os.SEEK_SET)
    lock(fd, SETLK, W, 5, 1, os.SEEK_CUR)
    probe(205, 1)
    os.ftruncate(fd, 300)
    lock(fd, SETLK, W, 0, 0, os.SEEK_END)
    probe(299, 1)
    probe(1 << 40, 1)
    lock(fd, SETLK, W, -5, 1)
    told("kind 77:", lambda: fcntl.fcntl(fd, SETLK, struct.pack(FORMAT, 77, 0, 0, 1, 0)))
    lock(fd, SETLK, W, (1 << 63) - 2, 1)
    probe((1 << 63) - 2, 1)


def modes():
    opened()
    r, w = opened(flags=os.O_RDONLY), opened(flags=os.O_WRONLY)
    for fd in (r, w):
        for kind in (R, W, U):
            lock(fd, SETLK, kind, 0, 1)
            lock(fd, OFD_SETLK, kind, 5, 1)
        flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        flock(fd, fcntl.LOCK_UN)
    p = os.open(path(), os.O_PATH)
    lock(p, SETLK, R)
    flock(p, fcntl.LOCK_SH)
    lock(r, SETLK, R, 0, 4)
    lock(w, SETLK, W, 2, 4)
    probe(0, 2)
    probe(2, 4, R)
    lock(r, SETLK, R, 3, 1)
    probe(3, 1, R)


def anyclose():
    fd = opened()
    lock(fd, SETLK, W)
    probe()
    os.close(opened(flags=os.O_RDONLY))
    probe()
    lock(fd, SETLK, W)
    os.close(os.dup(fd))
    probe()
    lock(fd, SETLK, W)
    os.link(path(), path("g"))
    os.close(opened("g", os.O_RDONLY))
    probe()
    lock(fd, SETLK, W)
    os.rename(path(), path("h"))
    os.rename(path("h"), path())
    probe()
    os.close(fd)
    probe()


def forked():
    fd = opened()
    lock(fd, SETLK, W, 0, 5)
    child(lambda: lock(fd, SETLK, W, 4, 5))  # not inherited
    child(lambda: lock(fd, SETLK, U))  # unlocks nothing of the parent
    child(lambda: os.close(fd))
    probe()
    h = Helper(lambda: lock(fd, SETLK, W, 10, 5), lambda: lock(fd, GETLK, W, 0, 20))
    h.step()
    h.step()
    lock(fd, GETLK, W, 0, 20)
    h.end(signal.SIGKILL)
    probe(10, 5)
    probe(0, 5)
    # a lock ends with its process, though another has the file open
    keep = Helper(lambda: say("kept"))
    h = Helper(lambda: lock(fd, SETLK, W, 30, 1))
    h.step()
    h.end(signal.SIGKILL)
    probe(30, 1)
    keep.step()
    keep.end()


def executed():
    fd = opened()
    os.set_inheritable(fd, True)
    def do():
        lock(fd, SETLK, W, 0, 5)
        os.execv("/bin/sh", ["sh", "-c", "read x; exit 0"])
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(r, 0)
        do()
    os.close(r)
    while os.readlink("/proc/%d/exe" % pid) == os.readlink("/proc/self/exe"):
        os.sched_yield()
    probe()
    os.close(w)
    os.waitpid(pid, 0)
    probe()


def ofd():
    a, b = opened(), opened()
    lock(a, OFD_SETLK, W, 0, 5)
    lock(b, OFD_SETLK, W, 4, 5)
    lock(b, OFD_GETLK, W, 0, 0)
    lock(a, OFD_GETLK, W, 0, 0)
    lock(b, SETLK, W, 4, 1)  # POSIX against OFD of the same process
    lock(b, SETLK, W, 5, 1)
    lock(a, OFD_SETLK, W, 5, 1)
    d = os.dup(a)
    os.close(a)
    lock(b, OFD_SETLK, W, 4, 1)  # the copy keeps it
    child(lambda: os.close(d))
    lock(b, OFD_SETLK, W, 4, 1)
    h = Helper(lambda: say("has a copy"))
    h.step()
    os.close(d)
    lock(b, OFD_SETLK, W, 4, 1)
    h.end()
    lock(b, OFD_SETLK, W, 4, 1)


def flocks():
    a, b = opened(flags=os.O_RDONLY | os.O_CREAT), opened()
    flock(a, fcntl.LOCK_SH | fcntl.LOCK_NB)
    flock(b, fcntl.LOCK_SH | fcntl.LOCK_NB)
    flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
    flock(a, fcntl.LOCK_UN)
    flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
    flock(a, fcntl.LOCK_SH | fcntl.LOCK_NB)
    flock(b, fcntl.LOCK_SH)
    flock(a, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(b)
    d = os.dup(a)
    flock(d, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(a)
    c = opened()
    flock(c, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock(c, SETLK, W)  # independent of flock
    child(lambda: flock(d, fcntl.LOCK_UN))  # the description is shared
    flock(c, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(opened())
    child(lambda: flock(opened(), fcntl.LOCK_SH | fcntl.LOCK_NB))
    e = os.open(directory, os.O_RDONLY)
    flock(e, fcntl.LOCK_EX | fcntl.LOCK_NB)
    child(lambda: flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB))


def waits():
    fd = opened()
    for what, take, drop in (
        ("posix", lambda f: lock(f, SETLKW, W), lambda f: lock(f, SETLK, U)),
        ("ofd", lambda f: lock(f, OFD_SETLKW, W), lambda f: lock(f, OFD_SETLK, U)),
        ("flock", lambda f: flock(f, fcntl.LOCK_EX), lambda f: flock(f, fcntl.LOCK_UN)),
    ):
        say(what)
        take(fd)
        h = Helper(lambda: take(opened()))
        h.begin()
        h.blocked()
        drop(fd)
        h.wait()
        h.end()
        take(fd)
        h = Helper(lambda: take(opened()))
        h.begin()
        h.blocked()
        say("killed with", h.end(signal.SIGKILL))
        drop(fd)

        def interrupted():
            def stop(*_):
                raise InterruptedError(errno.EINTR, "signal")
            signal.signal(signal.SIGUSR1, stop)
            take(opened())
        take(fd)
        h = Helper(interrupted)
        h.begin()
        h.blocked()
        os.kill(h.pid, signal.SIGUSR1)
        h.wait()
        h.end()

        def restarted():
            signal.signal(signal.SIGUSR1, lambda *_: say("signal"))
            take(opened())
        h = Helper(restarted)
        h.begin()
        h.blocked()
        os.kill(h.pid, signal.SIGSTOP)
        os.kill(h.pid, signal.SIGCONT)
        h.blocked()
        drop(fd)
        h.wait()
        h.end()


def deadlock():
    fd = opened()
    lock(fd, SETLK, W, 0, 1)
    h = Helper(lambda: lock(fd, SETLK, W, 1, 1), lambda: lock(fd, SETLKW, W, 0, 1))
    h.step()
    h.begin()
    h.blocked()
    lock(fd, SETLKW, W, 1, 1)
    lock(fd, SETLK, U)
    h.wait()
    h.end()
    # a circle of three, over two files
    g = opened("g")
    lock(fd, SETLK, W, 0, 1)
    a = Helper(lambda: lock(g, SETLK, W, 0, 1), lambda: lock(fd, SETLKW, W, 0, 1))
    a.step()
    b = Helper(lambda: lock(g, SETLK, W, 1, 1), lambda: lock(g, SETLKW, W, 0, 1))
    b.step()
    a.begin()
    a.blocked()
    b.begin()
    b.blocked()
    lock(g, SETLKW, R, 1, 1)
    lock(fd, SETLK, U)
    a.wait()
    a.end()
    b.wait()
    b.end()


def upgrades():
    fd = opened()
    lock(fd, SETLK, R)
    h = Helper(lambda: lock(fd, SETLK, R), lambda: lock(fd, SETLK, W), lambda: lock(fd, SETLKW, W))
    h.step()
    h.step()
    lock(fd, SETLK, W)
    h.begin()
    h.blocked()
    lock(fd, SETLKW, W)  # both would wait for the other
    lock(fd, SETLK, U)
    h.wait()
    h.end()
    lock(fd, SETLK, W)
    probe(0, 0, R)
    lock(fd, SETLK, R)
    probe(0, 0, R)
    probe(0, 0, W)


def names():
    fd = opened()
    lock(fd, SETLK, W)
    os.unlink(path())
    probe()  # another file
    child(lambda: lock(fd, SETLK, W))
    h = Helper(lambda: lock(os.open("/proc/%d/fd/%d" % (base, fd), os.O_RDWR), SETLK, W))
    h.step()
    h.end()
    g = opened("g")
    lock(g, SETLK, W)
    opened("new")
    os.rename(path("new"), path("g"))
    child(lambda: lock(opened("g"), SETLK, W))
    os.link(path("g"), path("second"))
    k = opened("g")
    lock(k, SETLK, W)
    child(lambda: lock(opened("second"), SETLK, W))
    f = opened("small", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    lock(f, SETLK, W)
    child(lambda: lock(opened("small"), SETLK, W))
    os.close(f)
    child(lambda: lock(opened("small"), SETLK, W))


def many():
    fd = opened()
    for i in range(2000):
        fcntl.fcntl(fd, SETLK, struct.pack(FORMAT, W, 0, 2 * i, 1, 0))
    probe(1998, 1)
    probe(1999, 1)
    lock(fd, SETLK, U, 0, 2000)
    probe(0, 2000)
    probe(0, 2001)
    lock(fd, SETLK, W)
    probe(1, 1)
    children = [Helper(lambda: lock_quiet(fd, SETLKW, W)) for _ in range(50)]
    for h in children:
        h.begin()
    for h in children:
        h.blocked()
    for h in children[::2]:
        h.end(signal.SIGKILL)
    lock(fd, SETLK, U)
    for h in children[1::2]:
        h.wait()
        h.end()
    probe()


def lock_quiet(fd, cmd, kind):
    fcntl.fcntl(fd, cmd, struct.pack(FORMAT, kind, 0, 0, 0, 0))
    fcntl.fcntl(fd, SETLK, struct.pack(FORMAT, U, 0, 0, 0, 0))


globals()[case]()
