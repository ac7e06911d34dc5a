package agents

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"agentsh/controller/mcpfilter"
	"agentsh/internal/fakemodel"
)

// filesServer is the part of a harness with the file server of the protocol's project.
func filesServer(t *testing.T, more string) string {
	return "mcp_servers:\n  - name: files\n    command: [node, '" +
		program(t, "mcp-filesystem/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js") + "', " + repoInside + "]\n" + more
}

func TestClaudeUsesAnMCPServerInTheSandbox(t *testing.T) {
	w := newWorld(t, claude(t, filesServer(t, "    tools: {allow: [read_text_file, write_file], deny: [write_file]}\n")), fakemodel.Turns(
		call("mcp__files__read_text_file", map[string]any{"path": repoInside + "/double.sh"}),
		call("mcp__files__write_file", map[string]any{"path": repoInside + "/double.sh", "content": "gone"}),
		fakemodel.Turn{Say: "It adds 2."},
	))
	w.write("agents/tester.md", "---\nname: tester\ndescription: tests\n---\nYou are the tester. DEFINITION-7731\n", 0o644)
	r, code := w.run()
	if code != 0 {
		t.Fatalf("exit %d: %s %+v", code, r.Status, r.Error)
	}
	if a := w.answer(0); !strings.Contains(a.Text, "echo $(($1 + 2))") || a.Failed {
		t.Errorf("a tool that the harness allows: %+v", a)
	}
	for _, tool := range w.model.Requests()[0].Tools {
		if strings.HasPrefix(tool, "mcp__") && tool != "mcp__files__read_text_file" {
			t.Errorf("the model may use %s", tool)
		}
	}
	audit := w.read("out/audit.jsonl")
	if !strings.Contains(audit, `"mcp-call","files","read_text_file"]`) {
		t.Error("the audit log does not have the call")
	}
	if w.read("repo/double.sh") == "gone" || len(r.Commits) != 0 {
		t.Error("the tool that is denied worked")
	}
}

// pins runs agentctl mcp-pins.
func (w *world) pins(more ...string) (string, int) {
	w.t.Helper()
	cmd := w.command()
	cmd.Args = append([]string{
		w.bin + "/agentctl", "mcp-pins", "harness.yaml", "--repo", "repo", "--agentsh-config", "config.yaml",
	}, more...)
	out, _ := cmd.CombinedOutput() // the exit code says it
	return string(out), cmd.ProcessState.ExitCode()
}

func TestToolsOfMCPServersArePinned(t *testing.T) {
	w := newWorld(t, claude(t, filesServer(t, "    pins: pins/files.json\n")), fakemodel.Turns(
		call("mcp__files__read_text_file", map[string]any{"path": repoInside + "/double.sh"}),
		call("mcp__files__list_directory", map[string]any{"path": repoInside}),
		fakemodel.Turn{Say: "It adds 2."},
	))
	w.write("agents/tester.md", "---\nname: tester\ndescription: tests\n---\nYou are the tester. DEFINITION-7731\n", 0o644)
	if r, code := w.run(); code != 2 || !strings.Contains(r.Error.Message+r.Error.Hint, "agentctl mcp-pins") {
		t.Errorf("without the file: exit %d, %+v", code, r.Error)
	}
	if out, code := w.pins(); code != 0 || !strings.Contains(out, "tool read_text_file is new") {
		t.Fatalf("exit %d: %s", code, out)
	}
	if out, code := w.pins("--check"); code != 0 {
		t.Errorf("nothing has changed: exit %d: %s", code, out)
	}
	// The pinned definition of one tool is another one than the server's.
	var pins mcpfilter.Pins
	if err := json.Unmarshal([]byte(w.read("pins/files.json")), &pins); err != nil {
		t.Fatal(err)
	}
	old, err := mcpfilter.NewDefinition(json.RawMessage(`{"name":"list_directory","description":"What it said when it was pinned."}`))
	if err != nil {
		t.Fatal(err)
	}
	pins.Tools["list_directory"] = mcpfilter.Pin{SHA256: old.SHA256, Definition: old.Text}
	data, err := json.Marshal(pins)
	if err != nil {
		t.Fatal(err)
	}
	w.write("pins/files.json", string(data), 0o644)
	if out, code := w.pins("--check"); code != 1 || !strings.Contains(out, "What it said when it was pinned.") ||
		!strings.Contains(out, "tool list_directory has changed") {
		t.Errorf("exit %d: %s", code, out)
	}
	cmd := w.command("--json")
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	_ = cmd.Run() // the exit code says it
	r := w.result(out.Bytes(), messages.String())
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		t.Fatalf("exit %d: %+v", code, r.Error)
	}
	if !strings.Contains(messages.String(), "What it said when it was pinned.") {
		t.Error("the difference is not shown")
	}
	if a := w.answer(0); !strings.Contains(a.Text, "echo $(($1 + 2))") {
		t.Errorf("a pinned tool: %+v", a)
	}
	for _, tool := range w.model.Requests()[0].Tools {
		if tool == "mcp__files__list_directory" {
			t.Error("the model has the tool with the changed definition")
		}
	}
	refused := false
	for _, x := range r.Refused {
		refused = refused || x.Rule.Name == "mcp-refused"
	}
	if !refused || !strings.Contains(w.read("out/audit.jsonl"), "its definition is not the pinned one") {
		t.Errorf("the refusal is not in the audit log: %+v", r.Refused)
	}
}

// prefixes are what programs write before the names of a server's tools.
var prefixes = map[string]string{"codex": "mcp__files__", "gemini": "mcp_files_", "opencode": "files_"}

func TestOtherProgramsUseAnMCPServerInTheSandbox(t *testing.T) {
	for _, p := range otherPrograms {
		t.Run(p.runtime, func(t *testing.T) {
			prefix := prefixes[p.runtime]
			w := newOther(t, p, fakemodel.Turns(
				call(prefix+"read_text_file", map[string]any{"path": repoInside + "/double.sh"}),
				fakemodel.Turn{Say: "It adds 2."},
			), filesServer(t, "    tools: {allow: [read_text_file]}\n"))
			r, code := w.run()
			if code != 0 {
				t.Fatalf("exit %d: %s %+v", code, r.Status, r.Error)
			}
			if a := w.answer(0); !strings.Contains(a.Text, "echo $(($1 + 2))") {
				t.Errorf("a tool that the harness allows: %+v", a)
			}
			for _, tool := range w.model.Requests()[0].Tools {
				if strings.HasPrefix(tool, prefix) && tool != prefix+"read_text_file" {
					t.Errorf("the model may use %s", tool)
				}
			}
			if !strings.Contains(w.read("out/audit.jsonl"), `"mcp-call","files","read_text_file"]`) {
				t.Error("the audit log does not have the call")
			}
		})
	}
}

// TestAServerOfManyKindsGivesToolsAlone has the server that tries all of the protocol: it offers prompts and resources, sends
// messages for logs, and asks for directories and for texts of the model.
func TestAServerOfManyKindsGivesToolsAlone(t *testing.T) {
	server := "mcp_servers:\n  - name: all\n    command: [node, '" +
		program(t, "mcp-everything/node_modules/@modelcontextprotocol/server-everything/dist/index.js") + "']\n"
	w := newWorld(t, claude(t, server), fakemodel.Turns(
		call("mcp__all__echo", map[string]any{"message": "one <two> \"three\" \u2028"}),
		call("mcp__all__trigger-long-running-operation", map[string]any{"duration": 1, "steps": 5}),
		call("mcp__all__get-sum", map[string]any{"a": 20, "b": 22}),
		fakemodel.Turn{Say: "It says so."},
	))
	w.write("agents/tester.md", "---\nname: tester\ndescription: tests\n---\nYou are the tester. DEFINITION-7731\n", 0o644)
	r, code := w.run()
	if code != 0 {
		t.Fatalf("exit %d: %s %+v", code, r.Status, r.Error)
	}
	for n, want := range []string{"one <two> \"three\" \u2028", "completed", "42"} {
		if a := w.answer(n); !strings.Contains(a.Text, want) || a.Failed {
			t.Errorf("tool call %d: %+v, want %q", n, a, want)
		}
	}
	for _, request := range w.model.Requests() {
		for _, tool := range request.Tools {
			if strings.Contains(tool, "McpResource") {
				t.Errorf("the model may use %s", tool)
			}
		}
	}
}
