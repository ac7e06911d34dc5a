package policycmd

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/testenv"
	"agentsh/policy/policytest"
	"agentsh/supervisor"
)

// junitSuites is the XML of `policy test -o junit`.
type junitSuites struct {
	XMLName xml.Name `xml:"testsuites"`
	Suites  []struct {
		Name     string `xml:"name,attr"`
		Tests    int    `xml:"tests,attr"`
		Failures int    `xml:"failures,attr"`
		Cases    []struct {
			Name    string `xml:"name,attr"`
			Class   string `xml:"classname,attr"`
			Failure *struct {
				Message string `xml:"message,attr"`
				Text    string `xml:",chardata"`
			} `xml:"failure"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

func TestMain(m *testing.M) {
	supervisor.Reexec()
	testenv.DefaultSignals()
	os.Exit(m.Run())
}

const testPolicy = `version: 1
name: tested
command_rules:
  - {name: block-kill, commands: [kill], decision: deny, message: no killing}
  - {name: git, commands: [git], decision: allow}
file_rules:
  - {name: workspace, paths: ["${WORKSPACE}/**"], operations: ["*"], decision: allow}
env_policy: {deny: ["SECRET_*"]}
env_inject: {BASH_ENV: /usr/lib/agentsh/bash_startup.sh}
`

const testSuite = `policy: p.yaml
tests:
  - {name: kill is denied, command: [kill], expect: {decision: deny, rule: block-kill}}
  - {name: git is allowed, command: [git], expect: allow}
`

// tree writes files into a new directory and returns it.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// agentsh runs a command line in dir and returns what it printed and its exit
// code.
func agentsh(t *testing.T, dir string, args ...string) (out string, code int) {
	t.Helper()
	t.Chdir(dir)
	var stdout, stderr bytes.Buffer
	root := &cobra.Command{Use: "agentsh", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(New(func(args []string) (string, error) { return args[0], nil }), NewEnv())
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(args)
	code = failure.Report(&stderr, root.ExecuteContext(t.Context()))
	return stdout.String() + stderr.String(), code
}

func TestPolicyCommandLines(t *testing.T) {
	log := `{"seq":1,"type":"exec","argv":["git","log"],"path":"/usr/bin/git","decision":"allow"}
{"seq":2,"type":"exec","argv":["ls"],"path":"/usr/bin/ls","decision":"allow"}
`
	files := map[string]string{
		"p.yaml": testPolicy, "p_test.yaml": testSuite, "log.jsonl": log, "broken.yaml": "version: 1\nname: x\ncommand_rule: []\n",
		"q.yaml":       strings.Replace(testPolicy, "[git]", "[git, ls]", 1),
		"r.yaml":       strings.Replace(testPolicy, "SECRET_*", "OTHER_*", 1),
		"weak.yaml":    "version: 1\nname: weak\ncommand_rules:\n  - {name: all, commands: ['*'], decision: allow}\n  - {name: never, commands: [ls], decision: deny}\n",
		"bad_test.yml": strings.Replace(testSuite, "expect: allow", "expect: deny", 1),
	}
	tests := []struct {
		name string
		args string
		code int
		want []string
	}{
		{"a good policy", "policy check p.yaml", 0, []string{"p.yaml: ok, 3 rules, 0 warnings"}},
		{
			"a policy with an unknown key",
			"policy check p.yaml broken.yaml",
			1,
			[]string{"p.yaml: ok", "broken.yaml:3:1: error: ", `did you mean "command_rules"?`, "1 of 2 files"},
		},
		{"a policy that is not there", "policy check none.yaml", 1, []string{"none.yaml"}},
		{"no policy to check", "policy check", 2, []string{"hint"}},
		{
			"why a command is denied",
			"policy explain -p p.yaml -- kill -9 1",
			1,
			[]string{"decision: deny", "rule:     block-kill at p.yaml:4:5", "because:  no killing", "enforced:"},
		},
		{"why a command is allowed", "policy explain -p p.yaml -- git status", 0, []string{"decision: allow", "rule:     git at p.yaml:5:5"}},
		{
			"why a file is denied",
			"policy explain -p p.yaml --file /etc/shadow --op read",
			1,
			[]string{"decision: deny", "none, the default of the file group"},
		},
		{"why a destination is denied", "policy explain -p p.yaml --net example.com:443", 1, []string{"tcp example.com:443", "decision: deny"}},
		{
			"why a request is denied",
			"policy explain -p p.yaml --net example.com:443 --method post --path /x",
			1,
			[]string{"tcp example.com:443 post /x", "not a token in capital letters"},
		},
		{"why a signal is denied", "policy explain -p p.yaml --signal KILL", 1, []string{"signal KILL to external", "decision: deny"}},
		{"why a socket is denied", "policy explain -p p.yaml --socket /run/docker.sock", 1, []string{"connect /run/docker.sock"}},
		{
			"what a shell text does",
			"policy explain -p p.yaml -- bash -c git;kill",
			1,
			[]string{"inside:   git: allow by rule git", "inside:   kill: deny by rule block-kill"},
		},
		{"warnings", "policy check weak.yaml", 0, []string{"weak.yaml:5:5: warning: ", "weak.yaml: ok, 2 rules, 1 warning\n"}},
		{"warnings that fail", "policy check --strict weak.yaml", 1, []string{"1 of 1 file not good"}},
		{
			"what an editor reads", "policy check --json weak.yaml broken.yaml", 1,
			[]string{`"code": "shadowed"`, `"severity": "warning"`, `"ok": false`, `"line": 3`},
		},
		{
			"why a command is denied, for programs", "policy explain --json -p p.yaml -- kill -9 1", 1,
			[]string{`"decision": "deny"`, `"name": "block-kill"`, `"line": 4`, `"message": "no killing"`},
		},
		{
			"a program that is not here", "policy explain -p p.yaml -- no-such-program", 1,
			[]string{"program:  no-such-program: not found in the PATH of sessions; only its name is evaluated\n"},
		},
		{
			"a file that is not here", "policy explain --json -p p.yaml -- /no/such/program", 1,
			[]string{`"missing": "/no/such/program: not found; only its name is evaluated"`},
		},
		{
			"an environment of a program that is not here", "env explain -p p.yaml -- /no/such/git", 0,
			[]string{"agentsh: /no/such/git: not found; only its name is evaluated\n", "PATH: baseline"},
		},
		{"a URL instead of a destination", "policy explain -p p.yaml --net https://example.com/x", 2, []string{"hint: write example.com:443"}},
		{"the schema", "policy schema", 0, []string{`"$schema"`, `"command_rules"`}},
		{"nothing to explain", "policy explain -p p.yaml", 2, []string{"ask about one of"}},
		{"two things to explain", "policy explain -p p.yaml --file /a --net a:1", 2, []string{"ask about one of"}},
		{"an unknown operation", "policy explain -p p.yaml --file /a --op look", 2, []string{"--op look"}},
		{"tests that pass", "policy test .", 0, []string{"2 tests, 0 failed"}},
		{"the tests beside a policy", "policy test p.yaml", 0, []string{"2 tests, 0 failed"}},
		{
			"tests that fail",
			"policy test bad_test.yml",
			1,
			[]string{"FAIL bad_test.yml:4:5: git is allowed: decision is allow by rule git", "2 tests, 1 failed"},
		},
		{"a directory without tests", "policy test /proc/self/task", 2, []string{"no *_test.yaml"}},
		{
			"coverage",
			"policy test --coverage .",
			0,
			[]string{"p.yaml: coverage 66 %, 2 of 3 rules", "p.yaml:7:5: rule workspace is reached by no test"},
		},
		{"too little coverage", "policy test --min 90 .", 1, []string{"66 % of 3 rules reached, at least 90 % wanted"}},
		{"enough coverage", "policy test --min 66 .", 0, []string{"0 failed"}},
		{
			"mutants",
			"policy test --mutate .",
			1,
			[]string{"2 survivors", "rule workspace deleted: no test notices", "a test of this request would:"},
		},
		{"an unknown format", "policy test -o html .", 2, []string{"-o html"}},
		{"policies that differ", "policy diff p.yaml q.yaml", 1, []string{"becomes allowed: command: allow by git, was deny by default", "ls"}},
		{"policies that give other variables", "policy diff p.yaml r.yaml", 1, []string{"variable SECRET_x of a request reaches commands"}},
		{"policies that do not", "policy diff p.yaml p.yaml", 0, []string{"decide alike"}},
		{
			"a session that another policy judges",
			"policy replay -p p.yaml log.jsonl",
			1,
			[]string{"event 2: ls: was allow, now deny by rule default", "2 requests evaluated, 1 decided otherwise"},
		},
		{"a session that the policy allows", "policy replay -p q.yaml log.jsonl", 0, []string{"2 requests evaluated, 0 decided otherwise"}},
		{"a session without a policy", "policy replay log.jsonl", 2, []string{"-p FILE"}},
		{"a policy learned", "policy learn --name mine log.jsonl", 0, []string{"name: mine", "commands: [git, ls]"}},
		{"a log that is none", "policy learn p.yaml", 1, []string{"p.yaml: line 1: not an audit event"}},
		{"a variable that is no pair", "policy check --var x p.yaml", 2, []string{"--var x is not NAME=VALUE"}},
		{"an environment", "env explain -p p.yaml -e CI=1 -e SECRET_A=hunter2 -e LD_PRELOAD=/x -e BASH_ENV=/x", 0, []string{
			"CI: request, not on the built-in drop list", "BASH_ENV: env_inject policy", "SHLVL: baseline", "dropped SECRET_A of the request: denied by env_policy pattern SECRET_*",
			"dropped LD_PRELOAD of the request: built-in drop list", "dropped BASH_ENV of the request: reserved"}},
		{"an environment with values", "env explain -p p.yaml --values -e CI=1", 0, []string{`CI="1": request`, `BASH_ENV="/usr/lib`}},
		{"an environment of a denied command", "env explain -p p.yaml -- kill 1", 1, []string{"denied by rule block-kill"}},
		{"a variable that is not set here", "env explain -p p.yaml -e NOT_SET_ANYWHERE", 2, []string{"not set here"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, code := agentsh(t, tree(t, files), strings.Fields(tt.args)...)
			if code != tt.code {
				t.Errorf("exit code is %d, want %d", code, tt.code)
			}
			for _, want := range tt.want {
				if !strings.Contains(out, want) {
					t.Errorf("printed is\n%s\nwant %q in it", out, want)
				}
			}
			if strings.Contains(out, "hunter2") {
				t.Errorf("a value is printed:\n%s", out)
			}
		})
	}
}

func TestTestReportsInOtherFormats(t *testing.T) {
	dir := tree(t, map[string]string{"p.yaml": testPolicy, "p_test.yaml": strings.Replace(testSuite, "expect: allow", "expect: deny", 1)})
	out, code := agentsh(t, dir, "policy", "test", "-o", "tap", ".")
	for _, want := range []string{"TAP version 13\n1..2\n", "ok 1 - kill is denied\n", "not ok 2 - git is allowed\n  ---\n"} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("code %d, TAP is\n%s\nwant %q", code, out, want)
		}
	}
	out, code = agentsh(t, dir, "policy", "test", "-o", "junit", ".")
	var suites junitSuites
	if err := xml.Unmarshal([]byte(out), &suites); err != nil || code != 1 || len(suites.Suites) != 1 || suites.Suites[0].Failures != 1 ||
		suites.Suites[0].Tests != 2 {
		t.Errorf("code %d, %v, JUnit is\n%s", code, err, out)
	}
	out, code = agentsh(t, dir, "policy", "test", "-o", "json", "--mutate", "--coverage", ".")
	var report jsonReport
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != 1 || len(report.Policies) != 1 ||
		*report.Policies[0].Coverage != 66 ||
		len(report.Tests) != 3 {
		t.Errorf("code %d, %v, JSON is\n%s", code, err, out)
	}
	if short, shortCode := agentsh(t, dir, "policy", "test", "--json", "--mutate", "--coverage", "."); short != out || shortCode != code {
		t.Errorf("--json: code %d\n%s", shortCode, short)
	}
}

func TestEnvExplainReadsFilesInTheirOrder(t *testing.T) {
	dir := tree(t, map[string]string{"p.yaml": testPolicy, "z.env": "A=z\n", "generated.env": "A=g\nPATH=/evil\n", "a.env": "A=a\nB=a\n"})
	out, code := agentsh(t, dir, "env", "explain", "-p", "p.yaml", "--env-dir", dir, "--values")
	for _, want := range []string{`A="g": file ` + dir + "/generated.env:1:1", `B="a": file ` + dir + "/a.env:2:1",
		"dropped PATH of the file"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("code %d, printed is\n%s\nwant %q", code, out, want)
		}
	}
}

// wantOf is the expectation of a decision's word.
func wantOf(t *testing.T, word string) policytest.Want {
	t.Helper()
	s, err := policytest.ParseSuite("x_test.yaml", []byte("policy: p\ntests: [{name: x, command: [x], expect: "+word+"}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	return s.Cases[0].Want
}
