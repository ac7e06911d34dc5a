#!/bin/bash
# smoke.sh at Modal, by a WebSocket. Needs PyPI's modal with a token (modal token new), and agentsh
# of this release in bin. VM=1 asks for the virtual machine runtime. Not tried.
# shellcheck disable=SC1091,SC2154 # lib.sh
set -euo pipefail
id=
remove() {
	[ -n "$id" ] || id=$(sed -n 1p "$dir/sandbox" 2>/dev/null || :)
	[ -z "$id" ] || python3 -c 'import modal, sys; modal.Sandbox.from_id(sys.argv[1]).terminate()' "$id"
}
. "$(dirname "$0")/lib.sh"
needs python3 python:modal modal
built agentsh
place_key
# Prints the sandbox as soon as it exists, then the address. The token is in the address.
python3 - "$here/Dockerfile" "$root/bin/agentsh" "$dir/place.key" "$name" >"$dir/sandbox" <<'PY'
import os, sys, modal
dockerfile, agentsh, key, name = sys.argv[1:]
image = (modal.Image.from_dockerfile(dockerfile)
         .add_local_file(agentsh, "/usr/bin/agentsh", copy=True)
         .run_commands("chmod 755 /usr/bin/agentsh"))
app = modal.App.lookup("agentsh-smoke", create_if_missing=True)
more = {"experimental_options": {"vm_runtime": True}} if os.environ.get("VM") else {}
serve = "umask 077; printf %s \"$PLACE_KEY\" >/root/place.key; unset PLACE_KEY; " \
        "exec agentsh serve --listen ws:0.0.0.0:8080 --key /root/place.key"
sandbox = modal.Sandbox.create("sh", "-c", serve, app=app, image=image, timeout=1800,
                               secrets=[modal.Secret.from_dict({"PLACE_KEY": open(key).read()})], **more)
print(sandbox.object_id, flush=True)
made = sandbox.create_connect_token(user_metadata={"run": name})
print(made.url.replace("https://", "wss://").rstrip("/") + "/?_modal_connect_token=" + made.token)
PY
id=$(sed -n 1p "$dir/sandbox")
PLACE_SHELL="modal container exec --no-pty $id sh" \
	"$here/smoke.sh" socket "$(sed -n 2p "$dir/sandbox")" --connect-key "$dir/place.key"
