type python3 >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
exec python3 - <<'END'
import os
T = os.environ["T"]
import ctypes, os
open("new", "w").write("BROKEN")
l = ctypes.CDLL(None)
l.renameat2(-100, b"new", -100, T.encode(), 2)
print(open("new").read())
END
