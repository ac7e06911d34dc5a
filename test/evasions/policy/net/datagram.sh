type python3 >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
exec python3 - <<'END'
import os, socket
H, P, M = os.environ["H"], int(os.environ["P"]), os.environ["M"]
def go(family, address):
    s = socket.socket(family)
    s.settimeout(2)
    s.connect(address)
    print(M)
s = socket.socket(socket.AF_INET6 if ":" in H else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(1)
s.sendto(b"x", (H, P))
if s.recvfrom(100):
    print(M)
END
