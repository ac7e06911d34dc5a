"""Answers the questions of policies with approvals: {via: webhook}.

    server.py KEY_FILE PORT PROGRAM ...     allows commands whose program is one of these paths, as /usr/bin/make

The path is that of the file. argv[0] is a text that a command chooses for itself. The port is printed; 0 is any free one.
"""
import base64, hashlib, hmac, http.server, json, sys, time

secret = base64.b64decode(open(sys.argv[1]).read().strip().removeprefix("whsec_"))


def sign(id, at, body):
    code = hmac.new(secret, f"{id}.{at}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(code).decode()


class Approver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        id, at = self.headers["Webhook-Id"], self.headers["Webhook-Timestamp"]
        if abs(time.time() - int(at)) > 300 or not hmac.compare_digest(sign(id, at, body), self.headers["Webhook-Signature"]):
            return self.send_error(401)
        question = json.loads(body)["question"]
        allowed = question["kind"] == "exec" and question["subject"] in sys.argv[3:]
        answer = {"type": "approval.answer", "decision": "allow" if allowed else "deny", "by": "server.py"}
        out, now = json.dumps(answer).encode(), str(int(time.time()))
        self.send_response(200)
        for name, value in ("Id", id), ("Timestamp", now), ("Signature", sign(id, now, out)):
            self.send_header("Webhook-" + name, value)
        self.end_headers()
        self.wfile.write(out)


server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Approver)
print(server.server_port, flush=True)
server.serve_forever()
