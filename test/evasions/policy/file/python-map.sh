type python3 >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
exec python3 - <<'END'
import os
T = os.environ["T"]
import mmap, os
f = os.open(T, os.O_RDONLY)
print(mmap.mmap(f, 0, prot=mmap.PROT_READ)[:].decode("latin1"))
END
