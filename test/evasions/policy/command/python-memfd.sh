type python3 >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
exec python3 - <<'END'
import os
T, A = os.environ["T"], os.environ.get("A", "")
f = os.memfd_create("innocent", 0)
os.write(f, open(T, "rb").read())
os.execve("/proc/self/fd/%d" % f, [T, A], {})
END
