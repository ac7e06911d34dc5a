package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"agentsh/internal/testenv"
)

// entered is a run whose sandbox people enter by the programs of OpenSSH.
type entered struct {
	*going
	config string // file of settings for ssh
}

// enter starts a run with a policy to which text is added, and gets the settings of ssh.
func enter(t *testing.T, text string, more ...string) *entered {
	t.Helper()
	testenv.Need(
		t,
		testenv.Program("ssh"),
		testenv.Program("scp"),
		testenv.Program("sftp"),
		testenv.Program("rsync"),
		testenv.Program("/usr/bin/python3"),
	)
	p := newFixture(t, waiting, "")
	p.write("policy.yaml", p.read("policy.yaml")+"\n"+text, 0o644)
	e := &entered{p.start("agent at work", more...), p.path("ssh config")}
	out, errs, code := p.try("", "ssh-config", "latest", "--host", "box")
	if code != 0 {
		t.Fatal(errs)
	}
	p.write("ssh config", out, 0o644)
	return e
}

// ssh runs a program of OpenSSH with the settings. The file of settings follows option.
func (e *entered) ssh(stdin io.Reader, program string, args ...string) (out, errs string, code int) {
	e.t.Helper()
	cmd := exec.CommandContext(e.t.Context(), program, append([]string{"-F", e.config}, args...)...)
	cmd.Dir, cmd.Stdin = e.dir, stdin
	var o, s bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &s
	if err := cmd.Run(); cmd.ProcessState == nil {
		e.t.Fatal(err)
	}
	return o.String(), s.String(), cmd.ProcessState.ExitCode()
}

// end lets the agent end, and waits for the run.
func (e *entered) end() {
	e.t.Helper()
	if _, errs, code := e.try("", "sandbox", "exec", "latest", "--", "touch", "/sandbox/workspace/go"); code != 0 {
		e.t.Errorf("touch: %s", errs)
	}
	if code := e.wait(); code != 0 {
		e.t.Errorf("exit code %d", code)
	}
}

func TestPeopleEnterBySSHUnderThePolicy(t *testing.T) {
	e := enter(t, "ssh: {sessions: true}\n")
	const repo = "/sandbox/workspace/repo"
	many := strings.Repeat("0123456789abcdef", 1<<16)
	for _, tt := range []struct {
		name, stdin string
		args        []string
		code        int
		out, errs   string // errs: a part
	}{
		{"a command", "", []string{"box", "pwd; echo oops >&2; exit 7"}, 7, repo + "\n", "oops\n"},
		{"a large input", many, []string{"box", "cat"}, 0, many, ""},
		{"a script", "echo a\nexit 3\n", []string{"-T", "box"}, 3, "a\n", ""},
		{"a variable of the policy, and another one", "", []string{"-o", "SetEnv=LC_X=1 OTHER=2", "box", "echo $LC_X,$OTHER,$BASH_ENV"}, 0,
			"1,,/usr/lib/agentsh/bash_startup.sh\n", ""},
		{"a terminal", "", []string{"-tt", "box", "stty size >/dev/null && tty"}, 0, "/dev/pts/0\r\n", ""},
		{"the policy holds", "", []string{"box", "/usr/bin/kill -0 1"}, 126, "", "Permission denied"},
		{"the policy holds for files", "", []string{"box", "cat /etc/shadow"}, 1, "", "Permission denied"},
		{"a signal", "", []string{"box", "/usr/bin/python3 -c 'import os; os.kill(os.getpid(), 15)'"}, 143, "", ""},
		{"connections are not forwarded", "", []string{"-W", "localhost:22", "box"}, 255, "", "open failed: administratively prohibited"},
		{"nothing is forwarded to this machine", "", []string{"-R", "0:localhost:22", "-o", "ExitOnForwardFailure=yes", "box", "true"}, 255, "",
			"remote port forwarding failed"},
		{"no agent and no display", "", []string{"-A", "-X", "box", "echo $SSH_AUTH_SOCK,$DISPLAY"}, 0, ",\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, errs, code := e.ssh(strings.NewReader(tt.stdin), "ssh", tt.args...)
			if code != tt.code || out != tt.out || !strings.Contains(errs, tt.errs) {
				t.Errorf("exit code %d, out %.200q, errors %q", code, out, errs)
			}
		})
	}
	t.Run("files", e.filesBySSH)
	t.Run("a killed client", e.killedBySSH)
	e.end()
	log := e.read("out/audit.jsonl")
	for _, want := range []string{`"by":"operator root"`, `"agentsh","sftp-server"`, `"ssh.forwarding"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the audit log lacks %s", want)
		}
	}
	if out, _, _ := e.try("", "runs", "show", "latest"); !strings.Contains(out, "operator root: ssh: bash -c ") ||
		!strings.Contains(out, "ssh: agentsh sftp-server") {
		t.Errorf("the record has no actions: %s", out)
	}
	if _, errs, code := e.ssh(nil, "ssh", "box", "true"); code != 255 || !strings.Contains(errs, "no such sandbox") {
		t.Errorf("after the end: exit code %d, %s", code, errs)
	}
}

// filesBySSH transfers files by scp, sftp, rsync and git.
func (e *entered) filesBySSH(t *testing.T) {
	e.write("here/sub/x.txt", "brought\n", 0o644)
	e.write("here/b\xff", "bytes\n", 0o644)
	e.write("batch", "put here/sub/x.txt put.txt\nchmod 600 put.txt\nrename put.txt renamed.txt\nmkdir made\nls\n", 0o644)
	e.write("secret", "get /etc/shadow\n", 0o644)
	rsh := []string{"-e", "ssh -F '" + e.config + "'"}
	t.Setenv("GIT_SSH_COMMAND", "ssh -F '"+e.config+"'")
	for _, tt := range []struct {
		name string
		run  []string
		code int
		says string
		file string // that exists afterwards, here
		text string
	}{
		{"scp out", []string{"scp", "-F", e.config, "box:a.txt", "out.txt"}, 0, "", "out.txt", "one\n"},
		{"scp in", []string{"scp", "-F", e.config, "-r", "here", "box:there"}, 0, "", "", ""},
		{"scp back", []string{"scp", "-F", e.config, "-r", "box:there", "back"}, 0, "", "back/b\xff", "bytes\n"},
		{"scp without sftp", []string{"scp", "-O", "-F", e.config, "box:there/sub/x.txt", "old.txt"}, 0, "", "old.txt", "brought\n"},
		{"scp of what a rule denies", []string{"scp", "-F", e.config, "box:/etc/shadow", "shadow"}, 1, "/etc/shadow", "", ""},
		{"scp to what a rule denies", []string{"scp", "-F", e.config, "a.txt", "box:/sandbox/workspace/.env"}, 1, "ermission denied", "", ""},
		{"scp to the machine", []string{"scp", "-F", e.config, "a.txt", "box:/usr/lib/x"}, 1, "", "", ""},
		{"sftp", []string{"sftp", "-F", e.config, "-b", "batch", "box"}, 0, "renamed.txt", "", ""},
		{"sftp of what a rule denies", []string{"sftp", "-F", e.config, "-b", "secret", "box"}, 1, "/etc/shadow", "", ""},
		{"rsync in", append([]string{"rsync", "-r", "here/", "box:synced/"}, rsh...), 0, "", "", ""},
		{"rsync out", append([]string{"rsync", "-r", "box:synced/", "again"}, rsh...), 0, "", "again/sub/x.txt", "brought\n"},
		{"git clone", []string{"git", "clone", "-q", "ssh://box/sandbox/workspace/repo", "cloned"}, 0, "",
			"cloned/a.txt", "one\n"},
		{"git push", []string{"git", "-C", "cloned", "push", "-q", "origin", "HEAD:refs/heads/pushed"}, 0,
			"", "", ""},
	} {
		e.write("a.txt", "mine\n", 0o644)
		cmd := exec.CommandContext(t.Context(), tt.run[0], tt.run[1:]...)
		cmd.Dir = e.dir
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); (code != 0) != (tt.code != 0) || !strings.Contains(string(out), tt.says) {
			t.Errorf("%s: exit code %d, %s", tt.name, code, out)
		}
		if tt.file != "" && e.read(tt.file) != tt.text {
			t.Errorf("%s: %s is %q", tt.name, tt.file, e.read(tt.file))
		}
	}
	out, errs, _ := e.ssh(
		nil,
		"ssh",
		"box",
		"cat renamed.txt there/sub/x.txt synced/sub/x.txt; stat -c %a renamed.txt; git branch --list pushed",
	)
	if out != "brought\nbrought\nbrought\n600\n  pushed\n" {
		t.Errorf("in the sandbox: %q %s", out, errs)
	}
}

// killedBySSH checks that a command ends with its client.
func (e *entered) killedBySSH(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "ssh", "-F", e.config, "box", "echo begun; exec sleep 4321")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Error(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	limit := time.Now().Add(2 * time.Minute)
	for {
		said, _, _ := e.ssh(nil, "ssh", "box", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
		if !strings.Contains(said, "sleep 4321") {
			return
		}
		if time.Now().After(limit) {
			t.Fatal("the command of a killed client goes on")
		}
	}
}

func TestNobodyEntersASandboxBySSHByDefault(t *testing.T) {
	t.Parallel()
	e := enter(t, "")
	for _, args := range [][]string{{"box", "true"}, {"-T", "box"}, {"-s", "box", "sftp"}} {
		_, errs, code := e.ssh(strings.NewReader(""), "ssh", args...)
		if code != 126 || !strings.Contains(errs, "agentsh: denied: ") || !strings.Contains(errs, "add ssh: {sessions: true}") {
			t.Errorf("%q: exit code %d, %s", args, code, errs)
		}
	}
	e.end()
}

// echo answers each connection with what it sends, in capitals.
const echo = `import socket, threading
tcp = socket.create_server(("127.0.0.1", 4321))
unix = socket.socket(socket.AF_UNIX); unix.bind("/tmp/echo"); unix.listen()
def serve(c):
    data = b""
    while part := c.recv(65536): data += part
    c.sendall(data.upper()); c.close()
def accept(s):
    while True: threading.Thread(target=serve, args=(s.accept()[0],)).start()
threading.Thread(target=accept, args=(unix,), daemon=True).start()
print("ready", flush=True)
accept(tcp)
`

func TestForwardedConnectionsFollowTheRules(t *testing.T) {
	t.Parallel()
	testenv.Need(t, testenv.Program("/usr/bin/python3"), testenv.Program("curl"))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "web\n") }))
	t.Cleanup(web.Close)
	port := web.URL[strings.LastIndexByte(web.URL, ':')+1:]
	e := enter(t, `ssh: {sessions: true, forwarding: true}
network_rules:
  - {name: web, domains: [localhost], ports: [`+port+`], decision: allow}
unix_socket_rules:
  - {name: echo, paths: [/tmp/echo], decision: allow}
`)
	server := exec.CommandContext(t.Context(), "ssh", "-F", e.config, "box", "/usr/bin/python3", "-")
	server.Stdin = strings.NewReader(echo)
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	many := strings.Repeat("some bytes ", 1<<16)
	for _, tt := range []struct {
		name, stdin string
		to          string
		out, errs   string
	}{
		{"to a server in the sandbox", many, "127.0.0.1:4321", strings.ToUpper(many), ""},
		{"by a name", "x", "localhost:4321", "X", ""},
		{"to a port where nobody listens", "x", "127.0.0.1:9", "", "connect failed"},
		{"to what no rule allows", "x", "192.0.2.1:80", "", "connect failed"},
		{"to a name that no rule allows", "x", "example.org:80", "", "connect failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, errs, _ := e.ssh(strings.NewReader(tt.stdin), "ssh", "-W", tt.to, "box")
			if out != tt.out || !strings.Contains(errs, tt.errs) {
				t.Errorf("out of %d bytes: %.100q, errors %s", len(out), out, errs)
			}
		})
	}
	t.Run("as a proxy", func(t *testing.T) { e.proxyBySSH(t, port) })
	_ = server.Process.Kill()
	_ = server.Wait()
	e.end()
	log := e.read("out/audit.jsonl")
	for _, want := range []string{`"agentsh","forward","192.0.2.1:80"`, `"agentsh","forward","unix:/tmp/echo"`, `"target":"example.org","decision":"deny"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the audit log lacks %s", want)
		}
	}
}

// proxyBySSH uses -D and -L of one ssh.
func (e *entered) proxyBySSH(t *testing.T, port string) {
	dir := t.TempDir()
	control := []string{"-S", dir + "/control"}
	master := exec.CommandContext(t.Context(), "ssh", append(control, "-F", e.config, "-M", "-N", "-o", "ExitOnForwardFailure=yes",
		"-D", dir+"/socks", "-L", dir+"/tcp:127.0.0.1:4321", "-L", dir+"/unix:/tmp/echo", "-L", dir+"/other:/tmp/nobody", "box")...)
	var errs bytes.Buffer
	master.Stderr = &errs
	if err := master.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = master.Process.Kill()
		_ = master.Wait()
	}()
	limit := time.Now().Add(2 * time.Minute)
	for _, name := range []string{"/socks", "/tcp", "/unix", "/other"} {
		for {
			if _, err := os.Stat(dir + name); err == nil {
				break
			}
			if time.Now().After(limit) {
				t.Fatalf("ssh does not listen: %s", &errs)
			}
		}
	}
	curl := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "curl", append([]string{"-sS", "--max-time", "60"}, args...)...).CombinedOutput()
		return string(out), err
	}
	socks := []string{"--proxy", "socks5h://localhost" + dir + "/socks"}
	if out, err := curl(append(socks, "http://localhost:"+port)...); err != nil || out != "web\n" {
		t.Errorf("-D to what a rule allows: %s %v", out, err)
	}
	if out, err := curl(append(socks, "http://example.org")...); err == nil || strings.Contains(out, "web") {
		t.Errorf("-D to what no rule allows: %s", out)
	}
	for name, want := range map[string]string{"/tcp": "HELLO", "/unix": "HELLO", "/other": ""} {
		if got := exchange(t, dir+name, "hello"); got != want {
			t.Errorf("-L %s: %q", name, got)
		}
	}
	if out, said, code := e.ssh(nil, "ssh", append(control, "box", "echo shared")...); out != "shared\n" {
		t.Errorf("over the same connection: %d %q %s", code, out, said)
	}
}

// exchange sends text to a Unix socket, and returns the answer.
func exchange(t *testing.T, path, text string) string {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		return ""
	}
	_ = conn.(*net.UnixConn).CloseWrite()
	out, _ := io.ReadAll(conn)
	return string(out)
}
