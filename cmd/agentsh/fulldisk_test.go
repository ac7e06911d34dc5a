package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/cmd/agentsh/failure"
)

// smallDisk is a directory of 64 KiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=64k,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// untilFull runs programs, or makes files whose rule is to be told, until the audit
// log has no room.
var untilFull = map[string]string{
	"refusals": "n=0; while [ $n -lt 2000 ]; do n=$((n+1)); /bin/true; done",
	"programs": "n=0; while [ $n -lt 2000 ]; do n=$((n+1)); /bin/true || exit 3; done",
	"files":    "n=0; while [ $n -lt 2000 ]; do n=$((n+1)); : >told$n || exit 3; done",
}

const toldPolicy = `version: 1
name: told
command_rules:
  - {name: all, commands: ['*'], decision: allow}
file_rules:
  - {name: told, paths: ['${WORKSPACE}/told*'], operations: ['*'], decision: audit}
  - {name: workspace, paths: ['${WORKSPACE}', '${WORKSPACE}/**'], operations: ['*'], decision: allow}
  - {name: system, paths: ['/usr/**', '/bin/**', '/lib/**', '/lib64/**', '/etc', '/etc/**'], operations: [read, list, stat, execute], decision: allow}
`

// TestAFullDiskBelowTheAuditLogIsReported fills it in every way of starting a command:
// the client says why the command ended, and what to do.
func TestAFullDiskBelowTheAuditLogIsReported(t *testing.T) {
	dir := workDir(t)
	if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(toldPolicy), 0o644); err != nil {
		t.Fatal(err)
	}
	const why = "agentsh: the audit log cannot be written, and what it cannot record is refused: "
	expect := func(t *testing.T, cmd *exec.Cmd) {
		t.Helper()
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if code := runToEnd(t, cmd); code != failure.Ours {
			t.Errorf("exit status %d, want %d", code, failure.Ours)
		}
		got := errs.String()
		if strings.Count(got, "agentsh: ") != 2 || !strings.Contains(got, why) || !strings.Contains(got, "no space left on device\n") ||
			!strings.Contains(got, "agentsh: hint: free space") {
			t.Errorf("said %q", got)
		}
		if n := strings.Count(got, "audit event lost"); n > 4 {
			t.Errorf("%d lines for events that were lost", n)
		}
	}
	for name, script := range untilFull {
		t.Run("own session/"+name, func(t *testing.T) {
			log := filepath.Join(smallDisk(t), "log.jsonl")
			expect(t, program(t, dir, "exec", "-p", "policy.yaml", "-w", "work", "--audit", log, "--", "sh", "-c", script))
		})
		t.Run("own session, JSON/"+name, func(t *testing.T) {
			log := filepath.Join(smallDisk(t), "log.jsonl")
			out, _ := program(
				t,
				dir,
				"exec",
				"-p",
				"policy.yaml",
				"-w",
				"work",
				"--json",
				"--audit",
				log,
				"--",
				"sh",
				"-c",
				script,
			).Output() // the status is in it
			var got jsonResult
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if got.ExitCode != failure.Ours || !strings.Contains(got.Exit.Message, "no space left") || got.Exit.Hint == "" {
				t.Errorf("%+v", got.Exit)
			}
		})
		t.Run("running session/"+name, func(t *testing.T) {
			disk := smallDisk(t)
			if out, err := program(t, dir, "session", "create", "-p", "policy.yaml", "-w", "work", "--audit", filepath.Join(disk, "log.jsonl"),
				"--name", name).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Cleanup(func() { _ = program(t, dir, "session", "destroy", name).Run() }) // it may have ended
			expect(t, program(t, dir, "exec", "-s", name, "--", "sh", "-c", script))
			if name == "files" {
				return // the session ends with it
			}
			expect(t, program(t, dir, "exec", "-s", name, "--", "true"))
			if err := unix.Mount("none", disk, "", unix.MS_REMOUNT, "size=1m"); err != nil {
				t.Fatal(err)
			}
			if out, err := program(t, dir, "exec", "-s", name, "--", "echo", "room").Output(); string(out) != "room\n" || err != nil {
				t.Errorf("with room again: %q, %v", out, err)
			}
			log, err := os.ReadFile(filepath.Join(disk, "log.jsonl"))
			if err != nil || !strings.Contains(string(log), `events could not be written; what they describe was refused"`) {
				t.Errorf("the log does not say what is missing: %v", err)
			}
		})
	}
	t.Run("a log that was full before", func(t *testing.T) {
		disk := smallDisk(t)
		if err := os.WriteFile(filepath.Join(disk, "rest"), make([]byte, 60<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := program(t, dir, "exec", "-p", "policy.yaml", "-w", "work", "--audit", filepath.Join(disk, "log.jsonl"), "--", "true")
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != failure.Ours || strings.Count(string(out), "no space left on device") != 1 ||
			!strings.Contains(string(out), "agentsh: hint: ") {
			t.Errorf("exit status %d: %s", code, out)
		}
	})
	t.Run("a state directory that was full before", func(t *testing.T) {
		disk := smallDisk(t)
		if err := os.WriteFile(filepath.Join(disk, "rest"), make([]byte, 60<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := program(t, dir, "exec", "-p", "policy.yaml", "-w", "work", "--audit", filepath.Join(dir, "log.jsonl"), "--", "true")
		cmd.Env = append(cmd.Environ(), "XDG_STATE_HOME="+disk)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != failure.Ours || strings.Count(string(out), "no space left on device") != 1 ||
			!strings.Contains(string(out), "agentsh: hint: free space") {
			t.Errorf("exit status %d: %s", code, out)
		}
	})
}
