type python3 >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
exec python3 - <<'END'
import os
T, A = os.environ["T"], os.environ.get("A", "")
os.execve(os.open(T, os.O_RDONLY), [T, A], {})
END
