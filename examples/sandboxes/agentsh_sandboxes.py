"""Sandboxes of agentctl, by the protocol of doc/sandboxes.md. Methods may be called from several threads.

    with Client() as client:
        box = client.create(policy="policy.yaml")
        print(box.run(["echo", "hello"])["stdout"])
"""
import base64
import itertools
import json
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
        command = [program, "sandbox", "serve", "--stdio", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
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
            params = message.get("params", {})
            if message.get("method") == "output" and (one := self._waiting.get(params["id"])):
                try:
                    one["raised"] or one["output"](params["stream"], base64.b64decode(params["data_base64"]))
                except Exception as error:  # of the caller's function: call raises it
                    one["raised"] = error
            elif one := self._waiting.pop(message.get("id"), None):
                one["answer"] = message
                one["done"].set()
        for one in list(self._waiting.values()):
            one["answer"] = {"error": {"code": 0, "message": "agentctl has ended"}}
            one["done"].set()

    def call(self, method, output=None, **params):
        """Calls a method and returns its result."""
        number, one = next(self._ids), {"done": threading.Event(), "output": output, "raised": None}
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        with self._lock:
            self._waiting[number] = one
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        one["done"].wait()
        failed = one["raised"] or "error" in one["answer"] and Failed(one["answer"]["error"])
        if failed:
            raise failed
        return one["answer"]["result"]

    def create(self, **spec):
        return Sandbox(self, self.call("create", **spec))


class Sandbox:
    """One sandbox."""

    def __init__(self, client, made):
        self._client, self.made, self.id = client, made, made["sandbox"]

    def call(self, method, output=None, **params):
        return self._client.call(method, output, sandbox=self.id, **params)

    def run(self, command, output=None, **more):
        """Runs a script, or a list of program and arguments. output gets (stream, bytes) as they come."""
        name = "script" if isinstance(command, str) else "argv"
        return self.call("exec", output, stream=output is not None, **{name: command}, **more)

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
