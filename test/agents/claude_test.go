package agents

import (
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/internal/fakemodel"
)

// claude is a harness for Claude Code.
func claude(t *testing.T, more string) harness {
	return harness{
		Runtime: "claude", Program: []string{program(t, "claude/node_modules/@anthropic-ai/claude-code-linux-*/claude")},
		Env:      "ANTHROPIC_BASE_URL: https://" + modelHost + ":PORT\nCLAUDE_CODE_MAX_RETRIES: \"0\"\n",
		Provider: "credentials: {ANTHROPIC_API_KEY: \"${MODEL_KEY}\"}\nheader: X-Api-Key\n",
		Agent:    "---\nname: tester\ndescription: tests\n---\nYou are the tester. DEFINITION-7731\n",
		More:     more,
	}
}

// bash is a turn that runs a command.
func bash(command string) fakemodel.Turn {
	return fakemodel.Turn{Calls: []fakemodel.Call{{Tool: "Bash", Input: map[string]any{"command": command, "description": "a step"}}}}
}

func call(tool string, input map[string]any) fakemodel.Turn {
	return fakemodel.Turn{Calls: []fakemodel.Call{{Tool: tool, Input: input}}}
}

// repoInside is the target in the sandbox.
const repoInside = "/sandbox/workspace/repo"

func TestClaudeMendsABug(t *testing.T) {
	w := newWorld(t, claude(t, ""), fakemodel.Turns(
		bash("./test.sh"),
		call("Read", map[string]any{"file_path": repoInside + "/double.sh"}),
		call("Edit", map[string]any{"file_path": repoInside + "/double.sh", "old_string": "$1 + 2", "new_string": "$1 + $1"}),
		bash("./test.sh && git commit -q -am 'double: add the argument to itself' && echo committed"),
		fakemodel.Turn{Say: "The sum added 2 instead of the argument."},
	))
	r, code := w.run()
	if code != 0 || r.Status != controller.StatusDone || r.Partial || r.AuditGaps != 0 {
		t.Fatalf("exit %d: %s %+v", code, r.Status, r.Error)
	}
	if len(r.Commits) != 1 || !strings.Contains(w.git("show", r.Branch+":double.sh"), "$1 + $1") {
		t.Errorf("commits: %+v", r.Commits)
	}
	for n, want := range []string{"double 1 gives 3", "echo $(($1 + 2))", "has been updated", "all good\ncommitted"} {
		if a := w.answer(n); !strings.Contains(a.Text, want) || a.Failed != (n == 0) {
			t.Errorf("tool call %d: %+v, want %q", n, a, want)
		}
	}
	for _, x := range r.Refused {
		t.Errorf("refused: %+v", x)
	}
	w.checkKey()
}
