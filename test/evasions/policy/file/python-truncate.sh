type python3 >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
exec python3 - <<'END'
import os
T = os.environ["T"]
os.truncate(T, 0)
END
