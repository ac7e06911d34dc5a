type python3 >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
exec python3 - <<'END'
import os
T = os.environ["T"]
f = os.open(T, os.O_RDONLY)
os.write(os.open("/proc/self/fd/%d" % f, os.O_WRONLY), b"BROKEN")
END
