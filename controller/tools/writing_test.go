package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/internal/layout"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// storing are the cases of TestAFileIsWrittenWholeOrNotAtAll. Each begins in a directory of its own.
var storing = map[string]struct {
	prepare string // a script in the directory; $0 is a directory on a full file system
	file    string // what is written
	user    uint32
	sum     string
	want    string // what the script prints, its exit status, or "fails" for one that is the shell's
	then    string // a script that prints "yes" if all is as it should be
}{
	"a new file":             {"", "new", 0, "", "created", `[ "$(stat -c %a new)" = 644 ]`},
	"a new directory":        {"", "a/b/new", 0, "", "created", `[ -f a/b/new ]`},
	"another content":        {"echo old >f", "f", 0, "", "replaced", ``},
	"mode and owner":         {"echo old >f; chown 12:34 f; chmod 4751 f", "f", 0, "", "replaced", `[ "$(stat -c %u:%g:%a f)" = 12:34:4751 ]`},
	"a link":                 {"mkdir d; echo old >d/f; ln -s d/f l", "l", 0, "", "replaced", `[ -L l ] && cmp -s l d/f`},
	"a link to nothing":      {"mkdir d; ln -s d/f l", "l", 0, "", "created", `[ -L l ] && [ -f d/f ]`},
	"a loop of links":        {"ln -s l l", "l", 0, "", "fails", `[ -L l ]`},
	"a name with a line end": {`echo old >"$(printf 'x\ny')"; ln -s "$(printf 'x\ny')" l`, "l", 0, "", "replaced", `[ -L l ]`},
	"two names":              {"echo old >f; ln f g", "f", 0, "", "replaced in place", `cmp -s f g && [ f -ef g ]`},
	"a closed directory":     {"echo old >f; chown 65534 f; chmod 755 .", "f", 65534, "", "replaced in place", ``},
	"a stranger's file":      {"echo old >f; chmod 666 f; chmod 777 .", "f", 65534, "", "replaced in place", `[ "$(stat -c %u:%a f)" = 0:666 ]`},
	"not to be read":         {"echo old >f; chown 65534 f; chmod 200 f; chmod 777 .", "f", 65534, "", "replaced in place", ``},
	"not to be written":      {"echo old >f; chmod 444 f; chmod 755 .", "f", 65534, "", "fails", `[ "$(cat f)" = old ]`},
	"not to be made":         {"chmod 755 .", "f", 65534, "", "fails", `[ ! -e f ]`},
	"a directory":            {"mkdir f", "f", 0, "", "status 42", ``},
	"the expected content":   {"printf old >f", "f", 0, "cba06b5736faf67e54b07b561eae94395e774c517a7d910a54369e1263ccfbd4", "replaced", ``},
	"other content":          {"echo new >f", "f", 0, "cba06b5736faf67e54b07b561eae94395e774c517a7d910a54369e1263ccfbd4", "status 43", `[ "$(cat f)" = new ]`},
	"removed meanwhile":      {"", "f", 0, "cba06b5736faf67e54b07b561eae94395e774c517a7d910a54369e1263ccfbd4", "status 41", `[ ! -e f ]`},
	"a full disk":            {`echo old >"$0"/f; ln -s "$0"/f l`, "l", 0, "", "fails", `[ "$(cat l)" = old ]`},
	"no room in place": {`mkdir "$0"/d; echo old >"$0"/d/f; chown 65534 "$0"/d/f; chmod 755 "$0" "$0"/d; ln -s "$0"/d/f l`, "l", 65534, "", "fails",
		`[ "$(cat l)" = old ] && [ ! -e /tmp/.temporary ]`},
	"a full disk, a long old": {`head -c 50000 /dev/zero >"$0"/f; ln -s "$0"/f l`, "l", 0, "", "fails", `[ "$(wc -c <l)" = 50000 ]`},
}

// TestAFileIsWrittenWholeOrNotAtAll runs the script of write and edit in each shell, without a sandbox.
func TestAFileIsWrittenWholeOrNotAtAll(t *testing.T) {
	testenv.Need(t, testenv.Root)
	content := bytes.Repeat([]byte("content\n"), 10_000)
	for _, shell := range [][]string{{"dash"}, {"bash", "--posix"}, {"busybox", "sh"}} {
		for name, tt := range storing {
			t.Run(shell[0]+"/"+name, func(t *testing.T) {
				testenv.Need(t, testenv.Program(shell[0]))
				dir := openDirectory(t)
				full := filepath.Join(dir, "full")
				if err := errors.Join(os.Mkdir(full, 0o700), unix.Mount("tmpfs", full, "tmpfs", 0, "size=64k")); err != nil {
					t.Fatal(err)
				}
				defer func() { _ = unix.Unmount(full, unix.MNT_DETACH) }()
				work := filepath.Join(dir, "work")
				if err := os.Mkdir(work, 0o755); err != nil {
					t.Fatal(err)
				}
				in := func(user uint32, stdin io.Reader, script string, args ...string) string {
					cmd := exec.Command(shell[0], append(append(append([]string{}, shell[1:]...), "-c", script), args...)...)
					cmd.Dir, cmd.Stdin = work, stdin
					cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
					out, err := cmd.Output()
					var exit *exec.ExitError
					if errors.As(err, &exit) {
						return fmt.Sprintf("status %d", exit.ExitCode())
					}
					return string(out)
				}
				in(0, nil, tt.prepare, full)
				got := in(tt.user, bytes.NewReader(content), storeScript, "sh", filepath.Join(work, tt.file), ".temporary", tt.sum)
				failed := strings.HasPrefix(got, "status ")
				if got != tt.want && (tt.want != "fails" || !failed || strings.HasPrefix(got, "status 4")) {
					t.Errorf("%q, want %q", got, tt.want)
				}
				if ok := in(0, nil, tt.then+" && echo yes"); tt.then != "" && ok != "yes\n" {
					t.Errorf("not so: %s", tt.then)
				}
				if data, err := os.ReadFile(filepath.Join(work, tt.file)); !failed && (err != nil || !bytes.Equal(data, content)) {
					t.Errorf("%d bytes, %v", len(data), err)
				}
				if left := in(0, nil, `find . "$0" -name '.temporary'`, full); left != "" {
					t.Errorf("left: %s", left)
				}
			})
		}
	}
}

// TestAFileIsNotWrittenInPlaceWithoutItsOldContent has no directory for that.
func TestAFileIsNotWrittenInPlaceWithoutItsOldContent(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	if err := errors.Join(os.WriteFile(name, []byte("old"), 0o600), os.Link(name, filepath.Join(dir, "g"))); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", storeScript, "sh", name, ".temporary", "")
	cmd.Env, cmd.Stdin = append(os.Environ(), "TMPDIR="+filepath.Join(dir, "none")), strings.NewReader("new")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no place for the old content") {
		t.Errorf("%v: %s", err, out)
	}
	if data, err := os.ReadFile(name); err != nil || string(data) != "old" {
		t.Errorf("%q, %v", data, err)
	}
}

// openDirectory is a new directory that every user can enter.
func openDirectory(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// halfway gives a command half of its input.
type halfway struct {
	sandbox.Executor
	sent chan struct{} // closed then
}

func (h halfway) Run(ctx context.Context, req wire.ExecRequest, s wire.Streams) (wire.Exit, error) {
	if whole, ok := s.Stdin.(*strings.Reader); ok && whole.Len() > 1 {
		s.Stdin = io.MultiReader(io.LimitReader(whole, int64(whole.Len()/2)), &blocked{h.sent, ctx.Done()})
	}
	return h.Executor.Run(ctx, req, s)
}

// blocked has no bytes until a channel is closed.
type blocked struct {
	reached chan struct{}
	end     <-chan struct{}
}

func (b *blocked) Read([]byte) (int, error) {
	close(b.reached)
	<-b.end
	return 0, io.ErrUnexpectedEOF
}

// TestAWriteThatIsCancelledLeavesTheFile cancels it when half of the content is there.
func TestAWriteThatIsCancelledLeavesTheFile(t *testing.T) {
	box := openTools(t)
	file := layout.Workspace + "/f"
	if _, err := box.put(context.Background(), file, "old"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	half := halfway{box.cfg.Sandbox, make(chan struct{})}
	box.cfg.Sandbox = half
	go func() { // ends when half of the content is sent
		<-half.sent
		cancel()
	}()
	if _, err := box.put(ctx, file, strings.Repeat("new\n", 1<<20)); err == nil {
		t.Error("a cancelled write has no error")
	}
	out, err := box.script(context.Background(), `cat "$1"; ls -A "${1%/*}"`, nil, 1<<10, file)
	if err != nil || out.String() != "oldf\n" {
		t.Errorf("%q %v", out, err)
	}
}

// TestEditsAtOnceAreAllThere has several agents, or one that calls tools at once, edit one file.
func TestEditsAtOnceAreAllThere(t *testing.T) {
	client := connect(t, openTools(t))
	call := func(name string, args map[string]any) string {
		r, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
		switch {
		case err != nil:
			return err.Error()
		case r.IsError:
			return r.Content[0].(*mcp.TextContent).Text
		}
		return ""
	}
	const edits = 24
	var before, after strings.Builder
	for i := range edits {
		fmt.Fprintf(&before, "line %d.\n", i)
		fmt.Fprintf(&after, "edited %d.\n", i)
	}
	file := layout.Workspace + "/file"
	if said := call("write", map[string]any{"path": file, "content": before.String()}); said != "" {
		t.Fatal(said)
	}
	var wg sync.WaitGroup
	for i := range edits {
		wg.Go(func() {
			name, args := "edit", map[string]any{"path": file, "old_text": fmt.Sprintf("line %d.", i), "new_text": fmt.Sprintf("edited %d.", i)}
			if i%4 == 3 {
				name, args = "apply_patch", map[string]any{"patch": fmt.Sprintf(
					"*** Begin Patch\n*** Update File: %s\n@@\n-line %d.\n+edited %d.\n*** End Patch\n", file, i, i)}
			}
			if said := call(name, args); said != "" {
				t.Errorf("%s %d: %s", name, i, said)
			}
		})
	}
	wg.Wait()
	r, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "read", Arguments: map[string]any{"path": file}})
	if err != nil || r.Content[0].(*mcp.TextContent).Text != after.String() {
		t.Errorf("%v: %s", err, r.Content[0].(*mcp.TextContent).Text)
	}
}
