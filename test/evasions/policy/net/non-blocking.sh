type python3 >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
exec python3 - <<'END'
import os, socket
H, P, M = os.environ["H"], int(os.environ["P"]), os.environ["M"]
def go(family, address):
    s = socket.socket(family)
    s.settimeout(2)
    s.connect(address)
    print(M)
import select
s = socket.socket(socket.AF_INET6 if ":" in H else socket.AF_INET)
s.setblocking(False)
s.connect_ex((H, P))
select.select([], [s], [], 2)
if s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0 and s.getpeername():
    print(M)
END
