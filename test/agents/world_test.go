// Package agents runs real agent programs in sandboxes against a model that the
// tests write. The programs are installed by "make agents", which also says
// where they are; without AGENTSH_AGENTS the tests are skipped.
package agents

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentsh/controller"
	"agentsh/controller/runtime"
	"agentsh/internal/fakemodel"
	"agentsh/internal/testenv"
)

// installed is the directory that "make agents" filled.
func installed(t *testing.T) string {
	t.Helper()
	return testenv.Asked(t, "AGENTSH_AGENTS", "agents")
}

// program finds the one file below the installed programs that a pattern names.
func program(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(installed(t), pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

func TestMain(m *testing.M) { testenv.Main(m) }

// modelHost is the name of the model's API.
const modelHost = "api.model.test"

// realKey is the credential: only the model's API must ever see it.
const realKey = "sk-real-key-of-the-model-55170"

// world is a repository with a harness, and the API of a model beside it.
type world struct {
	t     *testing.T
	bin   string
	dir   string
	model *fakemodel.Server
	port  string // of the API, at modelHost
	stop  func() // ends the API

	setenv []string // more variables of the host
}

// harness is what a world is made of.
type harness struct {
	Runtime  string
	Program  []string // with its first arguments
	Env      string   // lines below env.sandbox
	Provider string   // lines below name and endpoints: credentials, header
	More     string   // of the harness
	Minutes  int      // of an iteration; 0: 5
	Agent    string   // definition; its name is tester
}

// newWorld makes a world whose model answers by script.
func newWorld(t *testing.T, h harness, script fakemodel.Script) *world {
	t.Helper()
	agents := installed(t)
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Program("git"))
	bin := testenv.Programs(t)
	w := &world{t: t, bin: bin, dir: t.TempDir(), model: fakemodel.New(script)}
	ca := w.serve()
	w.write("ca.pem", string(ca), 0o644)
	w.write("config.yaml", "network: {resolvers: ['"+testenv.NameServer(t)+"'], ca_files: ['"+w.path("ca.pem")+"']}\n", 0o644)
	w.copy("../../examples/policies/demo.yaml", "policies/demo.yaml")
	w.copy("../../examples/claude/policy.yaml", "claude/policy.yaml")
	w.write("claude/test.yaml", `version: 1
name: test
extends: [policy.yaml]
file_rules:
  - {name: agent-programs, paths: ['`+agents+`', '`+agents+`/**'], operations: [read, list, stat, execute], decision: allow}
  - {name: agent-programs-above, paths: [`+above(agents)+`], operations: [stat, list], decision: allow}
network_rules:
  - {name: model, domains: [`+modelHost+`], ports: [`+w.port+`], cidrs: [127.0.0.1/32], decision: allow}
`, 0o644)
	w.write("providers/model.yaml", "name: model\ntype: model\nendpoints: ['"+modelHost+":"+w.port+"']\n"+h.Provider, 0o644)
	w.write("agents/tester.md", h.Agent, 0o644)
	program, err := json.Marshal(h.Program)
	if err != nil {
		t.Fatal(err)
	}
	w.write("harness.yaml", "agent: agents/tester.md\nrole: tester\nruntime: "+h.Runtime+"\ncommand: "+string(program)+
		"\npolicy: claude/test.yaml\nproviders: [model]\ntimeout_minutes: "+strconv.Itoa(cmp.Or(h.Minutes, 5))+"\nenv:\n  sandbox:\n"+strings.ReplaceAll(indent(h.Env), "PORT", w.port)+h.More, 0o644)
	w.write("repo/double.sh", "#!/bin/sh\n# Prints twice its argument.\necho $(($1 + 2))\n", 0o755)
	w.write(
		"repo/test.sh",
		"#!/bin/sh\nfor n in 1 2 5; do\n\tgot=$(./double.sh $n)\n\t[ \"$got\" = $((n + n)) ] || { echo \"double $n gives $got\"; exit 1; }\ndone\necho all good\n",
		0o755,
	)
	w.git("init", "-q", "-b", "main")
	w.commit("first")
	t.Cleanup(w.checkClean)
	return w
}

// above lists the directories above a path, as a list of YAML.
func above(name string) string {
	var list []string
	for dir := filepath.Dir(name); ; dir = filepath.Dir(dir) {
		list = append(list, "'"+dir+"'")
		if dir == "/" {
			return strings.Join(list, ", ")
		}
	}
}

func indent(lines string) string {
	var out strings.Builder
	for line := range strings.Lines(lines) {
		out.WriteString("    " + line)
	}
	return out.String()
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) write(name, text string, mode fs.FileMode) {
	w.t.Helper()
	if err := os.MkdirAll(filepath.Dir(w.path(name)), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(w.path(name), []byte(text), mode); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) append(name, text string) {
	w.t.Helper()
	w.write(name, w.read(name)+text, 0o644)
}

func (w *world) copy(from, to string) {
	w.t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(to, string(data), 0o644)
}

func (w *world) read(name string) string {
	w.t.Helper()
	data, err := os.ReadFile(w.path(name))
	if err != nil {
		w.t.Error(err)
	}
	return string(data)
}

// git runs git in the target, as its owner would.
func (w *world) git(args ...string) string {
	w.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = w.path("repo")
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com",
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit commits all of the target.
func (w *world) commit(message string) {
	w.t.Helper()
	w.git("add", "-A")
	w.git("commit", "-q", "-m", message)
}

// command is agentctl, which runs the harness.
func (w *world) command(more ...string) *exec.Cmd {
	args := append([]string{"run", "harness.yaml", "--repo", "repo", "--out", "out", "--agentsh-config", "config.yaml"}, more...)
	cmd := exec.Command(w.bin+"/agentctl", args...)
	cmd.Dir = w.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "XDG_STATE_HOME=" + w.path("state"), "MODEL_KEY=" + realKey}
	cmd.Env = append(cmd.Env, w.setenv...)
	return cmd
}

// run runs the harness and returns the result and the exit code.
func (w *world) run(more ...string) (controller.Result, int) {
	w.t.Helper()
	cmd := w.command(append([]string{"--json"}, more...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // the exit code says it
	return w.result(out.Bytes(), errs.String()), cmd.ProcessState.ExitCode()
}

// result reads what agentctl run --json printed.
func (w *world) result(out []byte, errs string) controller.Result {
	w.t.Helper()
	w.t.Logf("%s", errs)
	var r controller.Result
	if err := json.Unmarshal(out, &r); err != nil {
		w.t.Fatalf("--json: %v\n%s\n%s", err, out, errs)
	}
	return r
}

// event is a line of agent.jsonl.
type event struct {
	Time      time.Time
	Iteration int
	runtime.Event
}

// events are those of one kind that the run recorded.
func (w *world) events(kind string) []event {
	w.t.Helper()
	var out []event
	for line := range strings.Lines(w.read("out/agent.jsonl")) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			w.t.Fatalf("agent.jsonl: %v: %s", err, line)
		}
		if e.Kind == kind {
			out = append(out, e)
		}
	}
	return out
}

// answer is what the model was told of the n-th tool call, from 0.
func (w *world) answer(n int) fakemodel.Result {
	w.t.Helper()
	for _, r := range w.model.Requests() {
		if len(r.Results) > n {
			return r.Results[n]
		}
	}
	w.t.Errorf("the model saw no result of tool call %d", n)
	return fakemodel.Result{}
}

// checkKey fails the test when the key of the model is anywhere but at its API:
// in no request's text, and in nothing that came out.
func (w *world) checkKey() {
	w.t.Helper()
	for _, r := range w.model.Requests() {
		if r.Key != realKey {
			w.t.Errorf("the model's API was given the key %q", r.Key)
		}
		if bytes.Contains(r.Body, []byte(realKey)) {
			w.t.Error("the agent knew the key")
		}
	}
	err := filepath.WalkDir(w.path("out"), func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(name)
		if bytes.Contains(data, []byte(realKey)) {
			w.t.Errorf("the key is in %s", name)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.t.Error(err)
	}
}

// checkClean fails the test for anything a run left besides its results and
// its record.
func (w *world) checkClean() {
	w.t.Helper()
	for _, pattern := range []string{"state/agentsh/sandboxes/*", ".agentctl-*", "state/agentsh/runs/*/work", "repo/.git/*.lock"} {
		left, _ := filepath.Glob(w.path(pattern))
		for _, name := range left {
			w.t.Errorf("left behind: %s", name)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(mounts, []byte(w.dir+"/")) {
		w.t.Errorf("a mount is left below %s: %v", w.dir, err)
	}
}

// await waits for what an agent does, at most as long as a test may hang.
func await(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(3 * time.Minute):
		t.Fatal("the agent did not come so far")
	}
}

// killBelow kills the one process below pid whose program's path ends so.
func killBelow(t *testing.T, pid int, suffix string) {
	t.Helper()
	children := map[int][]int{}
	procs, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range procs {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // ended
		}
		// See proc(5): the name in parentheses may hold anything.
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], child)
	}
	var found []int
	for todo := []int{pid}; len(todo) > 0; todo = todo[1:] {
		todo = append(todo, children[todo[0]]...)
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", todo[0])); err == nil && strings.HasSuffix(exe, suffix) {
			found = append(found, todo[0])
		}
	}
	if len(found) != 1 {
		t.Fatalf("processes of %s: %v", suffix, found)
	}
	if err := syscall.Kill(found[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// serve serves the model's API over TLS and returns who signed for it.
func (w *world) serve() (ca []byte) {
	w.t.Helper()
	return w.serveAt("127.0.0.1:0", modelHost)
}

// serveAt is like serve, at an address and under a name.
func (w *world) serveAt(address, name string) (ca []byte) {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "model"}, NotAfter: time.Now().Add(24 * time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, DNSNames: []string{name},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		w.t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(w.model)
	server.Listener.Close()
	if server.Listener, err = net.Listen("tcp", address); err != nil {
		w.t.Fatal(err)
	}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	server.StartTLS()
	w.stop = sync.OnceFunc(func() {
		server.CloseClientConnections()
		server.Close()
	})
	w.t.Cleanup(w.stop)
	if _, w.port, err = net.SplitHostPort(server.Listener.Addr().String()); err != nil {
		w.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
