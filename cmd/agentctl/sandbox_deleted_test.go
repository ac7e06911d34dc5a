package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

// TestACommandIsToldThatItsSandboxWasDeleted deletes a sandbox in which commands run, in each way to run them.
func TestACommandIsToldThatItsSandboxWasDeleted(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "exit 1", "")
	id := strings.TrimSpace(p.must("sandbox", "create", "--policy", "policy.yaml"))
	cmd := p.command("sandbox", "exec", id, "--", "sh", "-c", "echo begun; exec sleep 1000")
	_, lines, errs := startPiped(t, cmd)
	if line, err := lines.ReadString('\n'); err != nil || line != "begun\n" {
		t.Fatalf("%v %q %s", err, line, errs)
	}
	p.must("sandbox", "delete", id)
	_ = cmd.Wait()
	want := "the sandbox has ended: operator root deleted it\nagentctl: hint: 'agentctl runs show " + id + "' has the end"
	if code := cmd.ProcessState.ExitCode(); code != 125 || !strings.Contains(errs.String(), want) {
		t.Errorf("exec: %d %s", code, errs)
	}
	server := p.command("sandbox", "serve", "--stdio")
	in, lines, errs := startPiped(t, server)
	fmt.Fprintf(in, `{"jsonrpc":"2.0","id":1,"method":"create","params":{"policy":%q}}`+"\n", p.path("policy.yaml"))
	line, err := lines.ReadString('\n')
	_, rest, found := strings.Cut(line, `"sandbox":"`)
	if err != nil || !found {
		t.Fatalf("%v %s %s", err, line, errs)
	}
	id, _, _ = strings.Cut(rest, `"`)
	fmt.Fprintf(in, `{"jsonrpc":"2.0","id":2,"method":"exec","params":{"sandbox":%q,"stream":true,"script":"echo begun; sleep 1000"}}`+"\n", id)
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, `"output"`) {
		t.Fatalf("%v %s", err, line)
	}
	p.must("sandbox", "delete", id)
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "an operator has deleted it; make another one with create") {
		t.Errorf("%v %s", err, line)
	}
	_ = in.Close()
	if err := server.Wait(); err != nil {
		t.Errorf("%v %s", err, errs)
	}
}

// TestAnSSHClientIsToldThatItsSandboxWasDeleted deletes a sandbox in which people work by ssh: a command, and a connection without one.
func TestAnSSHClientIsToldThatItsSandboxWasDeleted(t *testing.T) {
	t.Parallel()
	testenv.Need(t, testenv.Program("ssh"))
	p := newFixture(t, "exit 1", "")
	p.write("policy.yaml", p.read("policy.yaml")+"\nssh: {sessions: true}\n", 0o644)
	for name, args := range map[string][]string{
		"a command":           {"box", "echo begun; exec sleep 1000"},
		"a terminal":          {"-tt", "box", "echo begun; exec sleep 1000"},
		"commands of a shell": {"-T", "box"},
	} {
		id := strings.TrimSpace(p.must("sandbox", "create", "--policy", "policy.yaml"))
		p.write("ssh config", p.must("ssh-config", id, "--host", "box"), 0o644)
		cmd := exec.Command("ssh", append([]string{"-F", p.path("ssh config")}, args...)...)
		in, lines, errs := startPiped(t, cmd)
		if len(args) == 2 && args[0] == "-T" {
			fmt.Fprintln(in, "echo begun")
		}
		if line, err := lines.ReadString('\n'); err != nil || strings.TrimSpace(line) != "begun" {
			t.Fatalf("%s: %v %q %s", name, err, line, errs)
		}
		p.must("sandbox", "delete", id)
		_ = cmd.Wait()
		if !strings.Contains(errs.String(), "the sandbox has ended: operator root deleted it") {
			t.Errorf("%s: %d %q", name, cmd.ProcessState.ExitCode(), errs)
		}
	}
}

// startPiped starts a program, and returns its standard input, output and error.
func startPiped(t *testing.T, cmd *exec.Cmd) (in io.WriteCloser, lines *bufio.Reader, errs *bytes.Buffer) {
	t.Helper()
	errs = &bytes.Buffer{}
	cmd.Stderr = errs
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return in, bufio.NewReader(out), errs
}
