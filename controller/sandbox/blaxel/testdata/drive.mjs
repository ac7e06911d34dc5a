// The vendor's library does with the double what the backend does with Blaxel.
import assert from "node:assert/strict";
import { ImageInstance, SandboxInstance } from "@blaxel/core";

const name = "sdk-1", image = "blaxel/base-image:latest", region = process.env.BL_REGION;
await assert.rejects(SandboxInstance.create({ name, image, region: "moon" }), { code: "INVALID_REGION" });
await assert.rejects(SandboxInstance.create({ name, image: "none", region }), { code: "IMAGE_NOT_FOUND" });
const box = await SandboxInstance.create({
  name, image, region, memory: 4096, labels: { "agentsh-run": "sdk" }, extraArgs: { landlock: "enabled" },
  ports: [{ name: "agentsh", target: 7000, protocol: "HTTP" }],
  lifecycle: { expirationPolicies: [{ type: "ttl-idle", value: "30m", action: "delete" }] },
});
assert.equal(box.metadata.name, name);
assert.equal((await SandboxInstance.get(name)).status, "DEPLOYED");
await assert.rejects(SandboxInstance.create({ name, image, region }), { code: "SANDBOX_ALREADY_EXISTS" });

const done = await box.process.exec({ command: "echo out; echo err >&2; exit 3", waitForCompletion: true });
assert.deepEqual([done.status, done.exitCode, done.stdout, done.stderr], ["failed", 3, "out\n", "err\n"]);

const large = Buffer.alloc(11 << 20, "0123456789abcdef");
await box.fs.writeBinary("/opt/agentsh/large", large);
await box.fs.writeBinary("/opt/agentsh/small", Buffer.from("small\n"));
const sums = await box.process.exec({ command: "sha256sum </opt/agentsh/large; cat /opt/agentsh/small", waitForCompletion: true });
const { createHash } = await import("node:crypto");
assert.equal(sums.stdout, createHash("sha256").update(large).digest("hex") + "  -\nsmall\n");
assert.equal(await box.fs.read("/opt/agentsh/small"), "small\n");

const server = "import http.server as h\nclass H(h.BaseHTTPRequestHandler):\n def do_GET(s):\n  s.send_response(200); s.end_headers(); s.wfile.write(str(s.headers.get('x-blaxel-authorization')).encode())\nh.HTTPServer(('', 7000), H).serve_forever()";
await box.fs.write("/opt/agentsh/server.py", server);
const running = await box.process.exec({ name: "server", command: "exec python3 /opt/agentsh/server.py", keepAlive: true, timeout: 0 });
assert.equal(running.status, "running");
assert.equal((await box.process.get("server")).status, "running");
let answer;
for (let i = 0; i < 100 && !answer?.ok; i++) {
  answer = await box.fetch(7000, "/");
  if (!answer.ok) await new Promise((resolve) => setTimeout(resolve, 100));
}
assert.equal(await answer.text(), "None"); // the key stays outside of the machine


const preview = await box.previews.create({ metadata: { name: "place" }, spec: { port: 7000, public: false } });
assert.equal((await fetch(preview.spec.url)).status, 401);
const token = await preview.tokens.create(new Date(Date.now() + 3600e3));
assert.equal(token.expired, false);
const headers = { "X-Blaxel-Preview-Token": token.value };
assert.equal((await fetch(preview.spec.url, { headers })).status, 200);
assert.equal((await fetch(preview.spec.url + "/?bl_preview_token=" + token.value)).status, 200);
const ended = await preview.tokens.create(new Date(Date.now() - 1000));
assert.equal((await fetch(preview.spec.url, { headers: { "X-Blaxel-Preview-Token": ended.value } })).status, 401);
assert.deepEqual((await preview.tokens.list()).map((one) => one.expired), [false, true]);
await preview.tokens.delete(token.previewToken.metadata.name);
assert.equal((await fetch(preview.spec.url, { headers })).status, 401);
const open = await box.previews.createIfNotExists({ metadata: { name: "open" }, spec: { port: 7000, public: true } });
assert.equal((await fetch(open.spec.url)).status, 200);
assert.deepEqual((await box.previews.list()).map((one) => one.name).sort(), ["open", "place"]);
await box.previews.delete("open");
assert.equal((await fetch(open.spec.url)).status, 401);

await SandboxInstance.create({ name: "sdk-2", image, region });
await SandboxInstance.create({ name: "sdk-3", image, region });

// A sandbox without connections stands by, unless a process has keepAlive. It goes on when it is asked.
const idle = await SandboxInstance.get("sdk-2");
const counter = await idle.process.exec({ command: "while :; do :; done" });
const until = async (state) => {
  for (;;) if ((await SandboxInstance.get("sdk-2")).sandbox.state === state) return;
};
await until("STANDBY");
assert.equal((await idle.process.get(counter.pid)).status, "running");
await until("RUNNING");
await until("STANDBY");
assert.equal((await SandboxInstance.get(name)).sandbox.state, "RUNNING");
assert.equal((await idle.process.kill(counter.pid)).status, "killed");

// The answer comes when the port is open, and a process ends after its time.
await box.process.exec({ command: "sleep 1; exec python3 -m http.server 7001", waitForPorts: [7001] });
assert.equal((await box.fetch(7001, "/")).status, 200);
const late = await box.process.exec({ command: "sleep 600", timeout: 1, waitForCompletion: true });
assert.equal(late.status, "killed");

const names = [];
for await (const one of await SandboxInstance.list()) names.push(one.metadata.name);
assert.deepEqual(names, ["sdk-1", "sdk-2", "sdk-3"]);

const { writeFileSync } = await import("node:fs");
const local = process.env.HOME + "/hello.txt";
writeFileSync(local, "hello\n");
for (let i = 1; i <= 2; i++) { // the second build has the sandbox DEPLOYED before it begins
  const seen = [];
  const app = await ImageInstance.fromRegistry("node:22").addLocalFile(local, "/hello.txt").build({ name: "sdk-image", onStatusChange: (s) => seen.push(s) });
  assert.equal(app.spec.runtime.image, "sandbox/sdk-image:" + i);
  assert.deepEqual(seen, ["BUILDING", "DEPLOYING", "DEPLOYED"]);
}
await assert.rejects(ImageInstance.fromRegistry("node:22").runCommands("false").build({ name: "sdk-image" }), /Deployment failed/);
names.push("sdk-image");

for (const one of names) await SandboxInstance.delete(one);
await assert.rejects(SandboxInstance.get(name), { code: "SANDBOX_NOT_FOUND" });
console.log("driven");
process.exit(0);
