type python3 >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
exec python3 - <<'END'
import os
T, A = os.environ["T"], os.environ.get("A", "")
import os, threading
t = threading.Thread(target=os.execv, args=(T, [T, A]))
t.start()
t.join()
END
