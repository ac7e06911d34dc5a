#!/usr/bin/env python3
"""Job control of a shell on a terminal, typed as by a person.

Usage: jobs.py SHELL [CASE ...]

Each case runs a new interactive shell on a pseudoterminal, in a directory of its own. It
types the next line only when the shell, or the program in the foreground, has printed that
it is there. So the transcript is the same each time. It is printed, and after it a line "step
NAME" with its digest or "hangs". What a shell reports of its own accord is left out, because
it comes at one prompt or the next one; "jobs" shows it. See POSIX: XCU 2.9.3.1, 2.11, and
the utilities bg, fg, jobs, kill and wait.
"""
import hashlib
import os
import pty
import re
import resource
import select
import signal
import sys
import tempfile
import termios

LIMIT = int(os.environ.get("JOBS_SECONDS", "120"))  # seconds until a shell hangs
PROMPT = re.compile(r"\[\d+\]\$ $")
PROGRAMS = {
    "dash": ["dash", "-i"],
    "bash": ["bash", "--norc", "--noprofile", "--noediting", "-i"],
    "busybox": ["busybox", "sh", "-i"],
}

STOP, INTERRUPT, QUIT, END, HANGUP = "\x1a", "\x03", "\x1c", "\x04", "hangup"

# Programs for the foreground. They print "ready" when keys reach them and not the shell. cat
# shows by a line that it runs again.
CAT = "sh -c 'echo ready; exec cat'"
SLEEP = "sh -c 'echo ready; exec sleep 1000'"
TRAP = "sh -c 'trap \"echo trapped; exit 3\" INT; echo ready; while :; do :; done'"
# One for the background: the shell goes on when it runs.
BACK = "sh -c 'echo >f; exec sleep 1000' & read r <f"
# JOBS marks what jobs prints. STOPPED ends when a job has stopped.
JOBS = "jobs >o; sed 's/^/jobs: /' o"
STOPPED = "until jobs >o; grep -q -e Stopped -e suspended o; do :; done"
GROUP = "$(ps -o pgid= -p %s)"

# A text is typed, and the shell's prompt awaited. A pair is typed, and its second part awaited.
CASES = {
    "stop and resume": [(CAT, "ready"), STOP, JOBS, ("fg", "cat"), ("on", "on"), INTERRUPT, JOBS],
    "stop and resume twice": [(CAT, "ready"), STOP, ("fg", "cat"), ("on", "on"), STOP, ("fg", "cat"), ("more", "more"), INTERRUPT],
    "stop and background": [(SLEEP, "ready"), STOP, "bg", JOBS, "kill %1; wait %1"],
    "interrupt": [(SLEEP, "ready"), INTERRUPT],
    "quit": [(SLEEP, "ready"), QUIT],
    "trapped interrupt": [(TRAP, "ready"), INTERRUPT],
    "interrupt of a pipeline": [(SLEEP + " | cat", "ready"), INTERRUPT],
    "stop of a pipeline": [(CAT + " | cat", "ready"), STOP, JOBS, ("fg", "cat"), ("on", "on"), INTERRUPT],
    "stop of three": [(SLEEP + " | sh -c 'read x; echo $x; exec cat' | cat", "ready"), STOP, JOBS, "bg", "kill -9 %1; wait %1"],
    "line by line": [(CAT, "ready"), ("one", "one"), STOP, ("fg", "cat"), ("two", "two"), END],
    "a program that stops itself": ["sh -c 'kill -STOP $$; echo resumed; exit 4'", JOBS, "fg"],
    "stop by signal": [BACK, "kill -STOP %1; " + STOPPED, JOBS, "bg", "kill %1; wait %1"],
    "end in the background": ["sh -c 'kill -STOP $$; exit 5'", "bg; wait %1"],
    "read in the background": ["cat & " + STOPPED, JOBS, ("fg", "cat"), ("line", "line"), END, JOBS],
    "write in the background": ["stty tostop", "sh -c 'echo written; exit 6' & " + STOPPED, JOBS, "fg", "stty -tostop"],
    "set in the background": ["sh -c 'stty tostop; echo set' & " + STOPPED, JOBS, "fg", "stty -tostop"],
    "statuses of wait": ["sh -c 'exit 7' & wait $!", "sh -c 'kill -TERM $$' & wait $!", "wait 99999999"],
    "statuses of signals": ["sh -c 'kill -%s $$'" % s for s in ("HUP", "KILL", "PIPE", "ALRM", "USR1", "TERM")],
    "statuses of lists": ["sh -c 'exit 1' || echo or; true && echo and", "! true", "false | true", "true | sh -c 'exit 4'"],
    "wait for a job": [BACK, "kill -USR1 %1; wait %1", JOBS, "wait %1"],
    "two jobs": [BACK, BACK.replace("f", "g"), JOBS, "kill %1; wait %1", JOBS, "kill %+; wait"],
    "job by name": [BACK, "kill %sh; wait %1", "kill %7", "fg %7"],
    "many jobs": ["i=0; while [ $i -lt 30 ]; do sleep 1000 & i=$((i+1)); done", "jobs -p >p; kill -9 $(cat p); wait; echo all", JOBS],
    "list in the background": ["{ sh -c 'echo >f; exec sleep 1000'; echo never; } & read r <f", "kill -9 %1; wait %1"],
    "group of a job": [BACK + "; test " + GROUP % "$!" + " -eq $! && echo own", "kill %1; wait %1"],
    "group without monitor": ["set +m", BACK + "; test " + GROUP % "$!" + " -eq " + GROUP % "$$" + " && echo shared", "kill $!; wait $!"],
    "foreground group": [
        "sh -c 'test $(ps -o tpgid= -p $$) -eq $(ps -o pgid= -p $$) && echo foreground'",
        "sh -c 'test $(ps -o tpgid= -p $$) -ne $(ps -o pgid= -p $$) && echo background' & wait",
    ],
    "command substitution": [("x=$(sh -c 'echo ready >&2; exec sleep 1000'; echo after)", "ready"), INTERRUPT, 'echo "<$x>"'],
    "trap of the shell": ["trap 'echo got' USR1", "kill -USR1 $$", "sh -c \"kill -USR1 $$\"", "trap - USR1"],
    "exit with stopped jobs": [(CAT, "ready"), STOP, "exit", ("fg", "cat"), ("on", "on"), INTERRUPT],
    "shell in a shell": ["SHELL", "echo inner", (CAT, "ready"), STOP, JOBS, ("fg", "cat"), ("on", "on"), INTERRUPT, "exit 5"],
    "shell that stops itself": ["SHELL", "kill -STOP $$", JOBS, "fg", "echo inner", "exit 6"],
    "exec": ["exec 3>&1; echo to-3 >&3; exec 3>&-", ("exec sh -c 'echo replaced; exec cat'", "replaced"), ("text", "text")],
    "hangup": [(SLEEP, "ready"), HANGUP],
}


class Terminal:
    """A shell on a terminal."""

    def __init__(self, argv):
        self.text, self.seen = "", 0
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            for s in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(s, signal.SIG_DFL)  # Python ignores them
            mode = termios.tcgetattr(0)
            mode[3] &= ~termios.ECHO
            termios.tcsetattr(0, termios.TCSANOW, mode)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.execvpe(argv[0], argv, {"PATH": os.environ["PATH"], "PS1": "[$?]$ ", "PS2": "> ", "TERM": "dumb", "LC_ALL": "C"})

    def read(self):
        """Adds what was printed; False: nobody has the terminal any more."""
        if not select.select([self.master], [], [], LIMIT)[0]:
            raise TimeoutError
        try:
            data = os.read(self.master, 4096)
        except OSError:
            data = b""
        self.text += data.decode("latin-1")
        return bool(data)

    def type(self, keys, awaited):
        """Types a line or a key, and waits for a text, or for the prompt."""
        self.seen = len(self.text)
        os.write(self.master, (keys if keys in (STOP, INTERRUPT, QUIT, END) else keys + "\n").encode())
        while not (awaited in self.text[self.seen:] if awaited else PROMPT.search(self.text, self.seen)):
            if not self.read():
                raise EOFError

    def end(self):
        """Ends the shell and returns how."""
        if self.master >= 0:
            os.write(self.master, END.encode())
            while self.read():
                pass
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if self.master >= 0:
            os.close(self.master)
        return status


# Reports of jobs: "[1]+  Stopped  cat", "[1] 4711", and dash's "Killed" alone.
REPORT = re.compile(r"(\[\d+\] ?[-+]? *(\d+|Stopped|Killed|Terminated|Done|Running|Exit|User|Suspended)\b.*|Killed|Terminated|User defined signal 1|)$")


def plain(text):
    """The lines of a terminal without reports."""
    lines = re.sub(r"(\[\d+\]\$) ", r"\1\n", text).replace("\r", "").split("\n")
    return "\n".join(line for line in lines if not REPORT.match(line))


def transcript(argv, steps):
    """What the terminal shows, and how it went."""
    shell = Terminal(argv)
    try:
        while not PROMPT.search(shell.text):
            if not shell.read():
                raise EOFError
        for step in steps:
            if step == HANGUP:
                os.close(shell.master)
                shell.master = -1
            elif isinstance(step, tuple):
                shell.type(*step)
            else:
                shell.type(step.replace("SHELL", " ".join(argv)), "")
        status = shell.end()
    except (TimeoutError, EOFError) as problem:
        os.kill(shell.pid, signal.SIGKILL)
        return shell.text, "hangs" if isinstance(problem, TimeoutError) else "ends"
    text = plain(shell.text) + "\n<%d>" % status
    return text, hashlib.sha256(text.encode("latin-1")).hexdigest()[:12]


def main():
    """Runs the cases."""
    argv = PROGRAMS[sys.argv[1]]
    for name in sys.argv[2:] or CASES:
        with tempfile.TemporaryDirectory() as top:
            os.chdir(top)
            os.mkfifo("f")
            os.mkfifo("g")
            text, result = transcript(argv, CASES[name])
            os.chdir("/")
        print("".join("  " + line + "\n" for line in text.split("\n")), end="")
        print("step", name.replace(" ", "-"), result, flush=True)


main()
