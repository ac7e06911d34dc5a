type python3 >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
exec python3 - <<'END'
import os
T, A = os.environ["T"], os.environ.get("A", "")
f = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o755)
os.write(f, open(T, "rb").read())
r = os.open("/proc/self/fd/%d" % f, os.O_RDONLY)
os.close(f)
os.execve("/proc/self/fd/%d" % r, [T, A], {})
END
