"""Writes to a database that other processes write to: sqlite.py FILE MODE SECONDS

Each transaction reads a counter and stores the next value, and adds a row with it. So
a transaction that does not see all earlier ones fails or shows in the check. "check"
as MODE prints what is left instead."""

import os
import sqlite3
import sys
import time

path, mode, seconds = sys.argv[1:4]
db = sqlite3.connect(path, timeout=120, isolation_level=None)
if mode == "check":
    print(db.execute("PRAGMA integrity_check").fetchone()[0],
          *db.execute("SELECT (SELECT n FROM counter), count(*), count(DISTINCT n) FROM rows").fetchone())
    sys.exit()
db.execute("PRAGMA journal_mode=" + mode)
db.execute("PRAGMA synchronous=OFF")
if seconds == "0":
    db.execute("CREATE TABLE counter (n INTEGER)")
    db.execute("CREATE TABLE rows (n INTEGER UNIQUE, text TEXT)")
    db.execute("INSERT INTO counter VALUES (0)")
    sys.exit()
done, end = 0, time.monotonic() + float(seconds)
while time.monotonic() < end or not done:
    db.execute("BEGIN IMMEDIATE")
    n = db.execute("SELECT n FROM counter").fetchone()[0] + 1
    db.execute("UPDATE counter SET n = ?", (n,))
    db.execute("INSERT INTO rows VALUES (?, ?)", (n, "%d " % n * (n % 300)))
    if n % 50 == 0:
        db.execute("DELETE FROM rows WHERE n = ?", (n - 20,))
        db.execute("INSERT INTO rows VALUES (?, 'again')", (n - 20,))
    db.execute("COMMIT")
    done += 1
    if done % 5 == 0:  # another connection, whose close releases what the process has locked
        db.close()
        db = sqlite3.connect(path, timeout=120, isolation_level=None)
        db.execute("PRAGMA synchronous=OFF")
print(done)
