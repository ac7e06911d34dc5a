#!/bin/bash
# Each vendor's script deletes its sandbox if something fails after it was made. The vendors' programs
# are doubles that log their arguments; agentctl is false.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d /var/tmp/agentsh-deletes.XXXXXX)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$work/lib"
for program in e2b rli daytona bl curl openshell modal; do
	cat >"$work/bin/$program" <<-'EOF'
		#!/bin/bash
		echo "${0##*/} $*" >>"$LOG"
		case "${0##*/} $*" in
		"e2b sandbox create"*) echo "Sandbox created with ID made-1 using template x" ;;
		"rli devbox create"*) echo made-1 ;;
		"rli devbox ssh"*) printf 'Host made-1\n  StrictHostKeyChecking no\n' ;;
		"daytona info"*) echo '{"id": "made-1"}' ;;
		"openshell sandbox ssh-config"*) printf 'Host openshell-made-1\n  User sandbox\n' ;;
		"bl token"*) echo token ;;
		curl*) echo '{"spec": {"url": "https://made-1.example"}}' ;;
		esac
		[ "${FAIL:-}" != "${0##*/} $1" ] || exit 1
	EOF
	chmod +x "$work/bin/$program"
done
printf '#!/bin/sh\nexit 0\n' >"$work/bin/ssh" && chmod +x "$work/bin/ssh"
cat >"$work/lib/modal.py" <<'EOF'
import os
def log(text): open(os.environ["LOG"], "a").write(text + "\n")
class Any:
    def __getattr__(self, name): return lambda *a, **k: self
Image = App = Secret = Any()
class Made:
    url, token = "https://made-1.example", "token"
class Sandbox:
    object_id = "made-1"
    @staticmethod
    def create(*a, **k): return Sandbox()
    @staticmethod
    def from_id(id): log("modal from_id " + id); return Sandbox()
    def create_connect_token(self, **k):
        if os.environ.get("FAIL") == "modal token": raise RuntimeError("no token")
        return Made()
    def terminate(self): log("modal terminate")
EOF
export PATH=$work/bin:$PATH PYTHONPATH=$work/lib LOG=$work/log
export E2B_API_KEY=k RUNLOOP_API_KEY=k DAYTONA_API_KEY=secret TEMPLATE=t BLUEPRINT=b IMAGE=i POLICY=p AGENTCTL=/bin/false
failed=0
# check VENDOR WANTED [STEP THAT FAILS]
check() {
	: >"$LOG"
	FAIL=${3:-} "$here/$1.sh" >"$work/out" 2>&1 </dev/null
	local status=$?
	local verdict=ok
	grep -q "^$2" "$LOG" || verdict="FAIL: nothing deletes"
	[ $status -ne 0 ] || verdict="FAIL: it succeeded"
	! grep -q secret "$LOG" || verdict="FAIL: a secret in arguments"
	! compgen -G '/var/tmp/agentsh-platform.*' >/dev/null || verdict="FAIL: files stay"
	printf '%-8s %-12s %s\n' "$1" "${3:-smoke}" "$verdict"
	[ "$verdict" = ok ] || { failed=$((failed + 1)); cat "$work/out" "$LOG"; }
}
check e2b 'e2b sandbox kill made-1'
check runloop 'rli devbox shutdown made-1'
check daytona 'daytona delete agentsh-'
check daytona 'daytona delete agentsh-' 'daytona create'
check blaxel 'bl delete sandbox agentsh-'
check blaxel 'bl delete sandbox agentsh-' 'bl deploy'
check openshell 'openshell sandbox delete a-'
check openshell 'openshell sandbox delete a-' 'openshell sandbox'
check modal 'modal terminate'
check modal 'modal terminate' 'modal token'
[ $failed = 0 ]
