type python3 >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
exec python3 - <<'END'
import os
T = os.environ["T"]
f = os.open(T, os.O_RDONLY)
g = os.open("out", os.O_RDWR | os.O_CREAT)
os.copy_file_range(f, g, 65536)
os.lseek(g, 0, 0)
print(os.read(g, 65536).decode("latin1"))
END
