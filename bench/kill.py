#!/usr/bin/env python3
"""Kills supervisors under load and measures until nothing of their sessions is left.

Usage: kill.py AGENTSH POLICY ROUNDS [FLAG ...]

Each round opens a session with the flags, runs eight commands that write files and
start programs, and a thousand processes of a ninth. Then the supervisor gets SIGKILL.
"""
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time

BUSY = "while :; do echo x >f{0}; cat f{0}; /bin/true; done >/dev/null"
MANY = "i=0; while [ $i -lt 1000 ]; do sleep 1000 & i=$((i+1)); done; echo ready; wait"


def parents():
    """The parent of each process."""
    out = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                out[int(entry)] = int(stat.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass  # it has ended
    return out


def below(parent, top):
    """The processes that descend from one."""
    def inside(pid):
        while pid in parent:
            if pid == top:
                return True
            pid = parent[pid]
        return False
    return [pid for pid in parent if inside(pid)]


def measure(agentsh, policy, flags):
    """Returns the seconds from the signal to the end of the last process, and their number."""
    with tempfile.TemporaryDirectory() as top:
        env = dict(os.environ, XDG_RUNTIME_DIR=f"{top}/run", XDG_STATE_HOME=f"{top}/state")
        for name in ("run", "work"):
            os.mkdir(f"{top}/{name}")
        os.chmod(top, 0o755)

        def run(*args):
            return subprocess.run([agentsh, *args], env=env, check=True, capture_output=True, text=True).stdout

        def start(script):
            return subprocess.Popen([agentsh, "exec", "-s", "k", "--", "sh", "-c", script], env=env,
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

        run("session", "create", "-p", policy, "-w", f"{top}/work", "--name", "k", *flags)
        session = json.loads(run("session", "list", "--json"))[0]
        clients = [start(BUSY.format(i)) for i in range(8)] + [start(MANY)]
        if clients[-1].stdout.readline() != "ready\n":
            sys.exit("kill.py: the processes did not start")
        pids = set(below(parents(), session["parts"][0])) | set(session["parts"]) | {session["pid"]}
        poll, left = select.poll(), 0
        for pid in pids:
            try:
                poll.register(os.pidfd_open(pid), select.POLLIN)
                left += 1
            except OSError:
                pass  # one of a busy command that has ended
        begin = time.monotonic()
        os.kill(session["pid"], signal.SIGKILL)
        while left:
            for fd, _ in poll.poll():
                poll.unregister(fd)
                os.close(fd)
                left -= 1
        took = time.monotonic() - begin
        for client in clients:
            client.wait()
            client.stdout.close()
        return took, len(pids)


def main():
    agentsh, policy, rounds, flags = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    took = []
    for _ in range(rounds):
        seconds, processes = measure(os.path.abspath(agentsh), os.path.abspath(policy), flags)
        took.append(seconds)
        print(f"{seconds * 1000:6.0f} ms for {processes} processes", flush=True)
    print(f"median {statistics.median(took) * 1000:.0f} ms, maximum {max(took) * 1000:.0f} ms")


main()
