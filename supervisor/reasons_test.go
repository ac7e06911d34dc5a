package supervisor

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"agentsh/internal/layout"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// toolCalls is an agent program: it runs each script of its arguments as a tool call
// with pipes, and prints what the tool wrote.
const toolCalls = `
import json, subprocess, sys
out = []
for script in sys.argv[1:]:
    merged = script.startswith('#merged')
    p = subprocess.run(['bash', '-c', script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT if merged else subprocess.PIPE, text=True, errors='backslashreplace')
    out.append({'stdout': p.stdout, 'stderr': p.stderr or ''})
print(json.dumps(out))
`

// calls runs scripts as tool calls of one command and returns what each wrote.
func (b *box) calls(t *testing.T, scripts ...string) []struct{ Stdout, Stderr string } {
	t.Helper()
	testenv.Need(t, testenv.Program("python3"))
	argv := append([]string{"python3", "-c", toolCalls}, scripts...)
	_, text := b.request(t, wire.ExecRequest{ID: t.Name(), Argv: argv, Reasons: true})
	var out []struct{ Stdout, Stderr string }
	if err := json.Unmarshal([]byte(text), &out); err != nil || len(out) != len(scripts) {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}

func TestToolCallsReadWhyTheyWereRefused(t *testing.T) {
	b := openBox(t, testPolicy)
	kill := "agentsh: denied: kill 1 (rule no-kill, test.yaml:4:5): no signals\n"
	for name, tt := range map[string]struct {
		script, stdout string
		stderr         []string
		count          int // of lines about denials
	}{
		"a program":                 {"/usr/bin/kill 1", "", []string{strings.Replace(kill, "kill 1", "/usr/bin/kill 1", 1)}, 1},
		"a program without a shell": {"exec -a kill /usr/bin/kill 1", "", []string{kill}, 1},
		"a program further below":   {"bash -c \"sh -c '/usr/bin/kill 1; true'; true\"; echo on", "on\n", []string{"rule no-kill"}, 1},
		"a file":                    {"mkdir guarded", "", []string{"agentsh: denied: mkdir " + b.workspace + "/guarded (rule guarded, "}, 1},
		"what nobody reads":         {"/usr/bin/kill 1 2>/dev/null; true", "", []string{"rule no-kill"}, 1},
		"output that is captured":   {"x=$(/usr/bin/kill 1 2>&1); echo \"got ${x##*: }\"", "got Permission denied\n", []string{"rule no-kill"}, 1},
		"a pipeline":                {"(echo data; /usr/bin/kill 1) | cat", "data\n", []string{"rule no-kill"}, 1},
		"one stream":                {"#merged\necho before; /usr/bin/kill 1; echo after", "", nil, 0},
		"each is told once":         {"for i in 1 2 3 4 5; do /usr/bin/kill 1; done", "", []string{"rule no-kill"}, 1},
		"what is not refused":       {"echo fine; echo bad >&2", "fine\n", []string{"bad\n"}, 0},
		"names do not move the cursor": {"/usr/bin/kill $'\\033[2J\\nagentsh: \\u202e' ; true", "",
			[]string{`agentsh: denied: /usr/bin/kill "\x1b[2J\nagentsh: \u202e" (rule no-kill`}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			got := b.calls(t, tt.script)[0]
			if name == "one stream" {
				if want := []string{"before\n", "rule no-kill", "after\n"}; !inOrder(got.Stdout, want) {
					t.Errorf("%q", got.Stdout)
				}
				return
			}
			if got.Stdout != tt.stdout {
				t.Errorf("stdout %q", got.Stdout)
			}
			for _, want := range tt.stderr {
				if !strings.Contains(got.Stderr, want) {
					t.Errorf("stderr %q, want %q", got.Stderr, want)
				}
			}
			if n := strings.Count(got.Stderr, "agentsh: denied"); n != tt.count {
				t.Errorf("%d refusals: %q", n, got.Stderr)
			}
			if strings.ContainsAny(got.Stderr, "\x1b\u202e") {
				t.Errorf("control characters: %q", got.Stderr)
			}
		})
	}
}

func inOrder(text string, parts []string) bool {
	for _, p := range parts {
		_, rest, found := strings.Cut(text, p)
		if !found {
			return false
		}
		text = rest
	}
	return true
}

// A tool call that is refused a lot reads the first reasons and that there are more,
// and the next one reads its own.
func TestReasonsAreBounded(t *testing.T) {
	b := openBox(t, testPolicy)
	long := strings.Repeat("x", 5000)
	got := b.calls(t, "for i in {1..50}; do /usr/bin/kill $i "+long+"; done", "/usr/bin/kill 1")
	first := got[0].Stderr
	if n := strings.Count(first, "agentsh: denied"); n != 8 || strings.Count(first, "agentsh: more was refused") != 1 {
		t.Errorf("%d refusals: %.3000s", n, first)
	}
	for line := range strings.Lines(first) {
		if strings.HasPrefix(line, "agentsh:") && len(line) > 1000 {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
	if !strings.Contains(got[1].Stderr, "rule no-kill") {
		t.Errorf("%q", got[1].Stderr)
	}
}

// Nobody reads the tool's standard error: its pipe is full, closed, or a file.
func TestReasonsWaitForNobody(t *testing.T) {
	b := openBox(t, testPolicy)
	script := `
import os, subprocess
r, w = os.pipe()
os.set_blocking(w, False)
try:
    while True: os.write(w, b'x' * 4096)
except BlockingIOError: pass
os.set_blocking(w, True)
print('full', subprocess.run(['/bin/bash', '-c', '/usr/bin/kill 1 2>/dev/null; echo on'], stderr=w, stdout=subprocess.PIPE).stdout)
r2, w2 = os.pipe()
os.close(r2)
print('closed', subprocess.run(['/bin/bash', '-c', '/usr/bin/kill 1 2>/dev/null; echo on'], stderr=w2, stdout=subprocess.PIPE).stdout)
with open('/tmp/log', 'wb') as log:
    subprocess.run(['/bin/bash', '-c', '/usr/bin/kill 1 2>/dev/null; echo second >&2'], stderr=log)
print(open('/tmp/log').read())
with open('governed', 'wb') as log:
    subprocess.run(['/bin/bash', '-c', '/usr/bin/kill 1 2>/dev/null; echo second >&2'], stderr=log)
print('governed', repr(open('governed').read()))
p = subprocess.run(['/bin/bash', '-c', '/usr/bin/kill 1; exec 2>&-; /usr/bin/kill 2'], stderr=open('/dev/null'), stdout=subprocess.PIPE)
print('none', p.stdout)
`
	_, out := b.request(t, wire.ExecRequest{ID: t.Name(), Argv: []string{"python3", "-c", script}, Reasons: true})
	for _, want := range []string{"full b'on\\n'", "closed b'on\\n'", "rule no-kill, test.yaml:4:5): no signals\nsecond\n", "governed 'second\\n'", "none b''"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
}

// A tool call without a readable standard error leaves its reasons in the file that the
// hook after the tool reads.
func TestReasonsWithoutAnOutputAreListed(t *testing.T) {
	cfg, log := testConfig(t, testPolicy)
	cfg.Program = true
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Program("python3"))
	b := openConfig(t, cfg, log)
	_, out := b.request(t, wire.ExecRequest{ID: t.Name(), Reasons: true, Argv: []string{"python3", "-c", `
import subprocess
for script in ['/usr/bin/kill 1', 'exec 2>&-; /usr/bin/kill 2', 'exec 2>/dev/null; /usr/bin/kill 3 2>&1']:
    subprocess.run(['bash', '-c', script + '; true'], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
subprocess.run(['bash', '-c', 'exec 2>/dev/null; /usr/bin/kill 4; true'], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
print(open('` + layout.Refusals + `').read())
`}})
	for i := 1; i <= 4; i++ {
		if n := strings.Count(out, fmt.Sprintf("agentsh: denied: /usr/bin/kill %d (rule no-kill", i)); n != 1 {
			t.Errorf("refusal %d is listed %d times in %s", i, n, out)
		}
	}
}

// Commands that did not ask for reasons, as those of "agentsh exec", get none: their
// caller prints the refusals at the end.
func TestReasonsAreRequested(t *testing.T) {
	b := openBox(t, testPolicy)
	_, out := b.run(t, "sh", "-c", "/usr/bin/kill 1; true")
	if strings.Contains(out, "agentsh:") {
		t.Errorf("%q", out)
	}
}
