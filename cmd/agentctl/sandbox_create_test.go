package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/cmd/agentctl/sandboxcmd"
	"agentsh/controller/boxes"
	"agentsh/internal/wire"
)

// agentctl runs a command of the fixture with an input, and returns what it printed.
func (p *fixture) agentctl(stdin string, args ...string) (out string, err error) {
	p.t.Helper()
	cmd := p.command(args...)
	cmd.Stdin = strings.NewReader(stdin)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	data, err := cmd.Output()
	if err != nil {
		return string(data) + errs.String(), err
	}
	return string(data), nil
}

// must is agentctl that succeeds.
func (p *fixture) must(args ...string) string {
	p.t.Helper()
	out, err := p.agentctl("", args...)
	if err != nil {
		p.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

// object reads what a command printed as JSON.
func object[T any](p *fixture, args ...string) (v T) {
	p.t.Helper()
	if out := p.must(args...); json.Unmarshal([]byte(out), &v) != nil {
		p.t.Fatalf("%v: %s", args, out)
	}
	return v
}

// TestASandboxWithoutARun is made, used and deleted by single commands, on each kind of backend.
func TestASandboxWithoutARun(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]func(*fixture) *fixture{
		"local": func(p *fixture) *fixture { return p }, "exec": (*fixture).elsewhere, "socket": (*fixture).listening,
	} {
		t.Run(name, func(t *testing.T) {
			p := at(newFixture(t, "exit 1", ""))
			args := append([]string{"sandbox", "create", "--policy", "policy.yaml", "--repo", "repo", "--label", "task=7", "--env", "GOFLAGS=-x",
				"--json"}, p.place...)
			made := object[boxes.Made](p, args...)
			if made.Dir != "/sandbox/workspace/repo" || made.Backend != name || made.Labels["task"] != "7" {
				t.Errorf("%+v", made)
			}
			id := made.Sandbox
			if out, err := p.agentctl("in", "sandbox", "exec", id, "--", "sh", "-c", "cat; cat a.txt; echo $GOFLAGS"); err != nil ||
				out != "inone\n-x\n" {
				t.Errorf("%v %q", err, out)
			}
			res := object[boxes.Result](p, "sandbox", "exec", "--json", id, "--", "sh", "-c", "echo out; echo err >&2; printf '\\377' ; exit 3")
			if res.ExitCode != 3 || res.End != wire.ExitExited || string(res.StdoutBase64) != "out\n\xff" || res.Stderr != "err\n" {
				t.Errorf("%+v", res)
			}
			out, err := p.agentctl(
				`{"script": "kill 1; read x; echo $x", "stdin": "typed\n", "timeout_seconds": 60}`,
				"sandbox",
				"exec",
				"--request",
				"-",
				id,
			)
			if err != nil || !strings.Contains(out, `"stdout": "typed\n"`) || !strings.Contains(out, `"exit_code": 0`) {
				t.Errorf("%v %s", err, out)
			}
			if res = object[boxes.Result](p, "sandbox", "exec", "--json", id, "--", "kill", "1"); res.ExitCode != 126 || len(res.Refusals) != 1 ||
				res.Refusals[0].Rule != "block-kill" {
				t.Errorf("%+v", res)
			}
			p.must("sandbox", "cp", "--json", "policy.yaml", id+":in.txt")
			snapshot := object[wire.Checkpoint](p, "sandbox", "snapshot", id, "--name", "clean", "--json")
			p.must("sandbox", "exec", id, "--", "sh", "-c", "echo two >a.txt; rm in.txt; echo x >new")
			changes := object[[]boxes.Change](p, "sandbox", "rollback", id, snapshot.ID, "--json")
			if len(changes) != 3 {
				t.Errorf("%+v", changes)
			}
			_, errs, code := p.try("", "sandbox", "rollback", id, "clean")
			if code != 4 || !strings.Contains(errs, "'agentctl sandbox snapshot "+id+" --list'") {
				t.Errorf("rollback to a name: %d %s", code, errs)
			}
			if list := p.must("sandbox", "snapshot", id, "--list"); !strings.Contains(list, "clean") {
				t.Error(list)
			}
			p.must("sandbox", "save", id, "saved.box")
			args = append([]string{"sandbox", "create", "--policy", "policy.yaml", "--from", "saved.box"}, p.place...)
			second := strings.TrimSpace(p.must(args...))
			if out := p.must("sandbox", "exec", "--cwd", "/sandbox/workspace/repo", second, "--", "sh", "-c",
				"cat a.txt; ls; git log --oneline | wc -l"); out != "one\na.txt\nin.txt\n1\n" {
				t.Errorf("%q", out)
			}
			if list := object[[]sandboxcmd.SandboxJSON](p, "sandbox", "list", "--json", "--label", "task=7"); len(list) != 1 ||
				list[0].Sandbox != id ||
				list[0].Kind != "sandbox" ||
				list[0].Labels["task"] != "7" {
				t.Errorf("%+v", list)
			}
			if out, errs, code := p.try("", "runs", "list"); code != 0 || out != "" ||
				errs != "agentctl: sandboxes without a run: 2; 'agentctl sandbox list' names them\n" {
				t.Errorf("runs list: %d %q %q", code, out, errs)
			}
			p.must("sandbox", "cp", id+":in.txt", "copy.txt")
			if p.read("copy.txt") != p.read("policy.yaml") {
				t.Error("the copy differs")
			}
			gone := object[map[string]string](p, "sandbox", "delete", id, "--json")
			if log, err := os.ReadFile(filepath.Join(gone["record"], "audit.jsonl")); err != nil || !bytes.Contains(log, []byte("block-kill")) {
				t.Errorf("%v %v", gone, err)
			}
			p.must("sandbox", "delete", second)
			if out := p.must("sandbox", "list"); out != "" {
				t.Errorf("left: %s", out)
			}
		})
	}
}

// TestASandboxEndsWithItsLease has one that nobody uses, one whose holder is killed, and one that is not made.
func TestASandboxEndsWithItsLease(t *testing.T) {
	p := newFixture(t, "exit 1", "")
	id := strings.TrimSpace(p.must("sandbox", "create", "--policy", "policy.yaml", "--idle", "1s"))
	eventually(t, func() bool { return p.must("sandbox", "list") == "" })
	if out := p.must("runs", "show", id); !strings.Contains(out, "done") {
		t.Error(out)
	}
	adopt(t)
	id = strings.TrimSpace(p.must("sandbox", "create", "--policy", "policy.yaml"))
	for _, one := range object[[]sandboxcmd.SandboxJSON](p, "sandbox", "list", "--json") {
		if one.Sandbox != id {
			t.Errorf("%+v", one)
		}
	}
	pid := p.holder(id)
	if err := exec.Command("kill", "-9", pid).Run(); err != nil {
		t.Fatal(err)
	}
	waitOrphans(t)
	if out := p.must("sandbox", "list"); out != "" {
		t.Error(out)
	}
	p.must("gc")
	for _, tt := range []struct {
		stdin, want string
		args        []string
	}{
		{"", "name a policy or a harness", nil},
		{"", "name a policy or a harness", []string{"harness.yaml", "--policy", "policy.yaml"}},
		{"", "env: write it in the harness", []string{"harness.yaml", "--env", "A=b"}},
		{"", "env.sandbox: commands would not get OTHER: it is not in the allow list of env_policy of the policy policy.yaml: " +
			"write OTHER into allow of env_policy there", []string{"--policy", "policy.yaml", "--env", "OTHER=1"}},
		{"", "no such file", []string{"--policy", "nosuch.yaml"}},
		{"", "nosuch: no such file or directory: name a file that exists", []string{"--policy", "nosuch"}},
		{"", "idle_seconds", []string{"--policy", "policy.yaml", "--idle", "1000h"}},
		{"", "write NAME=VALUE", []string{"--policy", "policy.yaml", "--label", "x"}},
		{"", "not a git repository", []string{"--policy", "policy.yaml", "--repo", "agents"}},
		{"", "unknown backend", []string{"--policy", "policy.yaml", "--backend", "nosuch"}},
		{`{"policy": "policy.yaml", "polcy": 1}`, `unknown field "polcy"`, []string{"--spec", "-"}},
		{`{"policy": "policy.yaml"} x`, "specification of the sandbox", []string{"--spec", "-"}},
		{`{"policy": "policy.yaml", "env": {"LD_PRELOAD": "x"}}`, "LD_PRELOAD belongs to the supervisor", []string{"--spec", "-"}},
	} {
		out, err := p.agentctl(tt.stdin, append([]string{"sandbox", "create"}, tt.args...)...)
		if err == nil || !strings.Contains(out, tt.want) {
			t.Errorf("%v %q: %v %s", tt.args, tt.stdin, err, out)
		}
	}
	if out := p.must("sandbox", "list"); out != "" {
		t.Error(out)
	}
}

// holder is the process that holds a sandbox.
func (p *fixture) holder(id string) string {
	p.t.Helper()
	var r struct {
		Process int `json:"process"`
	}
	p.readJSON("state/agentsh/runs/"+id+"/record.json", &r)
	data, err := json.Marshal(r.Process)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(data)
}

// TestProgramsUseSandboxesOverAStream speaks the protocol line by line.
func TestProgramsUseSandboxesOverAStream(t *testing.T) {
	p := newFixture(t, "exit 1", "")
	cmd := p.command("sandbox", "serve", "--stdio")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	type said struct {
		ID     json.RawMessage
		Method string
		Params map[string]any
		Result map[string]any
		Error  *struct {
			Code    int
			Message string
		}
	}
	lines := json.NewDecoder(out)
	next := func() (s said) {
		t.Helper()
		if err := lines.Decode(&s); err != nil {
			t.Fatalf("%v\n%s", err, errs.String())
		}
		return s
	}
	say := func(line string) {
		t.Helper()
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(method string, params any) said {
		t.Helper()
		data, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
		if err != nil {
			t.Fatal(err)
		}
		say(string(data))
		return next()
	}
	if s := ask("hello", nil); s.Result["protocol"] != 1.0 {
		t.Errorf("%+v", s)
	}
	s := ask(
		"create",
		map[string]any{"policy": p.path("policy.yaml"), "files": []any{map[string]any{"src": p.path("harness.yaml"), "dest": "/tmp/h"}}},
	)
	id, _ := s.Result["sandbox"].(string)
	if id == "" {
		t.Fatalf("%+v\n%s", s, errs.String())
	}
	in_ := func(more map[string]any) map[string]any {
		more["sandbox"] = id
		return more
	}
	if s = ask("write", in_(map[string]any{"path": "d/f", "text": "one\n", "mode": 0o755})); s.Error != nil {
		t.Errorf("%+v", s.Error)
	}
	if s = ask("exec", in_(map[string]any{"script": "cat d/f; stat -c %a d/f; head -c 7 /tmp/h; kill 1"})); s.Result["stdout"] != "one\n755\nagent: " ||
		len(s.Result["refusals"].([]any)) != 1 {
		t.Errorf("%+v", s)
	}
	if s = ask("read", in_(map[string]any{"path": "d/f"})); s.Result["text"] != "one\n" {
		t.Errorf("%+v", s)
	}
	snapshot := ask("snapshot", in_(map[string]any{"name": "x"})).Result["id"]
	ask("remove", in_(map[string]any{"path": "d", "recursive": true}))
	if s = ask("changes", in_(map[string]any{"lines": true})); s.Error != nil {
		t.Errorf("%+v", s)
	}
	ask("rollback", in_(map[string]any{"id": snapshot}))
	if s = ask("files", in_(map[string]any{"path": "d"})); len(s.Result["files"].([]any)) != 1 {
		t.Errorf("%+v", s)
	}
	say(`{"jsonrpc":"2.0","id":"a","method":"exec","params":{"sandbox":"` + id + `","stream":true,"script":"echo begun; sleep 1000"}}`)
	if s = next(); s.Method != "output" || s.Params["data_base64"] != "YmVndW4K" || s.Params["id"] != "a" {
		t.Errorf("%+v", s)
	}
	say(`{"jsonrpc":"2.0","method":"cancel","params":{"id":"a"}}`)
	if s = next(); s.Error == nil || s.Error.Code != -32800 || string(s.ID) != `"a"` {
		t.Errorf("%+v", s)
	}
	for line, code := range map[string]int{
		"{": -32700, `{"jsonrpc":"2.0","id":2,"method":"nosuch"}`: -32601, `{"id":3}`: -32600, `{"jsonrpc":"2.0","id":4,"method":"create","params":{"x":1}}`: -32602,
		strings.Repeat("[", 100): -32600,
		`{"jsonrpc":"2.0","id":5,"method":"exec","params":{"sandbox":"nosuch","argv":["true"]}}`:           -32000,
		`{"jsonrpc":"2.0","id":6,"method":"exec","params":{"sandbox":"` + id + `","argv":["true"],"x":1}}`: -32602,
	} {
		say(line)
		if s = next(); s.Error == nil || s.Error.Code != code {
			t.Errorf("%s: %+v", line, s)
		}
	}
	if s = ask("list", nil); len(s.Result["sandboxes"].([]any)) != 1 {
		t.Errorf("%+v", s)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, errs.String())
	}
	if out := p.must("sandbox", "list"); out != "" {
		t.Errorf("left: %s", out)
	}
}
