package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/layout"

	"agentsh/internal/testenv"
	"agentsh/policy/env"
)

// shells are the shells that must read generated.env like the supervisor does.
var shells = [][]string{{"sh"}, {"bash"}, {"bash", "--posix"}, {"dash"}, {"busybox", "sh"}}

// deliveredTo is the generated.env of two variables with the same value.
func deliveredTo(t testing.TB, value string) []byte {
	t.Helper()
	h, _ := one(t, "env: {sandbox: {V: '${X}', W: '<${X}>'}}\n")
	x, ps := h.Expand(hostEnv(map[string]string{"X": value}))
	if ps != nil {
		t.Fatal(ps)
	}
	files, ps := x.Files()
	if ps != nil || len(files) != 1 || files[0].Dest != layout.GeneratedEnv || files[0].Mode != 0o600 {
		t.Fatal(files, ps)
	}
	return files[0].Data
}

// checkReadBack checks that each reader reads the value of V and W unchanged.
func checkReadBack(t *testing.T, dir, value string) {
	t.Helper()
	data := deliveredTo(t, value)
	vars, err := env.Parse("generated.env", data)
	if err != nil || len(vars) != 2 || vars[0].Value != value || vars[1].Value != "<"+value+">" {
		t.Errorf("our reader: %q, %v, want %q", vars, err, value)
	}
	name := filepath.Join(dir, "generated.env")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, shell := range shells {
		cmd := exec.CommandContext(t.Context(), shell[0], append(shell[1:], "-c", `. "$1" && printf '%s%s' "$V" "$W"`, "sh", name)...)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
		out, err := cmd.Output()
		if err != nil || string(out) != value+"<"+value+">" {
			t.Errorf("%v: %q, %v, want %q", shell, out, err, value)
		}
	}
}

func needShells(t testing.TB) {
	testenv.Need(t, testenv.Program("bash"), testenv.Program("dash"), testenv.Program("busybox"))
}

var awkward = []string{
	"", "a", "a b", "'", "''", `"`, "`id`", "$HOME", "${HOME}", "$(id)", `\`, `\\`, `a\`, "\n", "\n\n", "a\nV=evil\n", "'\n'", "#", " # x",
	"=", "a=b", "!", "!!", "~", "*",
	"\t", "\r", "\r\n", "\x01\x7f", "\xff\xfe", "é\u2028😀", "-n", "%s%d", ";", "|&", "<>", "(){}[]", "'\\''", "\x1b[31m", "a\x00"[:1],
	strings.Repeat("'", 1000),
	"\v\f", "export X=1", "$'\\n'", "\\\n", "'$(touch /tmp/x)'",
}

func TestGeneratedEnvReadsBackTheSameInEveryShell(t *testing.T) {
	needShells(t)
	dir := t.TempDir()
	for _, v := range awkward {
		checkReadBack(t, dir, v)
	}
	var all strings.Builder
	for b := 1; b < 256; b++ {
		all.WriteByte(byte(b))
	}
	checkReadBack(t, dir, all.String())
	checkReadBack(t, dir, all.String()+all.String())
}

func FuzzGeneratedEnvReadsBackTheSameInEveryShell(f *testing.F) {
	needShells(f)
	dir := f.TempDir()
	for _, v := range awkward {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if strings.Contains(value, "\x00") || len(value) > 64<<10 {
			return // no process environment holds it
		}
		checkReadBack(t, dir, value)
	})
}

// A value that does not come from an environment may contain a NUL byte.
func TestANulByteIsNotDelivered(t *testing.T) {
	h, _ := one(t, "env: {sandbox: {V: '${X}'}}\n")
	x, _ := h.Expand(hostEnv(map[string]string{"X": "a\x00b"}))
	if files, ps := x.Files(); files != nil || !ps.HasErrors() || strings.Contains(ps.Error(), "a\x00b") {
		t.Errorf("%v %v", files, ps)
	}
}

// A reference in a .env file expands within the value of its variable, whatever
// quotes are around it.
func FuzzExpandedEnvFilesHoldOnlyTheirVariables(f *testing.F) {
	for _, v := range awkward {
		f.Add(v, "A=${X}\nexport B=\"x${X}y\" # c\nC='$X'\n")
	}
	f.Add("v", "A=$$X\n")
	f.Add("v'\"; id", "if [ -n \"$X\" ]; then A='${X}' B=\"a${X:-d}b\"; fi # it's $X\n")
	f.Add("v", "reference=1\nA=${X}reference0_\n")
	f.Fuzz(func(t *testing.T, value, text string) {
		if strings.Contains(value, "\x00") {
			return
		}
		e := newExpander(func(string) (string, bool) { return value, true })
		data, script := e.envFile("x.env", []byte(text), HostFile{Expand: Value[bool]{V: true}})
		if e.problems().HasErrors() {
			return
		}
		if script != nil {
			calm := newExpander(func(string) (string, bool) { return "v", true })
			if _, same := calm.envFile("x.env", []byte(text), HostFile{Expand: Value[bool]{V: true}}); same == nil || same.Text != script.Text {
				t.Fatalf("the value %q changes the text of the script", value)
			}
			return
		}
		got, err := env.Parse("x.env", data)
		if err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		// The same file with a harmless value has the same names.
		calm := newExpander(func(string) (string, bool) { return "v", true })
		want, _ := calm.envVars("x.env", []byte(text), true)
		if len(got) != len(want) {
			t.Fatalf("%d variables, want %d: %q", len(got), len(want), data)
		}
		for i := range got {
			if got[i].Name != want[i].Name {
				t.Errorf("%s, want %s", got[i].Name, want[i].Name)
			}
		}
	})
}

func TestHostFilesAreDeliveredAsTheyAreOrExpanded(t *testing.T) {
	dir := lay(t, tests{
		"harness/a.yaml": head + `host_files:
  - {src: plain.txt, dest: /sandbox/workspace/plain.txt}
  - {src: tmpl.json, dest: /tmp/tmpl.json, expand: true}
  - {src: '${DIR}/tmpl.json', dest: /tmp/by-variable.json}
  - {src: none.txt, dest: /tmp/none, optional: true}
  - {src: '${UNSET}', dest: /tmp/unset, optional: true}
  - {src: '${EMPTY}', dest: /tmp/empty, optional: true}
`, "plain.txt": "$X stays", "tmpl.json": `{"x": "${X}", "cost": "5$$"}`,
	})
	if err := os.Chmod(dir+"/plain.txt", 0o750); err != nil {
		t.Fatal(err)
	}
	h, ps := loaded(t, dir, "harness/a.yaml", Options{})
	if ps != nil {
		t.Fatal(ps)
	}
	x, ps := h.Expand(hostEnv(map[string]string{"X": "v", "DIR": dir, "EMPTY": ""}))
	if ps != nil {
		t.Fatal(ps)
	}
	files, ps := x.Files()
	if ps != nil || len(files) != 3 {
		t.Fatalf("%v %v", files, ps)
	}
	if f := files[0]; f.Source != dir+"/plain.txt" || f.Data != nil || f.Mode != 0o750 || f.Dest != "/sandbox/workspace/plain.txt" ||
		f.At.Line != 4 {
		t.Errorf("%+v", f)
	}
	equalText(t, "expanded", string(files[1].Data), `{"x": "v", "cost": "5$"}`)
	if f := files[2]; f.Source != dir+"/tmpl.json" || f.Data != nil {
		t.Errorf("%+v", f)
	}
}

func TestHostFilesThatCannotBeDeliveredAreErrors(t *testing.T) {
	for _, c := range []struct{ entry, file, want string }{
		{"{src: '${F}', dest: /tmp/x}", "", "host_files.src is empty once expanded"},
		{"{src: '${F}', dest: /tmp/x}", "/none", "host_files.src: no such file or directory"},
		{"{src: '${F}', dest: /tmp/x}", "/", "host_files.src is not a regular file"},
		{"{src: '${F}', dest: /tmp/x, optional: true}", "/", "host_files.src is not a regular file"},
		{"{src: '${F}', dest: /tmp/x, expand: true}", "DIR/bad.txt", "$5 is no variable of the host"},
		{"{src: '${F}', dest: /tmp/x, expand: true}", "DIR/unset.txt", "2 variables are not set on the host: NO_1 (DIR/unset.txt:2), NO_2 (DIR/unset.txt:1)"},
		{"{src: '${F}', dest: /tmp/x, expand: true}", "DIR/large.txt", "is larger than"},
		{"{src: '${F}', dest: /sandbox/workspace/.env.d/x.env}", "DIR/shell.env", "DIR/shell.env:2:"},
		{"{src: '${F}', dest: /sandbox/workspace/.env.d/x.env, expand: true}", "DIR/name.env", "the name of a variable is not expanded"},
	} {
		dir := lay(
			t,
			tests{
				"a.yaml":    head + "host_files: [" + c.entry + "]\n",
				"bad.txt":   "x\ncost: $5\n",
				"unset.txt": "$NO_2\n$NO_1\n",
				"large.txt": strings.Repeat("x", 1<<21),
				"shell.env": "A=1\nif true; then\n",
				"name.env":  "${F}=1\n",
			},
		)
		h, _ := loaded(t, dir, "a.yaml", Options{})
		x, ps := h.Expand(hostEnv(map[string]string{"F": strings.Replace(c.file, "DIR", dir, 1)}))
		if ps != nil {
			t.Fatal(ps)
		}
		if _, ps := x.Files(); !ps.HasErrors() || !strings.Contains(strings.ReplaceAll(ps.Error(), dir, "DIR"), c.want) {
			t.Errorf("%s with %s: %v, want %s", c.entry, c.file, ps, c.want)
		}
	}
}
