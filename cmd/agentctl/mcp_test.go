package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sys/unix"

	"agentsh/controller"
	"agentsh/internal/statedir"
	"agentsh/internal/testenv"
)

// toolbox is a client of 'agentsh mcp' with a workspace of its own.
type toolbox struct {
	t       testing.TB
	dir     string // the workspace
	run     string // XDG_RUNTIME_DIR
	session *mcp.ClientSession
	cmd     *exec.Cmd
	stderr  *bytes.Buffer
}

const toolsPolicy = `version: 1
name: tools
git_guard: true
file_rules:
  - {name: no-secrets, paths: ["${PROJECT_ROOT}/secret/**"], operations: ["*"], decision: deny, message: keys stay here}
  - {name: no-locked, paths: ["${PROJECT_ROOT}/locked/**"], operations: [read], decision: deny, message: not read here}
  - {name: work, paths: ["${PROJECT_ROOT}", "${PROJECT_ROOT}/**", "/tmp", "/tmp/**"], operations: ["*"], decision: allow}
  - {name: programs, paths: ["/usr/**", "/bin/**", "/lib/**", "/lib64/**"], operations: [read, list, stat, execute], decision: allow}
  - {name: machine, paths: ["/", "/etc", "/etc/**", "/proc", "/proc/**"], operations: [read, list, stat], decision: allow}
  - {name: devices, paths: ["/dev", "/dev/**"], operations: [read, write, list, stat], decision: allow}
command_rules:
  - {name: no-curl, commands: [curl], decision: deny, message: no downloads}
  - {name: all, commands: ["*"], decision: allow}
`

// openTools starts 'agentsh mcp' and connects to it.
func openTools(t testing.TB, opts *mcp.ClientOptions, flags ...string) *toolbox {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	base := t.TempDir()
	b := &toolbox{t: t, dir: filepath.Join(base, "work"), run: filepath.Join(base, "run"), stderr: &bytes.Buffer{}}
	for dir := base; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{b.dir, filepath.Join(b.dir, "secret"), filepath.Join(b.dir, "locked"), b.run} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(base, "policy.yaml"), []byte(toolsPolicy), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"secret", "locked"} {
		if err := os.WriteFile(filepath.Join(b.dir, dir, "key"), []byte("k"+dir), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b.cmd = b.agentsh(append([]string{"mcp", "-p", filepath.Join(base, "policy.yaml"), "-w", b.dir}, flags...)...)
	b.connect(opts)
	t.Cleanup(func() { b.close() })
	return b
}

// agentsh is a command of agentsh beside the workspace.
func (b *toolbox) agentsh(args ...string) *exec.Cmd {
	b.t.Helper()
	bin := testenv.Programs(b.t)
	base := filepath.Dir(b.dir)
	cmd := exec.Command(filepath.Join(bin, "agentsh"), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + base, "XDG_STATE_HOME=" + base + "/state", "XDG_RUNTIME_DIR=" + b.run}
	cmd.Dir, cmd.Stderr = base, b.stderr
	return cmd
}

// connect starts the server and connects to it.
func (b *toolbox) connect(opts *mcp.ClientOptions) {
	b.t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts)
	var err error
	b.session, err = client.Connect(context.Background(), &mcp.CommandTransport{Command: b.cmd}, nil)
	if err != nil {
		b.t.Fatalf("%v\n%s", err, b.stderr)
	}
}

// another is a client of a second server in the same workspace.
func (b *toolbox) another(flags ...string) *toolbox {
	b.t.Helper()
	second := &toolbox{t: b.t, dir: b.dir, run: b.run, stderr: &bytes.Buffer{}}
	second.cmd = second.agentsh(append([]string{"mcp"}, flags...)...)
	second.connect(nil)
	b.t.Cleanup(func() { _ = second.session.Close() }) // the first one waits for its end
	return second
}

// close ends the server, and holds that its session ended too.
func (b *toolbox) close() {
	b.t.Helper()
	_ = b.session.Close() // closing twice is no error
	awaitNoSessions(b.t, b.run)
	awaitStore(b.t, filepath.Join(filepath.Dir(b.run), "state"))
}

// awaitStore waits until no session has a directory in the store of a state directory: what changed is
// written after its socket is gone.
func awaitStore(t testing.TB, state string) {
	t.Helper()
	eventually(t, func() bool {
		locks, err := filepath.Glob(filepath.Join(state, "agentsh", "store", "sessions", "*", "lock"))
		for _, name := range locks {
			lock, failed := statedir.TakeLock(name, unix.LOCK_EX|unix.LOCK_NB)
			if failed != nil {
				return false
			}
			_ = lock.Close()
		}
		return err == nil
	})
}

// awaitNoSessions waits until no session of a runtime directory is left.
func awaitNoSessions(t testing.TB, run string) {
	t.Helper()
	eventually(t, func() bool {
		left, err := filepath.Glob(filepath.Join(run, "agentsh", "*", "socket"))
		return err == nil && len(left) == 0
	})
}

// call uses a tool. A failed call is reported, unless fails.
func (b *toolbox) call(name string, in map[string]any, fails bool) (string, map[string]any) {
	b.t.Helper()
	res, err := b.session.CallTool(context.Background(), &mcp.CallToolParams{Name: name, Arguments: in})
	if err != nil {
		b.t.Fatalf("%s %v: %v\n%s", name, in, err, b.stderr)
	}
	text := ""
	for _, c := range res.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			text += t.Text
		}
	}
	if res.IsError != fails {
		b.t.Errorf("%s %v: failed %v: %s", name, in, res.IsError, text)
	}
	out, _ := res.StructuredContent.(map[string]any)
	return text, out
}

// want holds that a text has parts.
func (b *toolbox) want(text string, parts ...string) {
	b.t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			b.t.Errorf("%q does not have %q", text, part)
		}
	}
}

// says uses a tool, and holds that its text has parts.
func (b *toolbox) says(name string, in map[string]any, parts ...string) map[string]any {
	b.t.Helper()
	text, out := b.call(name, in, false)
	b.want(text, parts...)
	return out
}

// fails uses a tool that fails, and holds that its text has parts.
func (b *toolbox) fails(name string, in map[string]any, parts ...string) map[string]any {
	b.t.Helper()
	text, out := b.call(name, in, true)
	b.want(text, parts...)
	return out
}

type args = map[string]any

func TestToolsRunCommandsUnderThePolicy(t *testing.T) {
	t.Parallel()
	b := openTools(t, nil)
	out := b.says("exec", args{"command": "echo one; echo two >&2; exit 3"}, "one\n", "two\n", "[exit status 3]")
	if out["exit_code"] != 3.0 || out["state"] != "ended" || out["total_bytes"] != 8.0 {
		t.Errorf("%v", out)
	}
	b.says("exec", args{"argv": []string{"cat"}, "stdin": "typed"}, "typed")
	out = b.says("exec", args{"argv": []string{"curl", "x"}}, "agentsh: denied: curl x", "no-curl", "policy.yaml:12:", "no downloads")
	if out["exit_code"] != 126.0 || out["end"] != "denied" {
		t.Errorf("%v", out)
	}
	out = b.says("exec", args{"command": "curl x || cat secret/key"}, "no-curl", "no-secrets", "keys stay here")
	if list, _ := out["refusals"].([]any); len(list) != 2 {
		t.Errorf("%v", out)
	}
	out = b.says("exec", args{"command": "sleep 1000", "timeout_seconds": 0.2}, "timeout_seconds")
	if out["exit_code"] != 124.0 {
		t.Errorf("%v", out)
	}
	b.says("exec", args{"argv": []string{"nosuch"}}, "nosuch")
	both := args{"command": "a", "argv": []string{"b"}}
	for _, in := range []args{{}, both, {"command": "a", "timeout_seconds": -1}, {"command": "a", "more": 1}} {
		b.call("exec", in, true)
	}
}

func TestOutputOfACommandIsReadByOffset(t *testing.T) {
	t.Parallel()
	b := openTools(t, nil)
	text, out := b.call("exec", args{"command": "seq 100000"}, false)
	b.want(text, "1\n2\n", "left out", "100000\n")
	id := out["command_id"]
	if out["truncated"] != true || out["total_bytes"] != 588895.0 || len(text) > 40<<10 {
		t.Errorf("%v", out)
	}
	var all strings.Builder
	for offset := 0.0; offset < 588895; {
		_, out = b.call("exec_output", args{"command_id": id, "offset": offset, "limit": 100000}, false)
		all.WriteString(out["output"].(string))
		offset = out["next_offset"].(float64)
	}
	if !strings.HasSuffix(all.String(), "99999\n100000\n") || all.Len() != 588895 {
		t.Errorf("%d bytes", all.Len())
	}
	res, err := b.session.ReadResource(context.Background(), &mcp.ReadResourceParams{URI: "agentsh://output/" + id.(string)})
	if err != nil || res.Contents[0].Text != all.String() {
		t.Errorf("resource: %v", err)
	}
	b.call("exec_output", args{"command_id": id, "offset": 588896}, true)
	b.call("exec_output", args{"command_id": "c99"}, true)
	_, out = b.call("exec", args{"command": "echo begun; sleep 1000", "background": true}, false)
	out = b.says("exec_output", args{"command_id": out["command_id"], "wait_seconds": 60}, "begun", "still running")
	out = b.says("exec_kill", args{"command_id": out["command_id"]}, "begun")
	if out["state"] != "ended" {
		t.Errorf("%v", out)
	}
}

func TestToolsReadWriteAndEditFiles(t *testing.T) {
	t.Parallel()
	b := openTools(t, nil)
	out := b.says("write", args{"path": "a/b.txt", "content": "one\ntwo\nthree\ntwo\n"}, "created", "/work/a/b.txt")
	if out["created"] != true || out["bytes"] != 18.0 {
		t.Errorf("%v", out)
	}
	_, out = b.call("read", args{"path": "a/b.txt", "offset": 2, "limit": 2}, false)
	if out["content"] != "two\nthree\n" || out["total_lines"] != 4.0 || out["truncated"] != true {
		t.Errorf("%v", out)
	}
	b.fails("edit", args{"path": "a/b.txt", "old_text": "two", "new_text": "2"}, "not unique", "2 times", "lines 2, 4", "replace_all")
	b.fails("edit", args{"path": "a/b.txt", "old_text": "two\n  three", "new_text": "2"}, "not found", "blanks differ", "line 2")
	b.fails("edit", args{"path": "a/b.txt", "old_text": "four", "new_text": "4"}, "not found", "read the file")
	_, out = b.call("edit", args{"path": "a/b.txt", "old_text": "three\ntwo\n", "new_text": "3\n"}, false)
	if out["replacements"] != 1.0 || out["line"] != 3.0 {
		t.Errorf("%v", out)
	}
	if data, err := os.ReadFile(filepath.Join(b.dir, "a/b.txt")); string(data) != "one\ntwo\n3\n" {
		t.Errorf("%q %v", data, err)
	}
	for name, wants := range map[string][]string{
		"none": {"does not exist"}, "a": {"no regular file"}, "secret/key": {"no-secrets", "keys stay here"}, "/dev/zero": {"no regular file"},
	} {
		b.fails("read", args{"path": name}, wants...)
	}
	b.fails("write", args{"path": "secret/new", "content": "x"}, "no-secrets")
	if _, err := os.Stat(filepath.Join(b.dir, "secret/new")); err == nil {
		t.Error("a denied file was written")
	}
	if err := os.WriteFile(filepath.Join(b.dir, "binary"), []byte("a\x00\xff"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.fails("read", args{"path": "binary"}, "no UTF-8 text", "base64")
	text, _ := b.call("write", args{"path": "odd 'name\" $(x)\n.txt", "content": "\\n$HOME"}, false)
	if data, err := os.ReadFile(filepath.Join(b.dir, "odd 'name\" $(x)\n.txt")); string(data) != "\\n$HOME" {
		t.Errorf("%q %v %s", data, err, text)
	}
}

func TestToolsListAndSearch(t *testing.T) {
	t.Parallel()
	b := openTools(t, nil)
	b.call("exec", args{"command": "mkdir -p src/a .git && echo 'func One()' >src/a/one.go && echo 'func Two(): x' >src/two.go && echo one >src/b.txt &&" +
		" echo func >.git/config && ln -s b.txt src/link && printf 'odd' >\"$(printf 'src/a\\nb')\" && chmod 640 src/b.txt"}, false)
	out := b.says("list", args{"path": "src"}, " 640          4  b.txt\n", "a/\n", "link@\n", `a\nb`)
	if list, _ := out["entries"].([]any); len(list) != 5 {
		t.Errorf("%v", out)
	}
	_, out = b.call("glob", args{"pattern": "**/*.go"}, false)
	if list := fmt.Sprint(out["files"]); list != "[src/a/one.go src/two.go]" {
		t.Error(list)
	}
	out = b.says("grep", args{"pattern": "func (One|two)", "ignore_case": true, "include": "*.go"},
		"src/a/one.go:1: func One()\n", "src/two.go:1: func Two(): x\n")
	if list, _ := out["matches"].([]any); len(list) != 2 {
		t.Errorf("%v", out)
	}
	b.says("grep", args{"pattern": "config"}, "no line matches")
	b.fails("grep", args{"pattern": "("}, "nmatched (")
	b.fails("grep", args{"pattern": "x", "path": "nosuch"}, "does not exist")
	b.fails("list", args{"path": "secret"}, "no-secrets")
	b.call("glob", args{"pattern": "/etc/*"}, true)
	b.call("glob", args{"pattern": "../*"}, true)
}

func TestAPatchIsAppliedWholeOrNot(t *testing.T) {
	t.Parallel()
	b := openTools(t, nil)
	b.call("exec", args{"command": "printf 'one\\ntwo\\n' >a; echo old >b; echo c >c"}, false)
	b.fails("apply_patch", args{"patch": "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n--- a/b\n+++ b/b\n@@ -1 +1 @@\n-new\n+newer\n"},
		"nothing was changed", "/work/b: hunk 1", `the first is "new"`)
	b.says("exec", args{"command": "cat a"}, "one\ntwo\n")
	out := b.says("apply_patch", args{"patch": "*** Begin Patch\n*** Update File: a\n one\n-two\n+2\n*** Add File: d/new\n+x\n*** Delete File: b\n" +
		"*** Update File: c\n*** Move to: d/c\n-c\n+C\n*** End Patch"}, "changed", "created", "deleted", "moved")
	if list, _ := out["files"].([]any); len(list) != 4 {
		t.Errorf("%v", out)
	}
	b.says("exec", args{"command": "cat a d/new d/c; ls"}, "one\n2\nx\nC\na\nd\n")
	b.fails("apply_patch", args{"patch": "*** Begin Patch\n*** Add File: secret/x\n+x\n*** End Patch"}, "no-secrets")
}

func TestChangesAndCheckpoints(t *testing.T) {
	t.Parallel()
	b := openTools(t, nil)
	b.call("write", args{"path": "a", "content": "one\n"}, false)
	out := b.says("checkpoint", args{"name": "first"}, "checkpoint ")
	id := out["checkpoints"].([]any)[0].(map[string]any)["id"]
	b.call("write", args{"path": "a", "content": "two\n"}, false)
	b.call("write", args{"path": "b", "content": "b\n"}, false)
	if err := os.WriteFile(filepath.Join(b.dir, "secret", "key"), []byte("new key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text, _ := b.call("changes", args{"diff": true}, false)
	b.want(text, "created   a", "+two", "created   b")
	if strings.Contains(text, "new key") {
		t.Errorf("a file that no command may read is shown: %s", text)
	}
	b.says("checkpoints", args{}, "first")
	b.says("rollback", args{"id": id}, "as at checkpoint")
	b.says("exec", args{"command": "cat a; ls"}, "one\na\n")
	b.fails("rollback", args{"id": "99"}, `there is no checkpoint "99": checkpoints lists those that there are, the newest is "1"`)
}

func TestAClientSeesProgress(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var said []string
	b := openTools(t, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, r.Params.Message)
	}})
	params := &mcp.CallToolParams{Name: "exec", Arguments: args{"command": "echo halfway; read -t 1 <> <(:); true"}}
	params.SetProgressToken("p")
	if _, err := b.session.CallTool(context.Background(), params); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(strings.Join(said, "|"), "halfway")
	})
}

// TestACancelledCallEndsItsCommand holds it for everything that the command started.
func TestACancelledCallEndsItsCommand(t *testing.T) {
	t.Parallel()
	b := openTools(t, nil)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				_, err := b.session.CallTool(ctx, &mcp.CallToolParams{Name: "exec",
					Arguments: args{"command": "echo x >>started; setsid sleep 987654 & sleep 987654"}})
				ended <- err
			}()
			eventually(t, func() bool {
				_, err := os.Stat(filepath.Join(b.dir, "started"))
				return err == nil
			})
			cancel()
			if err := <-ended; err == nil {
				t.Error("a cancelled call has a result")
			}
		})
	}
	wg.Wait()
	eventually(t, func() bool {
		text, _ := b.call("exec", args{"argv": []string{"pgrep", "-c", "-f", "^sleep 987654"}}, false)
		return strings.HasPrefix(text, "0\n")
	})
}

// TestTheEndOfTheClientEndsTheSession ends the client in each way while a command runs.
func TestTheEndOfTheClientEndsTheSession(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(b *toolbox){
		"its stream": func(b *toolbox) { _ = b.session.Close() },
		"SIGTERM":    func(b *toolbox) { _ = b.cmd.Process.Signal(syscall.SIGTERM) },
		"SIGKILL":    func(b *toolbox) { _ = b.cmd.Process.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			b := openTools(t, nil)
			b.call("exec", args{"command": "sleep 987", "background": true}, false)
			end(b)
			awaitNoSessions(t, b.run)
		})
	}
}

func TestSchemasHaveOneTypeEach(t *testing.T) {
	t.Parallel()
	b := openTools(t, nil)
	for tool, err := range b.session.Tools(context.Background(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		for _, schema := range []any{tool.InputSchema, tool.OutputSchema} {
			data, err := json.Marshal(schema)
			if err != nil || bytes.Contains(data, []byte(`"null"`)) || !bytes.Contains(data, []byte(`"object"`)) {
				t.Errorf("%s: %v %s", tool.Name, err, data)
			}
		}
	}
}

// eventually waits until a condition holds, which another process brings about.
func eventually(t testing.TB, holds func() bool) {
	t.Helper()
	limit := time.After(2 * time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("it does not come to hold")
		}
	}
}

// serveRun starts 'agentctl mcp' for a fixture and connects to it.
func serveRun(p *fixture, flags ...string) *toolbox {
	p.t.Helper()
	b := &toolbox{t: p.t, stderr: &bytes.Buffer{}}
	b.cmd = p.command(append([]string{"mcp", "--repo", "repo", "--out", "out"}, flags...)...)
	b.cmd.Stderr = b.stderr
	var err error
	b.session, err = mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
		Connect(context.Background(), &mcp.CommandTransport{Command: b.cmd, TerminateDuration: 2 * time.Minute}, nil)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, b.stderr)
	}
	return b
}

// TestARunServesItsTools works in a sandbox by tools, and takes the work out in each way in which
// a client ends.
func TestARunServesItsTools(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(b *toolbox){
		"its stream": func(b *toolbox) { _ = b.session.Close() },
		"SIGTERM":    func(b *toolbox) { _ = b.cmd.Process.Signal(syscall.SIGTERM) },
		"SIGKILL":    func(b *toolbox) { _ = b.cmd.Process.Kill() },
		"SIGTERM to all that it started, as OpenCode does": func(b *toolbox) {
			below := []int{b.cmd.Process.Pid}
			for i := 0; i < len(below); i++ {
				below = append(below, childrenOf(below[i])...)
			}
			for _, pid := range below[1:] {
				_ = syscall.Kill(pid, syscall.SIGTERM)
			}
			_ = b.session.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFixture(t, "exit 1", "")
			flags := []string{"harness.yaml"}
			if name == "its stream" {
				flags = []string{"--policy", "policy.yaml"}
			}
			b := serveRun(p, flags...)
			b.says("edit", args{"path": "a.txt", "old_text": "one", "new_text": "two"}, "/sandbox/workspace/repo/a.txt")
			b.call("exec", args{"command": "git commit -qam second && echo x >new.txt"}, false)
			out := b.says("exec", args{"argv": []string{"kill", "1"}}, "block-kill", "processes are not signalled from here")
			if out["exit_code"] != 126.0 {
				t.Errorf("%v", out)
			}
			b.says("checkpoint", args{}, "checkpoint 1")
			b.call("exec", args{"command": "rm new.txt"}, false)
			b.call("rollback", args{"id": "1"}, false)
			b.says("changes", args{}, "workspace/repo/new.txt")
			b.says("changes", args{"diff": true}, "modified  workspace/repo/a.txt\n", "-one\n+two\n", "created   workspace/repo/new.txt")
			b.fails("rollback", args{"id": "99"}, "no checkpoint")
			end(b)
			eventually(t, func() bool {
				_, err := os.Stat(p.path("out/result.json"))
				return err == nil
			})
			eventually(t, func() bool { // the record of the run is closed last
				boxes, err := os.ReadDir(p.path("state/agentsh/sandboxes"))
				left := 0
				for _, pattern := range []string{"work", "socket", "keys.json"} {
					names, _ := filepath.Glob(p.path("state/agentsh/runs/*/" + pattern))
					left += len(names)
				}
				return err == nil && len(boxes)+left == 0
			})
			var r controller.Result
			p.readJSON("out/result.json", &r)
			if r.Status != controller.StatusDone || len(r.Commits) != 1 || !strings.Contains(p.read("out/files/new.txt"), "x") {
				t.Errorf("%+v\n%s", r, b.stderr)
			}
			if got := p.git("show", r.Branch+":a.txt"); got != "two" {
				t.Errorf("%q", got)
			}
		})
	}
}
