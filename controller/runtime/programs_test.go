package runtime

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
)

var update = flag.Bool("update", false, "write the golden files of parsers")

// heard parses output and returns the events as lines of JSON.
func heard(t *testing.T, r Runtime, stdout, stderr []byte) string {
	t.Helper()
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	p := r.Parser(func(ev Event) {
		if err := e.Encode(ev); err != nil {
			t.Error(err)
		}
	})
	for len(stdout) > 0 {
		n := min(len(stdout), 1+rand.IntN(4096))
		if m, err := p.Stdout().Write(stdout[:n]); m != n || err != nil {
			t.Fatalf("Write = %d, %v", m, err)
		}
		stdout = stdout[n:]
	}
	if _, err := p.Stderr().Write(stderr); err != nil {
		t.Fatal(err)
	}
	p.Close()
	return out.String()
}

// TestRecordedOutputIsUnderstood parses recorded output of the real programs:
// PROGRAM-CASE.jsonl.
func TestRecordedOutputIsUnderstood(t *testing.T) {
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) < 7 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	for _, name := range files {
		program, _, _ := strings.Cut(filepath.Base(name), "-")
		t.Run(strings.TrimSuffix(filepath.Base(name), ".jsonl"), func(t *testing.T) {
			r, err := Lookup(program)
			if err != nil {
				t.Fatal(err)
			}
			output, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got := heard(t, r, output, nil)
			golden := strings.TrimSuffix(name, ".jsonl") + ".events"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("events of %s:\n%s\nwant:\n%s", name, got, want)
			}
		})
	}
}

// others are the runtimes whose programs write one JSON object a line, parsed
// by a recordParser.
var others = []Runtime{codex{}, gemini{}, opencode{}}

func TestHostileOutputIsSurvived(t *testing.T) {
	long := strings.Repeat("x", maxObject+10)
	tests := []struct{ name, in, want string }{
		{"text", "plain\n", `{"kind":"line","stream":"stdout","text":"plain"}`},
		{"broken JSON is text", "{\"type\":\n", `{"kind":"line","stream":"stdout","text":"{\"type\":"}`},
		{"an unknown record is text", "{\"type\":\"surprise\"}\n", `{"kind":"line","stream":"stdout","text":"{\"type\":\"surprise\"}"}`},
		{"another type of JSON is text", "[1]\n", `{"kind":"line","stream":"stdout","text":"[1]"}`},
		{"a workflow command in text", "::add-mask::x", `{"kind":"line","stream":"stdout","text":":add-mask::x"}`},
		{"a line that is too long is told", "{\"a\":\"" + long + "\"}\nnext\n",
			`{"kind":"line","stream":"stdout","text":"(a line of 4194322 bytes was left out)"}` + "\n" + `{"kind":"line","stream":"stdout","text":"next"}`},
	}
	for _, r := range others {
		for _, tt := range tests {
			t.Run(r.Name()+"/"+tt.name, func(t *testing.T) {
				if got := strings.TrimSpace(heard(t, r, []byte(tt.in), nil)); got != tt.want {
					t.Errorf("got  %s\nwant %s", got, tt.want)
				}
			})
		}
	}
}

func TestTextsOfTheModelAreCleanAndBounded(t *testing.T) {
	evil := "\x1b[31m::error::x \u202e" + strings.Repeat("é", 1<<20)
	text, err := json.Marshal(evil)
	if err != nil {
		t.Fatal(err)
	}
	records := map[string][]string{
		"codex": {
			`{"type":"item.completed","item":{"id":"i","type":"agent_message","text":EVIL}}`,
			`{"type":"item.completed","item":{"id":EVIL,"type":"command_execution","command":EVIL,"aggregated_output":EVIL,"exit_code":1}}`,
			`{"type":"item.completed","item":{"id":"i","type":"mcp_tool_call","server":EVIL,"tool":EVIL,"error":{"message":EVIL}}}`,
			`{"type":"turn.failed","error":{"message":EVIL}}`,
		},
		"gemini": {
			`{"type":"message","role":"assistant","content":EVIL}`,
			`{"type":"tool_use","tool_name":EVIL,"tool_id":EVIL,"parameters":{"command":EVIL}}`,
			`{"type":"tool_result","tool_id":EVIL,"status":"error","output":EVIL,"error":{"message":EVIL}}`,
			`{"type":"result","status":EVIL,"stats":{"models":{EVIL:{"input":-5}}}}`,
		},
		"opencode": {
			`{"type":"text","part":{"text":EVIL}}`,
			`{"type":"tool_use","part":{"tool":EVIL,"callID":EVIL,"state":{"status":"error","input":{"x":EVIL},"output":EVIL,"error":EVIL}}}`,
			`{"type":"step_finish","part":{"reason":EVIL,"cost":-1}}`,
			`{"type":"error","error":{"name":EVIL,"data":{"message":EVIL}}}`,
		},
	}
	for _, r := range others {
		for _, record := range records[r.Name()] {
			n := 0
			p := r.Parser(func(e Event) {
				n++
				checkEvent(t, r.Name(), e)
			})
			if _, err := p.Stdout().Write([]byte(strings.ReplaceAll(record, "EVIL", string(text)) + "\n")); err != nil {
				t.Fatal(err)
			}
			p.Close()
			if n == 0 {
				t.Errorf("%s: %s: no event", r.Name(), record)
			}
		}
	}
}

// checkEvent fails the test if an event is not safe to print or store.
func checkEvent(t *testing.T, name string, e Event) {
	t.Helper()
	for _, text := range []string{e.Text, e.Tool, e.Call} {
		if len(text) > limitText+limitAnswer {
			t.Fatalf("%s: %s of %d bytes", name, e.Kind, len(text))
		}
		for line := range strings.SplitSeq(text, "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "::") {
				t.Fatalf("%s: %s is a workflow command: %.100q", name, e.Kind, line)
			}
		}
		if strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' || r == 0x202e }) {
			t.Fatalf("%s: %s holds control characters: %.100q", name, e.Kind, text)
		}
	}
	if u := e.Usage; u != nil &&
		(u.Input < 0 || u.Output < 0 || u.CacheRead < 0 || u.CacheWrite < 0 || u.CostUSD < 0 || len(u.Model) > 2*maxName) {
		t.Fatalf("%s: usage %+v", name, *u)
	}
}

func TestStreamsMayBeWrittenConcurrently(t *testing.T) {
	for _, r := range others {
		n := 0
		p := r.Parser(func(Event) { n++ }) // under one mutex, as -race shows
		var wg sync.WaitGroup
		for _, w := range []io.Writer{p.Stdout(), p.Stderr()} {
			wg.Go(func() {
				for range 100 {
					_, _ = w.Write([]byte("{\"type\":\"surprise\"}\ntext\n"))
				}
			})
		}
		wg.Wait()
		p.Close()
		if n != 400 {
			t.Errorf("%s: %d events", r.Name(), n)
		}
	}
}

func FuzzParsersSurvive(f *testing.F) {
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, 7)
	}
	f.Fuzz(func(t *testing.T, output []byte, cut int) {
		for _, r := range others {
			p := r.Parser(func(e Event) { checkEvent(t, r.Name(), e) })
			at := 0
			if len(output) > 0 {
				at = max(cut, -cut, 0) % len(output)
			}
			_, _ = p.Stdout().Write(output[:at])
			_, _ = p.Stderr().Write(output)
			_, _ = p.Stdout().Write(output[at:])
			p.Close()
		}
	})
}

// invocation returns an invocation with every field set.
func invocation() Invocation {
	return Invocation{
		Agent: "fixer", Definition: "/sandbox/claude-config/agents/fixer.md", Text: "---\nname: fixer\ndescription: mends\n---\nYou mend \"bugs\".\n",
		Model: "vendor/model-1", Skills: []string{"lint"},
		Directories: Directories{RepoDir: "/sandbox/workspace/repo"}, RunID: "r1", Iteration: 1, Deadline: time.Unix(0, 0),
	}
}

func TestADefinitionThatRestrictsIsRefused(t *testing.T) {
	tests := []struct{ name, text, want, err string }{
		{"without front matter", "Do it.\n", "Do it.", ""},
		{"front matter goes", "---\nname: a\ndescription: |\n  long\n  text\ntags:\n- a\n# note\n---\n\nDo it.\n", "Do it.", ""},
		{"windows line ends", "---\r\nname: a\r\n---\r\nDo it.\r\n", "Do it.", ""},
		{"a rule inside stays", "Do it.\n---\nmore: x\n---\n", "Do it.\n---\nmore: x\n---", ""},
		{"tools would be open", "---\ntools: Read\n---\nDo it.\n", "", "sets tools, which this runtime does not act on"},
		{"also quoted", "---\n\"tools\": Read\n---\nDo it.\n", "", "no key"},
		{"also in flow style", "---\n{tools: Read}\n---\nDo it.\n", "", "no key"},
		{"a model too", "---\nname: a\nmodel: x\n---\nDo it.\n", "", "sets model"},
		{"without end", "---\nname: a\nDo it.\n", "", "no end"},
		{"nothing to do", "---\nname: a\n---\n \n", "", "says nothing"},
		{"nothing but front matter", "---\nname: a\n---", "", "says nothing"},
		{"a NUL", "Do\x00it", "", "NUL"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := invocation()
			in.Text = tt.text
			got, err := in.instructions()
			if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %q, %v", got, err)
			}
			for _, r := range others {
				if err := r.Check(in); (err == nil) != (tt.err == "") {
					t.Errorf("%s: Check: %v", r.Name(), err)
				}
			}
		})
	}
}

func TestUnsupportedInvocationsAreRefused(t *testing.T) {
	tests := []struct {
		name    string
		runtime Runtime
		change  func(*Invocation)
		want    string
	}{
		{"a definition longer than an argument", codex{}, func(in *Invocation) { in.Text = strings.Repeat("x", maxArgument+1) }, "too long"},
		{"also of opencode", opencode{}, func(in *Invocation) { in.Text = strings.Repeat("x", maxArgument+1) }, "too long"},
		{"a model without its provider", opencode{}, func(in *Invocation) { in.Model = "gpt" }, "PROVIDER/MODEL"},
		{"what opencode would replace", opencode{}, func(in *Invocation) { in.Text = "Say {env:TOKEN}." }, "would replace"},
		{"a NUL in an argument", gemini{}, func(in *Invocation) { in.Argv = []string{"gemini", "a\x00b"} }, "NUL"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := invocation()
			if err := tt.runtime.Check(in); err != nil {
				t.Fatalf("the invocation itself: %v", err)
			}
			tt.change(&in)
			if err := tt.runtime.Check(in); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Check: %v, want %q", err, tt.want)
			}
		})
	}
}

func TestCommandsOfThePrograms(t *testing.T) {
	for _, tt := range []struct {
		runtime Runtime
		want    []string // consecutive arguments, separated by a space
	}{
		{codex{}, []string{
			"env -u CODEX_HOME codex exec --json", "--ignore-user-config", "--ignore-rules", `-c web_search="disabled"`,
			`-c developer_instructions="You mend \"bugs\"."`, "--model vendor/model-1", `-c model_provider="agentsh"`, `-c model_reasoning_effort="high"`,
		}},
		{gemini{}, []string{
			"env GEMINI_CLI_HOME=/sandbox/claude-config/gemini",
			"GEMINI_SYSTEM_MD=/sandbox/claude-config/gemini/system.md", "gemini --output-format stream-json", "--model vendor/model-1", "--extensions none",
		}},
		{opencode{}, []string{
			"OPENCODE_DISABLE_PROJECT_CONFIG=1", "OPENCODE_PURE=1", "opencode run --format json --agent fixer", "--model vendor/model-1",
		}},
	} {
		in := invocation()
		in.Effort = "high"
		c, err := tt.runtime.Command(in)
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Join(c.Argv, " ")
		for _, want := range tt.want {
			if !strings.Contains(all, want) {
				t.Errorf("%s: no %q in %q", tt.runtime.Name(), want, all)
			}
		}
		if !slices.Contains(c.Argv, Task(in)) || c.Cwd != in.RepoDir || c.Run["AGENTSH_AGENT"] != "fixer" {
			t.Errorf("%s: %+v", tt.runtime.Name(), c)
		}
	}
}

func TestTheOperatorsModelProviderIsKept(t *testing.T) {
	in := invocation()
	in.Argv = []string{"/opt/codex", "-c", `model_provider="corp"`}
	c, err := codex{}.Command(in)
	if err != nil {
		t.Fatal(err)
	}
	if all := strings.Join(c.Argv, " "); strings.Contains(all, "api.openai.com") ||
		!strings.Contains(all, `/opt/codex -c model_provider="corp" exec`) {
		t.Errorf("%q", all)
	}
}

func TestDeliveredSkillsShadowThoseOfTheRepository(t *testing.T) {
	for _, r := range others {
		hidden := r.(Hider).Hidden(invocation())
		if !slices.Contains(hidden, ".agents/skills/lint") {
			t.Errorf("%s hides %q", r.Name(), hidden)
		}
		files, err := r.Files(invocation())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(files, func(f File) bool {
			return path.Base(f.Dest) == "skills" && path.Join(path.Dir(f.Dest), f.Target) == "/sandbox/claude-config/skills"
		}) {
			t.Errorf("%s: no link to the skills: %+v", r.Name(), files)
		}
	}
	if hidden := (gemini{}).Hidden(invocation()); !slices.Contains(hidden, ".gemini/settings.json") ||
		!slices.Contains(hidden, ".gemini/.env") {
		t.Errorf("gemini hides %q", hidden)
	}
}
