package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/controller/scan"
	"agentsh/internal/layout"
	"agentsh/internal/wire"
)

const goodFinding = `{"finding":{"file":"/sandbox/a","line":1,"column":2,"rule":"secret","severity":"critical","message":"m\u001b[31m","excerpt":"e"}}` + "\n"

const goodEnd = `{"files":3,"done":true}` + "\n"

func TestFindingsFromASandboxAreReadStrictly(t *testing.T) {
	var l scanLines
	for _, part := range []string{goodFinding[:7], goodFinding[7:], goodEnd} {
		if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	if l.err != nil || !l.done || len(l.found) != 1 || l.found[0].Message != `m\x1b[31m` {
		t.Errorf("%+v", l)
	}
	for name, text := range map[string]string{
		"nothing":           "\n",
		"no JSON":           "hello\n",
		"another field":     strings.Replace(goodFinding, `"excerpt"`, `"except"`, 1),
		"another severity":  strings.Replace(goodFinding, "critical", "fatal", 1),
		"no line":           strings.Replace(goodFinding, `"line":1`, `"line":0`, 1),
		"no file":           strings.Replace(goodFinding, "/sandbox/a", "", 1),
		"a trace":           strings.Replace(goodFinding, `"excerpt"`, `"trace"`, 1),
		"a text too long":   strings.Replace(goodFinding, `"e"`, `"`+strings.Repeat("x", maxScanField+1)+`"`, 1),
		"a line too long":   strings.Repeat("x", maxScanLine+1),
		"an empty object":   "{}\n",
		"both":              strings.Replace(goodFinding, `{"finding"`, `{"done":true,"finding"`, 1),
		"after the end":     goodEnd + goodFinding,
		"two ends":          goodEnd + goodEnd,
		"too many files":    `{"files":1000000000,"done":true}` + "\n",
		"too many findings": strings.Repeat(goodFinding, maxScanLines+1),
	} {
		var l scanLines
		if _, err := fmt.Fprint(&l, text); err != nil || l.err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// ending is a sandbox whose commands end in one way.
type ending struct {
	sandbox.Executor
	exit wire.Exit
	err  error
}

func (e ending) Run(context.Context, wire.ExecRequest, wire.Streams) (wire.Exit, error) {
	return e.exit, e.err
}

// TestAScanThatIsLostIsNoVerdict: trouble of the place does not block a run, and a batch makes another attempt.
func TestAScanThatIsLostIsNoVerdict(t *testing.T) {
	gone := errors.New("the channel has ended")
	for name, tt := range map[string]struct {
		of   ending
		lost bool
	}{
		"the supervisor is gone":   {ending{exit: wire.CauseSupervisor.Exit("gone"), err: gone}, true},
		"the command is lost":      {ending{exit: wire.Exit{Kind: wire.ExitLost, Message: "gone"}}, true},
		"the scan failed":          {ending{exit: wire.Exit{Kind: wire.ExitExited, Code: 1}}, false},
		"its output did not come":  {ending{exit: wire.Exit{Kind: wire.ExitExited}, err: gone}, false},
		"it printed no conclusion": {ending{exit: wire.Exit{Kind: wire.ExitExited}}, false},
	} {
		if _, err := (sandboxScan{}).command(t.Context(), tt.of, "run", nil); err == nil || errors.Is(err, errLost) != tt.lost {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzFindingsFromASandbox(f *testing.F) {
	f.Add([]byte(goodFinding + goodEnd))
	f.Fuzz(func(t *testing.T, text []byte) {
		var l scanLines
		if n, err := l.Write(text); n != len(text) || err != nil {
			t.Fatal(n, err)
		}
		for _, x := range l.found {
			if strings.ContainsAny(x.String(), "\n\x1b") {
				t.Errorf("%q", x)
			}
		}
	})
}

func TestFilesThatTheRunMadeAreNoFindings(t *testing.T) {
	const dest = layout.ConfigDir + "/gemini/.gemini/settings.json"
	const made = `{"tools": {"discoveryCommand": "", "callCommand": ""}, "hooks": {"x": {"command": "a"}}}`
	inside := func(content string) []scan.Finding {
		o := scan.All()
		o.Secrets = false
		found, err := scan.New(o).Text(context.Background(), "gemini/.gemini/settings.json", scan.Settings, bytes.NewReader([]byte(content)))
		if err != nil || len(found) == 0 {
			t.Fatalf("%v %v", found, err)
		}
		for i := range found {
			found[i] = visible(found[i])
			found[i].File = dest
		}
		return found
	}
	r := sandboxScan{
		runtimeFiles: []runtime.File{{Dest: dest, Data: []byte(made)}, {Dest: layout.ConfigDir + "/link", Target: "x"}},
	}
	if left, err := r.withoutRuntimeFiles(context.Background(), inside(made)); err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}
	for _, other := range []string{
		strings.Replace(made, `"discoveryCommand": ""`, `"discoveryCommand": "b"`, 1), strings.Replace(made, `"a"`, `"b"`, 1),
		strings.Replace(made, "{", "\n{", 1),
	} {
		if left, err := r.withoutRuntimeFiles(context.Background(), inside(other)); err != nil || len(left) == 0 {
			t.Errorf("%s: %v %v", other, left, err)
		}
	}
	elsewhere := inside(made)
	for i := range elsewhere {
		elsewhere[i].File = "/sandbox/workspace/app/.gemini/settings.json"
	}
	if left, err := r.withoutRuntimeFiles(context.Background(), slices.Clone(elsewhere)); err != nil || len(left) != len(elsewhere) {
		t.Errorf("%v %v", left, err)
	}
}
