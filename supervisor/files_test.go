package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor/fileserver"
)

// statusOf is one field of proc_pid_status(5).
func statusOf(t *testing.T, pid int, field string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no field %s", field)
	return ""
}

func TestTheFileServerIsConfined(t *testing.T) {
	b := openBox(t, testPolicy)
	pid := b.files.PID()
	for field, want := range map[string]string{"Seccomp": "2", "NoNewPrivs": "1"} {
		if got := statusOf(t, pid, field); got != want {
			t.Errorf("%s is %s, want %s", field, got, want)
		}
	}
	caps, err := strconv.ParseUint(statusOf(t, pid, "CapPrm"), 16, 64)
	if err != nil || caps&^fileserver.Capabilities != 0 {
		t.Errorf("capabilities %#x, %v", caps, err)
	}
	if err := os.Mkdir(b.workspace+"/guarded", 0o755); err != nil {
		t.Fatal(err)
	}
	exit, out := b.run(t, "sh", "-c", `set -e; echo a > f; mkdir d; mv f d/g; ln d/g h; echo b >> h; cat d/g; rm -r d
		mkfifo p; ln -s h l; cat l; cp /bin/bash t; ./t -c :; chmod 600 h; truncate -s 1 h; touch -d @1 h; stat -c '%s %Y' h; (echo no > guarded/x) 2>/dev/null || echo refused`)
	if want := "a\nb\na\nb\n1 1\nrefused\n"; exit.Code != 0 || out != want {
		t.Errorf("%+v: %q instead of %q", exit, out, want)
	}
	denied := b.events(t, func(e wire.Event) bool { return e.Type == wire.EventFile && e.Decision == "deny" })
	if len(denied) == 0 || denied[0].Process == nil {
		t.Errorf("events of the refusal: %+v", denied)
	}
}

func TestAFileServerThatHangsEndsTheSession(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	cfg, log := testConfig(t, testPolicy)
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
	defer func() { _ = b.Close() }() // it says what the test asks for below
	if exit, out := b.run(t, "sh", "-c", "echo kept > f && sync f"); exit.Code != 0 {
		t.Fatalf("%+v %q", exit, out)
	}
	if err := unix.Kill(b.files.PID(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ended := make(chan wire.Exit, 1)
	go func() { // the command waits for the stopped server; it ends with the session
		var out, errs bytes.Buffer
		exit, _, err := b.Exec(
			context.Background(),
			wire.ExecRequest{ID: "waits", Argv: []string{"cat", "another"}},
			wire.Streams{Stdout: &out, Stderr: &errs},
		)
		if err != nil {
			exit.Message = err.Error()
		}
		ended <- exit
	}()
	b.files.Watch(time.Millisecond, 100*time.Millisecond)
	select {
	case exit := <-ended:
		if exit.Kind != wire.ExitLost && exit.Code == 0 { // its own error may come before its end
			t.Errorf("the command ended with %+v", exit)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("the command waits for a dead server")
	}
	<-b.loop.done
	_, _, err = b.Exec(context.Background(), wire.ExecRequest{ID: "after", Argv: []string{"true"}}, wire.Streams{})
	if !errors.Is(err, ErrEnded) || !strings.Contains(fmt.Sprint(err), "did not answer") {
		t.Errorf("a command afterwards: %v", err)
	}
	if data, err := os.ReadFile(b.workspace + "/f"); err != nil || string(data) != "kept\n" {
		t.Errorf("the workspace holds %q, %v", data, err)
	}
}
