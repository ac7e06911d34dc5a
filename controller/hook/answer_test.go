package hook

import (
	"bytes"
	"encoding/json"
	"testing"
)

// TestEachProgramIsAnsweredInItsForm has the same rewritten answer for each program.
func TestEachProgramIsAnsweredInItsForm(t *testing.T) {
	const notes = "agentsh: secrets redacted (1)"
	const redacted = "key [redacted secret]"
	for name, tt := range map[string]struct {
		program, event, tool string
		response, want       any
	}{
		"claude": {"claude", "PostToolUse", "Bash", map[string]any{"stdout": "key " + secret},
			map[string]any{"hookSpecificOutput": map[string]any{
				"hookEventName": "PostToolUse", "additionalContext": notes, "updatedToolOutput": map[string]any{"stdout": redacted}}}},
		"codex": {"codex", "PostToolUse", "Bash", "key " + secret, map[string]any{"decision": "block", "reason": notes + "\n\n" + redacted}},
		"gemini": {"gemini", "AfterTool", "run_shell_command", map[string]any{"llmContent": "key " + secret},
			map[string]any{"decision": "deny", "reason": notes + "\n\n" + redacted}},
		"opencode": {"opencode", "PostToolUse", "bash", "key " + secret, map[string]any{"notes": notes, "output": redacted}},
	} {
		t.Run(name, func(t *testing.T) {
			s := settings(t)
			s.Program = tt.program
			data, err := json.Marshal(map[string]any{
				"hook_event_name": tt.event, "tool_name": tt.tool, "tool_input": map[string]any{}, "tool_response": tt.response,
			})
			if err != nil {
				t.Fatal(err)
			}
			got, err := Run([]string{SecretRedact}, s, bytes.NewReader(data))
			want, _ := marshal(tt.want)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%v\n got %s\nwant %s", err, got, want)
			}
		})
	}
}
