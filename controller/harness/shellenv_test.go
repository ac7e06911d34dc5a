package harness

import (
	"strings"
	"testing"
)

const shellEnvHarness = head + `host_files:
  - {src: env/tool.env, dest: /sandbox/workspace/.env.d/tool.env, expand: true}
`

// scripted returns the script of a .env file whose references are expanded.
func scripted(t *testing.T, text string, host map[string]string) (*Script, Problems) {
	t.Helper()
	dir := lay(t, tests{"a.yaml": shellEnvHarness, "env/tool.env": text})
	h, _ := loaded(t, dir, "a.yaml", Options{})
	x, ps := h.Expand(hostEnv(host))
	if ps != nil {
		t.Fatal(ps)
	}
	files, ps := x.Files()
	if ps.HasErrors() {
		return nil, ps
	}
	if len(files) != 1 || !files[0].IsEnv() {
		t.Fatalf("%v", files)
	}
	return files[0].Script, ps
}

func TestAnEnvFileWithShellBecomesAScript(t *testing.T) {
	for name, c := range map[string]struct{ text, want, vars string }{
		"an if": {
			"if [ -f /x ]; then\n  export CA=/x\nelse\n  export CA=/y\nfi\n",
			"if [ -f /x ]; then\n  export CA=/x\nelse\n  export CA=/y\nfi\n", "",
		},
		"a reference":                    {"[ -n \"$X\" ] && export A=\"${X}\"\n", "[ -n \"$agentsh_host_X\" ] && export A=\"${agentsh_host_X}\"\n", "X"},
		"a default that a shell knows":   {"export A=\"${X:-none}\" B=${X:+set}\n", "export A=\"${agentsh_host_X:-none}\" B=${agentsh_host_X:+set}\n", "X"},
		"a default of an unset variable": {"A=${NONE-none}; B=${NONE:=more}\n", "A=${agentsh_host_NONE-none}; B=${agentsh_host_NONE:=more}\n", ""},
		"single quotes":                  {"test -n x && A='a${X}b'\n", "test -n x && A='a'\"${agentsh_host_X}\"'b'\n", "X"},
		"its own variable":               {"A=1; B=\"$A/$X\"\n", "A=1; B=\"$A/$agentsh_host_X\"\n", "X"},
		"a loop":                         {"for f in $X; do A=$f; done\n", "for f in $agentsh_host_X; do A=$f; done\n", "X"},
		"a comment":                      {"# it's $NONE\n: && A=1\n", "# it's $NONE\n: && A=1\n", ""},
	} {
		s, ps := scripted(t, c.text, map[string]string{"X": "v'\"$(id)"})
		if s == nil {
			t.Errorf("%s: no script: %v", name, ps)
			continue
		}
		var vars []string
		for _, v := range s.Vars {
			vars = append(vars, strings.TrimPrefix(v.Name, hostPrefix))
		}
		equalText(t, name, s.Text, c.want)
		equalText(t, name, strings.Join(vars, " "), c.vars)
		equalText(t, name, s.Shell, "sh")
	}
	if s, _ := scripted(t, "[[ -n $X ]] && A=1\n", map[string]string{"X": ""}); s == nil || s.Shell != "bash" {
		t.Errorf("%+v is not for bash", s)
	}
}

func TestAScriptDoesNotSetAVariableToItself(t *testing.T) {
	_, ps := scripted(t, "if true; then export X=\"${X}\"; fi\n", nil)
	if len(ps) != 1 || !strings.Contains(ps[0].Message, "1 variable is not set on the host: X (") {
		t.Errorf("%v", ps)
	}
}

func TestAllUnsetVariablesOfAScriptAreOneProblem(t *testing.T) {
	_, ps := scripted(t, "if true; then\n  A=$ONE\nfi\nB='$TWO'\n", nil)
	if len(ps) != 1 || !strings.Contains(ps[0].Message, "2 variables are not set on the host: ONE") ||
		!strings.Contains(ps[0].Message, "tool.env:2), TWO") {
		t.Errorf("%v", ps)
	}
}

func TestAnEnvFileThatIsNoShellEitherIsRefusedWithItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"A=1\nif true; then\n":          "env/tool.env:2:10: error: neither NAME=value nor shell:",
		"A=b c\n":                       "env/tool.env:1:5: error: text after the value",
		"A =b\n":                        "env/tool.env:1:2: error: not NAME=value",
		"MY-NAME=b\n":                   "env/tool.env:1:3: error: not NAME=value",
		"if true; then\n PATH=/x\nfi\n": "env/tool.env:2:1: error: PATH belongs to the supervisor",
		"A=\"open\n":                    "env/tool.env:1:",
	} {
		dir := lay(t, tests{"a.yaml": shellEnvHarness, "env/tool.env": text})
		_, ps := Load(dir+"/a.yaml", Options{})
		if got := short(dir, ps); !strings.Contains(strings.ReplaceAll(got, dir+"/", ""), want) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestNamesOfTheRunInAnEnvFileAreLeftOut(t *testing.T) {
	dir := lay(t, tests{"a.yaml": shellEnvHarness, "env/tool.env": "FULLSEND_OUTPUT_DIR=/x\nA=1\n"})
	h, ps := loaded(t, dir, "a.yaml", Options{})
	if got := short(dir, ps); !strings.Contains(got, "tool.env:1:1: warning: FULLSEND_OUTPUT_DIR is set by the run, which wins") {
		t.Errorf("%s", got)
	}
	x, _ := h.Expand(hostEnv(nil))
	files, _ := x.Files()
	equalText(t, "delivered", string(files[0].Data), "A='1'\n")
}

func TestTheRootIsAVariableOfReferences(t *testing.T) {
	dir := lay(t, tests{
		"harness/a.yaml": head + "validation_loop: {script: v.sh, schema: '${FULLSEND_DIR}/schemas/${KIND}.json'}\n" +
			"env: {runner: {S: '${FULLSEND_DIR}/s'}}\n",
		"v.sh": "", "schemas/r.json": "{}",
		"harness/none.yaml": head + "validation_loop: {script: v.sh, schema: '${FULLSEND_DIR}/schemas/none.json'}\n",
	})
	h, _ := loaded(t, dir, "harness/a.yaml", Options{})
	x, ps := h.Expand(hostEnv(map[string]string{"KIND": "r"}))
	if ps != nil {
		t.Fatal(ps)
	}
	equalText(t, "schema", x.Schema.V, h.Root+"/schemas/r.json")
	equalText(t, "runner", x.Runner["S"].V, h.Root+"/s")
	_, ps = h.Expand(hostEnv(map[string]string{"KIND": "none"}))
	if !strings.Contains(short(dir, ps), "a.yaml:3:41: error: validation_loop.schema: ") {
		t.Errorf("%v", ps)
	}
	if _, ps = Load(dir+"/harness/none.yaml", Options{}); !strings.Contains(short(dir, ps), "none.yaml:3:41: error: validation_loop.schema: ") {
		t.Errorf("%v", ps)
	}
}
