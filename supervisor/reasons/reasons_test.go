package reasons

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/seccomp/target"
)

// agentProcess starts a shell that does what is written to its input, one line after
// the other. The script that it begins with runs in it.
func agentProcess(t testing.TB, stderr *os.File) (pid int, do func(line string) (answer string)) {
	t.Helper()
	cmd := exec.Command("bash", "-c", `while read -r line; do eval "$line"; done`)
	cmd.Stderr = stderr
	in, err := cmd.StdinPipe()
	must(t, 0, err)
	out, err := cmd.StdoutPipe()
	must(t, 0, err)
	must(t, 0, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid, func(line string) string {
		t.Helper()
		_, err := fmt.Fprintln(in, line)
		must(t, 0, err)
		answer := make([]byte, 100)
		n, err := out.Read(answer)
		return strings.TrimSpace(string(answer[:must(t, n, err)]))
	}
}

// refusal is the event of a refusal that a process got.
func refusal(t testing.TB, pid int, what string) wire.Event {
	t.Helper()
	id, err := target.Identify(pid)
	must(t, 0, err)
	return wire.Event{Command: "agent", Argv: []string{what}, Process: &wire.Process{PID: id.PID, StartTime: id.Start}}
}

// number reads the number of a process.
func number(t testing.TB, text string) int {
	t.Helper()
	pid, err := strconv.Atoi(text)
	return must(t, pid, err)
}

// What the output of no tool call can have is listed, for the hook that tells it.
func TestRefusalsThatNoOutputCanHaveAreListed(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	must(t, 0, err)
	defer null.Close()
	dir := t.TempDir()
	untold := filepath.Join(dir, "untold")
	must(t, 0, os.WriteFile(untold, nil, 0o600))
	w := &Writer{Untold: untold}
	pid, do := agentProcess(t, null)
	must(t, 0, w.Register("agent", pid))
	const waits = "bash -c 'echo $$; exec sleep 1000'" // says its number when its output is what it will be
	for name, tt := range map[string]struct {
		start  string
		listed bool
	}{
		"nothing-of-its-own":   {waits + " &", true},
		"closed":               {waits + " 2>&- &", true},
		"nothing":              {waits + " 2>/dev/null &", true},
		"file":                 {waits + " 2>" + dir + "/out &", false},
		"nothing-below-a-file": {"(" + waits + " 2>/dev/null; true) 2>" + dir + "/out2 &", false},
		"closed-below-a-file":  {"(" + waits + " 2>&-; true) 2>" + dir + "/out3 &", false},
		"file-below-closed":    {"(" + waits + " 2>" + dir + "/out4; true) 2>&- &", false},
	} {
		p := number(t, do(tt.start))
		t.Cleanup(func() { _ = unix.Kill(p, unix.SIGKILL) })
		told := w.Refused(refusal(t, p, name))
		list, err := os.ReadFile(untold)
		if must(t, string(list), err); told == tt.listed || strings.Contains(string(list), "agentsh: denied: "+name+"\n") != tt.listed {
			t.Errorf("%s: written %v, the list is %q", name, told, list)
		}
	}
	if w.Refused(refusal(t, pid, "itself")) {
		t.Error("the agent program has an output")
	}
	if list, err := os.ReadFile(untold); !strings.Contains(string(list), "denied: itself") {
		t.Errorf("the list is %q, %v", list, err)
	}
}

// A process whose tool call has ended has its own output from then on, and what is
// remembered does not lead elsewhere.
func TestAProcessOutlivesItsToolCall(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	must(t, 0, err)
	defer null.Close()
	dir := t.TempDir()
	w := &Writer{}
	pid, do := agentProcess(t, null)
	must(t, 0, w.Register("agent", pid))
	p := number(t, do("(bash -c 'echo $$; exec sleep 1000' 2>"+dir+"/own; true) 2>"+dir+"/tool & tool=$!"))
	t.Cleanup(func() { _ = unix.Kill(p, unix.SIGKILL) })
	for _, tt := range []struct{ before, line, file string }{
		{"echo", "first", "tool"},
		{"echo", "second", "tool"}, // its ancestors are remembered
		{"kill -KILL $tool; wait $tool; echo", "third", "own"},
		{"echo", "fourth", "own"},
	} {
		do(tt.before + " next")
		if !w.Refused(refusal(t, p, tt.line)) {
			t.Errorf("%s is not written", tt.line)
		}
		if data, err := os.ReadFile(filepath.Join(dir, tt.file)); !strings.Contains(string(data), "denied: "+tt.line+"\n") {
			t.Errorf("no %s in %q, %v", tt.line, data, err)
		}
	}
}

// A tool call that has its lines costs little, however many processes are between it and
// the one that is refused.
func BenchmarkRepeatedRefusals(b *testing.B) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	must(b, 0, err)
	defer null.Close()
	for _, depth := range []int{1, 100} {
		b.Run(strconv.Itoa(depth), func(b *testing.B) {
			w := &Writer{}
			pid, do := agentProcess(b, null)
			must(b, 0, w.Register("agent", pid))
			p := number(b, do(fmt.Sprintf("export depth=%d; bash -c 'nest() { if ((depth--)); then (nest; true); else echo $BASHPID; exec sleep 1000; fi; }; nest' 2>%s/out &",
				depth, b.TempDir())))
			e := refusal(b, p, "x")
			for b.Loop() {
				if !w.Refused(e) {
					b.Fatal("not written")
				}
			}
		})
	}
}
