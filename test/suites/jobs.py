#!/usr/bin/env python3
"""Job control of a shell on a terminal: what POSIX says of set -m, typed by a person.

Usage: jobs.py SHELL [CASE ...]        jobs.py list

Each case runs a new interactive shell on a pseudoterminal and waits for what it prints.
The transcript is the same on every machine: numbers of processes are replaced. A line
"step NAME ok" or "step NAME failed" ends each case; the latter when the shell did not print
what the case waits for. See XCU 2.9.3.1 and the utilities bg, fg, jobs, kill and wait.
"""
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

LIMIT = 120  # seconds: the shell hangs

# A program that says that it runs, so that keys reach it and not the shell.
CAT = "sh -c 'echo ready; exec cat'"
SLEEP = "sh -c 'echo ready; exec sleep 1000'"
TRAPS = "sh -c 'trap \"echo int\" INT; echo ready; read x; echo \"read $?\"; exit 3'"
Z, C, QUIT, EOF = "\x1a", "\x03", "\x1c", "\x04"

# A line is typed, and its prompt awaited. A pair is typed, and then its pattern awaited.
CASES = {
    "stop-and-resume": [(SLEEP, "ready"), Z, "jobs", ("fg", "sleep"), C, "jobs"],
    "stop-and-background": [(SLEEP, "ready"), Z, "bg", "jobs", "kill %1", "wait %1"],
    "interrupt": [(SLEEP, "ready"), C],
    "quit": [(SLEEP, "ready"), QUIT],
    "interrupt-of-a-pipeline": [("sh -c 'echo ready; exec sleep 1000' | cat", "ready"), C],
    "stop-of-a-pipeline": [("sh -c 'echo ready >&2; exec sleep 1000' | cat", "ready"), Z, "jobs", ("fg", "cat"), C],
    "stop-of-three": [("sleep 1000 | sh -c 'echo ready >&2; exec cat' | cat", "ready"), Z, "bg", "kill -9 %1", "wait %1"],
    "trapped-interrupt": [(TRAPS, "ready"), (C, "int"), "typed"],
    "wait-status": ["sh -c 'exit 7' & wait $!", "sh -c 'kill -TERM $$' & wait $!", "wait 99999999"],
    "wait-for-a-job": ["sleep 1000 &", "kill -USR1 %1; wait %1", "jobs"],
    "wait-is-interrupted": ["sleep 1000 &", ("wait", None), C, "kill %1; wait %1"],
    "two-jobs": ["sleep 1001 &", "sleep 1002 &", "jobs", "kill %1; wait %1", "kill %2; wait %2", "jobs"],
    "job-names": ["sleep 1001 &", "sleep 1002 &", "kill %-; wait %-", "kill %+; wait %+", "kill %7"],
    "job-by-prefix": ["sleep 1001 &", "kill %sle; wait %1"],
    "stop-by-signal": ["sleep 1000 &", "kill -STOP %1; sh -c 'while ! grep -qE \"^State:.[tT]\" /proc/$0/status; do :; done' $!",
                       "jobs", "kill -CONT %1; kill %1; wait %1"],
    "read-in-background": ["cat &", ("sh -c 'while ! grep -qE \"^State:.[tT]\" /proc/$0/status; do :; done' $!", None),
                           "jobs", ("fg", "cat"), ("line", "line\r\nline"), EOF, "jobs"],
    "write-with-tostop": ["stty tostop", "sh -c 'echo written' &",
                          "sh -c 'while ! grep -qE \"^State:.[tT]\" /proc/$0/status; do :; done' $!", "jobs", "fg"],
    "set-terminal-in-background": ["sh -c 'stty tostop; echo set' &",
                                   "sh -c 'while ! grep -qE \"^State:.[tT]\" /proc/$0/status; do :; done' $!", "jobs", "fg", "stty -tostop"],
    "stop-twice": [(SLEEP, "ready"), Z, ("fg", "sleep"), Z, ("fg", "sleep"), Z, "kill -9 %1; wait %1"],
    "cat-goes-on": [(CAT, "ready"), ("one", "one\r\none"), Z, ("fg", "cat"), ("two", "two\r\ntwo"), EOF],
    "group-of-a-job": ["sleep 1000 & test $(ps -o pgid= -p $!) -eq $! && echo own", "kill %1; wait %1"],
    "foreground-group": ["sh -c 'test $(ps -o tpgid= -p $$) -eq $(ps -o pgid= -p $$) && echo foreground'",
                         "sh -c 'test $(ps -o tpgid= -p $$) -ne $(ps -o pgid= -p $$) && echo background' & wait"],
    "without-monitor": ["set +m", "sleep 1000 & test $(ps -o pgid= -p $!) -eq $(ps -o pgid= -p $$) && echo shared",
                        "kill $!; wait $!", "set -m"],
    "subshell": [("( sh -c 'echo ready; exec sleep 1000'; echo after )", "ready"), Z, "jobs", ("fg", "sleep"), C],
    "command-substitution": [("x=$(sh -c 'echo ready >&2; exec sleep 1000'; echo after)", "ready"), C, "echo \"<$x>\""],
    "trap-of-the-shell": ["trap 'echo got' USR1", "kill -USR1 $$", "trap - USR1", "kill -0 $$"],
    "trap-while-waiting": ["trap 'echo got' USR1", "sleep 1000 & sh -c \"kill -USR1 $$\"; kill %1; wait %1"],
    "exit-with-stopped-jobs": [(SLEEP, "ready"), Z, "exit", "kill -9 %1; wait %1"],
    "nested-shell": [("NESTED", None), "echo inner", (SLEEP, "ready"), Z, "jobs", ("fg", "sleep"), C, "exit 5"],
    "suspended-shell": [("NESTED", None), "kill -STOP $$", "jobs", ("fg", None), "echo inner", "exit 6"],
    "exec": ["exec 3>&1; echo to-3 >&3; exec 3>&-", ("exec sh -c 'echo replaced; exec cat'", "replaced"), ("text", "text\r\ntext")],
    "hangup": ["trap 'echo bye' EXIT", "sleep 1000 &", "HANGUP"],
    "and-or": ["sh -c 'exit 1' || echo or; true && echo and", "! true", "false | true", "true | sh -c 'exit 4'"],
    "signal-statuses": ["sh -c 'kill -HUP $$'", "sh -c 'kill -KILL $$'", "sh -c 'kill -PIPE $$'", "sh -c 'kill -ALRM $$'", "sh -c 'kill -RTMIN $$'"],
    "many-jobs": ["i=0; while [ $i -lt 30 ]; do sleep 1000 & i=$((i+1)); done 2>/dev/null",
                  "kill $(jobs -p); wait; echo all", "jobs"],
    "background-of-a-list": ["{ sleep 1000; echo never; } &", "kill %1; wait %1"],
}
