package sandboxes_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/sandboxes"
)

// standIn is a shell script that is started in place of agentctl.
func standIn(t *testing.T, script string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "agentctl")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestStartEndsWithItsContext has programs that do not answer, and that do not end when their input does.
func TestStartEndsWithItsContext(t *testing.T) {
	for name, script := range map[string]string{
		"a program that does nothing":     "exec sleep 120",
		"one whose child has its streams": "echo >&2 up; sleep 120",
	} {
		t.Run(name, func(t *testing.T) {
			up := errors.New("enough")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			file := standIn(t, strings.ReplaceAll(script, "sleep", "sleep 2>/dev/null"))
			if strings.Contains(script, "up") {
				_, err := sandboxes.Start(ctx, sandboxes.Options{Program: file, Stderr: told(func() { cancel(up) })})
				if !errors.Is(err, up) {
					t.Error(err)
				}
				return
			}
			cancel(up)
			if _, err := sandboxes.Start(ctx, sandboxes.Options{Program: file}); !errors.Is(err, up) {
				t.Error(err)
			}
		})
	}
}

// told calls a function for each write.
type told func()

func (w told) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

// TestAnErrorOfAFunctionForOutputIsRaised has the Python client call one that fails, and go on.
func TestAnErrorOfAFunctionForOutputIsRaised(t *testing.T) {
	testenv.Need(t, testenv.Program("python3"))
	file := standIn(t, `read -r line
echo '{"jsonrpc":"2.0","method":"output","params":{"id":1,"stream":"stdout","data_base64":"eA=="}}'
echo '{"jsonrpc":"2.0","method":"ended","params":{"sandbox":"s","message":"m"}}'
echo '{"jsonrpc":"2.0","id":1,"result":{}}'
read -r taken; read -r line; echo '{"jsonrpc":"2.0","id":2,"result":"next"}'; read -r line`)
	cmd := exec.Command("timeout", "120", "python3", "-c", `
import sys
from agentsh_sandboxes import Client
with Client(sys.argv[1]) as client:
    try:
        client.call("exec", lambda stream, data: 1 / 0)
    except ZeroDivisionError:
        print("raised")
    print(client.call("list"))`, file)
	cmd.Env = append(os.Environ(), "PYTHONPATH=../examples/sandboxes", "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "raised\nnext\n" {
		t.Errorf("%v %s", err, out)
	}
}
