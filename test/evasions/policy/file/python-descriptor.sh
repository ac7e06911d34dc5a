type python3 >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
exec python3 - <<'END'
import os
T = os.environ["T"]
d = os.open(os.path.dirname(T), os.O_RDONLY)
print(os.read(os.open(os.path.basename(T), os.O_RDONLY, dir_fd=d), 65536).decode("latin1"))
END
