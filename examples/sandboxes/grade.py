#!/usr/bin/env python3
"""Grades all solutions in parallel, each in a sandbox of its own: grade.py [KEY=VALUE ...]

The arguments are keys of the specification of a sandbox, as backend=docker image=IMAGE, with a text or JSON as
value: container='{"memory_mb": 512}'. The tests stay outside of
the sandbox until the solution has been put there, and a solution cannot change what another one is graded with.
"""
import concurrent.futures
import json
import pathlib
import sys

from agentsh_sandboxes import Client

HERE = pathlib.Path(__file__).resolve().parent


def grade(client, solution, more):
    box = client.create(policy=str(HERE / "policy.yaml"), labels={"solution": solution.stem}, **more)
    try:
        box.write("roman.py", solution.read_bytes())
        box.write("tests.py", (HERE / "tests.py").read_bytes())
        result = box.run(["python3", "tests.py"], timeout_seconds=10)
    finally:
        box.delete()
    if result["exit_code"] == 0:
        return "passed"
    if result["end"] == "deadline":
        return "failed: it takes too long"
    if result.get("refusals"):
        return "failed: refused " + result["refusals"][-1]["what"]
    return "failed: " + (result["stderr"].strip().splitlines() or ["exit status %d" % result["exit_code"]])[-1]


def value(text):
    return json.loads(text) if text[:1] in "[{0123456789" else text


def main():
    more = {key: value(text) for key, text in (argument.split("=", 1) for argument in sys.argv[1:])}
    solutions = sorted((HERE / "solutions").glob("*.py"))
    with Client() as client, concurrent.futures.ThreadPoolExecutor(len(solutions)) as pool:
        grades = pool.map(lambda solution: grade(client, solution, more), solutions)
        for solution, said in zip(solutions, grades):
            print(solution.stem, said)


if __name__ == "__main__":
    main()
