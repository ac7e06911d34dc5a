#!/usr/bin/env python3
"""Runs a script of standard input in the Blaxel sandbox $name, by the process API of bl."""
import json, os, subprocess, sys

body = {"command": sys.stdin.read(), "waitForCompletion": True}
out = subprocess.run(
    ["bl", "run", "sandbox", os.environ["name"], "--path", "/process", "--data", json.dumps(body)],
    check=True, capture_output=True, text=True,
).stdout
print(out)
