package runtime

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// parse passes a program's output to a parser in pieces of step bytes.
func parse(r Runtime, out string, step int) []Event {
	var got []Event
	p := r.Parser(func(e Event) { got = append(got, e) })
	for len(out) > 0 {
		n := min(step, len(out))
		if m, err := p.Stdout().Write([]byte(out[:n])); m != n || err != nil {
			panic(fmt.Sprint(m, err))
		}
		out = out[n:]
	}
	p.Close()
	return got
}

// claudeStream is a session of Claude Code 2.1.197, shortened.
const claudeStream = `{"type":"system","subtype":"init","tools":["Bash"],"model":"claude-x[1m]"}
{"type":"assistant","message":{"id":"msg_0","model":"claude-x","content":[{"type":"text","text":"let me look"}],"usage":{"input_tokens":100,"output_tokens":1}}}
{"type":"assistant","message":{"id":"msg_0","model":"claude-x","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"make test","description":"test"}}],"usage":{"input_tokens":100,"output_tokens":1}}}
{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"Exit code 2\nno rule","is_error":true}]}}
{"type":"assistant","message":{"id":"msg_1","model":"claude-x","content":[{"type":"tool_use","id":"t2","name":"mcp__x__y","input":{"n":1}}],"usage":{"input_tokens":150,"output_tokens":1}}}
{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t2","content":[{"type":"text","text":"a"},{"type":"image"},{"type":"text","text":"b"}]}]}}
`

const claudeEnd = `{"type":"result","subtype":"success","is_error":false,"num_turns":3,"result":"done","total_cost_usd":0.25,"usage":{"input_tokens":300,"output_tokens":60,"cache_read_input_tokens":7,"cache_creation_input_tokens":8},"permission_denials":[{"tool_name":"Bash","tool_use_id":"t3","tool_input":{"command":"rm x"}}]}
`

func TestTheStreamOfClaudeBecomesEvents(t *testing.T) {
	session := []Event{
		{Kind: EventSaid, Stream: "stdout", Text: "let me look"},
		{Kind: EventToolCall, Stream: "stdout", Text: "make test", Tool: "Bash", Call: "t1"},
		{Kind: EventToolResult, Stream: "stdout", Text: "Exit code 2\nno rule", Call: "t1", Failed: true},
		{Kind: EventUsing, Stream: "stdout", Usage: &Usage{Model: "claude-x", Turns: 1, Input: 100, Output: 1}},
		{Kind: EventToolCall, Stream: "stdout", Text: `{"n":1}`, Tool: "mcp__x__y", Call: "t2"},
		{Kind: EventToolResult, Stream: "stdout", Text: "a\nb", Call: "t2"},
	}
	end := []Event{
		{Kind: EventError, Stream: "stdout", Text: "permission denied: Bash rm x"},
		{
			Kind:   EventUsage,
			Stream: "stdout",
			Usage:  &Usage{Model: "claude-x", Turns: 3, Input: 300, Output: 60, CacheRead: 7, CacheWrite: 8, CostUSD: 0.25},
		},
		{Kind: EventResult, Stream: "stdout", Text: "done"},
	}
	stopped := []Event{{Kind: EventUsage, Stream: "stdout", Usage: &Usage{Model: "claude-x", Turns: 2, Input: 250, Output: 2}}}
	for name, tt := range map[string]struct {
		out  string
		want []Event
	}{
		"a whole session":             {claudeStream + claudeEnd, append(session[:6:6], end...)},
		"one that was stopped":        {claudeStream, append(session[:6:6], stopped...)},
		"one without a last line end": {claudeStream + strings.TrimSpace(claudeEnd), append(session[:6:6], end...)},
		"carriage returns and spaces": {strings.ReplaceAll(claudeStream+claudeEnd, "\n", "\r\n \n"), append(session[:6:6], end...)},
	} {
		for _, step := range []int{1, 7, 1 << 20} {
			if got := parse(claude{}, tt.out, step); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%s in steps of %d:\n got %+v\nwant %+v", name, step, got, tt.want)
			}
		}
	}
}

func TestFailuresOfClaudeAreReported(t *testing.T) {
	for line, want := range map[string]Event{
		`{"type":"result","subtype":"success","is_error":true,"result":"API Error: 500"}`:             {Kind: EventResult, Text: "API Error: 500", Failed: true},
		`{"type":"result","subtype":"error_max_turns","is_error":false}`:                              {Kind: EventResult, Text: "error max turns", Failed: true},
		`{"type":"result","subtype":"error_during_execution","is_error":true,"errors":["one","two"]}`: {Kind: EventResult, Text: "one\ntwo", Failed: true},
		`{"type":"result"}`: {Kind: EventResult, Failed: true},
		`{"type":"system","subtype":"api_retry","attempt":2,"error_status":429,"error":"rate\u001b[31m"}`: {Kind: EventError, Text: "the model's API failed (rate, status 429), attempt 2"},
		`{"type":"system","subtype":"api_retry","attempt":1,"error_status":null,"error":"unknown"}`:       {Kind: EventError, Text: "the model's API failed (unknown, status none), attempt 1"},
	} {
		got := parse(claude{}, line+"\n", 1<<20)
		want.Stream = "stdout"
		if last := got[len(got)-1]; !reflect.DeepEqual(last, want) {
			t.Errorf("%s: %+v", line, got)
		}
	}
}

// hostileLines are possible lines of an agent or of a tool's result.
var hostileLines = []string{
	"{", "{}", "[]", `{"type":1}`, `{"type":"assistant","message":7}`, `{"type":"assistant","message":{"content":{"a":1}}}`,
	`{"type":"user","message":{"content":[{"type":"tool_result","content":{"x":[[[[]]]]}}]}}`, `{"type":"result","usage":"x"}`,
	`{"type":"assistant","message":{"content":[{"type":"tool_use","name":"B\u001b]0;x\u0007ash\n::error::x","id":"\u202e","input":{"command":"::set-output name=a::b\u001b[2J\r\n::warning::c"}}]}}`,
	`{"type":"assistant","message":{"content":[{"type":"text","text":"\n::stop-commands::x\n##vso[task.setvariable]y\n\u001b[31mred\u0000"}]}}`,
	`{"type":"result","subtype":"success","result":"::add-mask::x\u2066","num_turns":-5,"total_cost_usd":1e308}`,
	`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"a","content":"` + strings.Repeat("x", 1_000_000) + `"}]}}`,
	`{"type":"assistant","message":{"content":"` + strings.Repeat("é", 6<<20/2) + `"}}`,
	strings.Repeat(`{"type":`, 200_000), strings.Repeat("[", 100_000), "\x00\xff\xfe", "::error::plain", "\x1b]8;;http://x\x07link",
}

func TestHostileOutputOfClaudeIsBounded(t *testing.T) {
	for _, line := range hostileLines {
		for _, e := range parse(claude{}, line+"\n"+claudeEnd, 64<<10) {
			for _, text := range append(strings.Split(e.Text, "\n"), e.Tool, e.Call) {
				if text != Clean(text) || strings.Contains(text, "\n") {
					t.Errorf("%.60q: not clean: %.100q", line, text)
				}
			}
			if len(e.Text) > maxText+100 {
				t.Errorf("%.60q: a text of %d bytes", line, len(e.Text))
			}
		}
		got := parse(claude{}, line+"\n"+claudeEnd, 1<<20)
		if last := got[len(got)-1]; last.Kind != EventResult || last.Text != "done" || last.Failed {
			t.Errorf("%.60q: what follows is lost: %+v", line, last)
		}
	}
}

// TestALongObjectUsesBoundedMemory feeds 64 MiB without a line end.
func TestALongObjectUsesBoundedMemory(t *testing.T) {
	var got []Event
	p := claude{}.Parser(func(e Event) { got = append(got, e) })
	chunk := []byte(strings.Repeat("x", 64<<10))
	_, _ = p.Stdout().Write([]byte("{"))
	for range 1024 {
		_, _ = p.Stdout().Write(chunk)
	}
	if n := cap(p.(*claudeParser).stdout.buf); n > 0 {
		t.Errorf("%d bytes are held", n)
	}
	p.Close()
	if len(got) != 1 || got[0].Text != "(a line of 67108865 bytes was left out)" {
		t.Errorf("%+v", got)
	}
}

func FuzzClaudeStream(f *testing.F) {
	f.Add(claudeStream + claudeEnd)
	for _, line := range hostileLines {
		if len(line) < 10_000 {
			f.Add(line)
		}
	}
	f.Fuzz(func(t *testing.T, out string) {
		whole := parse(claude{}, out, 1<<20)
		if split := parse(claude{}, out, 3); !reflect.DeepEqual(whole, split) {
			t.Errorf("%+v\n%+v", whole, split)
		}
		for _, e := range whole {
			for _, text := range strings.Split(e.Text, "\n") {
				if text != Clean(text) {
					t.Errorf("not clean: %q", text)
				}
			}
		}
	})
}

func TestTheCommandOfClaude(t *testing.T) {
	in := Invocation{
		Agent: "fixer", Directories: Directories{RepoDir: "/sandbox/workspace/app"},
		Model: "opus", Effort: "high", Argv: []string{"/opt/claude", "--debug"},
		Feedback: Feedback{File: "/f", Text: "--not an option"}, Iteration: 2,
		Started: Started{
			Servers: []Server{{Name: "notes", Argv: []string{"/opt/notes"}}},
			Plugins: []string{"/sandbox/claude-config/plugins/lsp"},
			Hooks:   []Hook{{Tools: "Bash|Edit", Argv: []string{"/usr/lib/agentsh/agentsh", "hook", "it's"}}, {After: true, Argv: []string{"/h"}}},
		},
	}
	c, err := claude{}.Command(in)
	if err != nil {
		t.Fatal(err)
	}
	n := len(c.Argv)
	if c.Argv[0] != "/opt/claude" || c.Argv[1] != "--debug" || c.Argv[n-2] != "--" || !strings.Contains(c.Argv[n-1], "--not an option") {
		t.Errorf("%q", c.Argv)
	}
	line := strings.Join(c.Argv[:n-1], " ")
	for _, want := range []string{"-p --agent operator:fixer --plugin-dir /sandbox/claude-config ", "--plugin-dir /sandbox/claude-config/plugins/lsp", "--model opus", "--effort high", "--strict-mcp-config"} {
		if !strings.Contains(line, want) {
			t.Errorf("%s: no %s", line, want)
		}
	}
	files, err := claude{}.Files(in)
	if err != nil {
		t.Fatal(err)
	}
	var settings struct {
		Off   *bool `json:"disableAllHooks"`
		Env   map[string]string
		Hooks map[string][]struct {
			Matcher string
			Hooks   []struct{ Type, Command string }
		}
	}
	if err := json.Unmarshal(files[0].Data, &settings); err != nil || settings.Off == nil || *settings.Off {
		t.Fatalf("%v: %s", err, files[0].Data)
	}
	before, after := settings.Hooks["PreToolUse"], settings.Hooks["PostToolUse"]
	if len(before) != 1 || before[0].Matcher != "Bash|Edit" ||
		before[0].Hooks[0].Command != `'/usr/lib/agentsh/agentsh' 'hook' 'it'\''s' || exit 2` ||
		len(after) != 1 ||
		after[0].Matcher != "*" ||
		after[0].Hooks[0].Type != "command" {
		t.Errorf("%+v", settings.Hooks)
	}
	if settings.Env["MCP_CONNECTION_NONBLOCKING"] != "0" {
		t.Errorf("%q: the first calls of tools can come before their servers are there", settings.Env)
	}
	if !strings.Contains(line, "--settings "+files[0].Dest) {
		t.Errorf("%s does not name %s", line, files[0].Dest)
	}
}

func TestTheTaskContainsTheValidatorsOutput(t *testing.T) {
	in := Invocation{Directories: Directories{RepoDir: "/r"}, Iteration: 2}
	if first := Task(in); strings.Contains(first, "attempt") || !strings.Contains(first, "/r") || !strings.Contains(first, "/o") {
		t.Errorf("%s", first)
	}
	in.Feedback.File = "/feedback/iteration-1.txt"
	if text := Task(in); !strings.Contains(text, "did not say why") {
		t.Errorf("%s", text)
	}
	in.Feedback.Text = "line 3 is wrong"
	if text := Task(in); !strings.HasSuffix(text, "The validator said:\n\nline 3 is wrong\n") {
		t.Errorf("%s", text)
	}
	in.Feedback.Text = strings.Repeat("é", 100_000) + "END"
	if text := Task(in); len(text) > 40<<10 || !strings.HasSuffix(text, "éEND\n") || !strings.Contains(text, in.Feedback.File) ||
		strings.ToValidUTF8(text, "?") != text {
		t.Errorf("%d bytes: %.400s", len(text), text)
	}
}

func TestAClaudeDefinitionForAnotherAgentIsRefused(t *testing.T) {
	for text, ok := range map[string]bool{
		"plain":                              true,
		"---\nname: fixer\n---\nx":           true,
		"---\r\nname: \"fixer\"\r\n---\r\nx": true,
		"---\ndescription: d\nname: 'fixer'\ntools: x\n---\nname: other": true,
		"---\ndescription: d\n---\nname: other":                          true,
		"---\nname: other\n---\nx":                                       false,
		"---\ndescription: d\nname: other\n---\n":                        false,
	} {
		if err := (claude{}).Check(Invocation{Agent: "fixer", Text: text}); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestADefinitionThatConfiguresClaudeIsRefused(t *testing.T) {
	for _, line := range []string{
		"hooks: {PreToolUse: []}", `"hooks": {}`, "'mcpServers': {}", "mcpServers : {}", "permissionMode\t: bypassPermissions",
	} {
		in := Invocation{Agent: "fixer", Text: "---\nname: fixer\n" + line + "\n---\nFix it.\n"}
		if err := (claude{}).Check(in); err == nil || !strings.Contains(err.Error(), "which nothing acts on") {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// A program in a sandbox may say anything of what it used. The sums of a batch, and so its budget, hold nevertheless.
func TestUsageThatIsReportedWrongSpoilsNoSum(t *testing.T) {
	const most = 1<<63 - 1
	sum := Usage{Turns: 2, Input: 100, Output: 10, CacheRead: 5, CacheWrite: 5, CostUSD: 1}
	for _, bad := range []Usage{
		{Turns: -5, Input: -50, Output: -1 << 63, CacheRead: -1, CacheWrite: -1, CostUSD: -100},
		{Turns: most, Input: most, Output: most, CacheRead: most, CacheWrite: most, CostUSD: 1e300},
	} {
		for range 3 {
			before := sum
			sum.Add(bad)
			if sum.Tokens() < before.Tokens() || sum.Turns < before.Turns || sum.Input < before.Input || sum.CostUSD < before.CostUSD {
				t.Errorf("%+v and %+v are %+v, %d tokens", before, bad, sum, sum.Tokens())
			}
		}
	}
	line := `{"type":"result","subtype":"success","num_turns":-3,"total_cost_usd":-1,"usage":{"input_tokens":-500,"output_tokens":9223372036854775807}}` + "\n"
	var last *Usage
	for _, e := range parse(claude{}, line, 1<<20) {
		if e.Usage != nil {
			last = e.Usage
		}
	}
	if last == nil || last.Input != 0 || last.Turns < 0 || last.Output <= 0 || last.Tokens() < last.Output || last.CostUSD != 0 {
		t.Errorf("the usage is %+v", last)
	}
}
