"""Sandboxes of agentctl, by the protocol of doc/sandboxes.md. Methods may be called from several threads.

    with Client() as client:
        box = client.create(policy="policy.yaml")
        print(box.run(["echo", "hello"])["stdout"])
"""
import base64
import itertools
import json
import queue
import subprocess
import threading


class Failed(Exception):
    """What agentctl answers when something cannot be done."""

    def __init__(self, error):
        super().__init__(error["message"])
        self.code, self.hint = error["code"], error.get("data", {}).get("hint", "")


class Client:
    """Starts agentctl. All sandboxes end with it."""

    def __init__(self, program="agentctl", *arguments):
        self._process = subprocess.Popen([program, "sandbox", "serve", "--stdio", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._ids, self._lock, self._waiting = itertools.count(1), threading.Lock(), {}
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()

    def _read(self):
        for line in self._process.stdout:
            message = json.loads(line)
            if one := self._waiting.get(message.get("id", message.get("params", {}).get("id"))):
                one.put(message)
        for one in list(self._waiting.values()):
            one.put({"error": {"code": 0, "message": "agentctl has ended"}})

    def _send(self, **message):
        with self._lock:
            self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            self._process.stdin.flush()

    def call(self, method, output=None, **params):
        """Calls a method and returns its result. output gets (stream, bytes) as they come, and the command waits for it."""
        number, one, raised = next(self._ids), queue.SimpleQueue(), None
        extra = {"stream": True, "window_bytes": 1 << 20} if output else {}
        self._waiting[number] = one
        self._send(id=number, method=method, params={**params, **extra})
        while "method" in (message := one.get()):
            data = base64.b64decode(message["params"]["data_base64"])
            try:
                raised or output(message["params"]["stream"], data)
            except Exception as error:  # of the caller's function
                raised = error
            self._send(method="taken", params={"id": number, "bytes": len(data)})
        del self._waiting[number]
        if raised or "error" in message:
            raise raised or Failed(message["error"])
        return message["result"]

    def create(self, **spec):
        return Sandbox(self, self.call("create", **spec))


class Sandbox:
    """One sandbox."""

    def __init__(self, client, made):
        self._client, self.made, self.id = client, made, made["sandbox"]

    def call(self, method, output=None, **params):
        return self._client.call(method, output, sandbox=self.id, **params)

    def run(self, command, output=None, **more):
        """Runs a script, or a list of program and arguments."""
        return self.call("exec", output, **{"script" if isinstance(command, str) else "argv": command}, **more)

    def read(self, path):
        got = self.call("read", path=path)
        return base64.b64decode(got["data_base64"]) if "data_base64" in got else got.get("text", "").encode()

    def write(self, path, data, mode=0o644):
        self.call("write", path=path, data_base64=base64.b64encode(data).decode(), mode=mode)

    def snapshot(self, name=""):
        return self.call("snapshot", name=name)["id"]

    def rollback(self, snapshot):
        return self.call("rollback", id=snapshot)["changes"]

    def delete(self):
        self.call("delete")
