package projectcmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/project"
	"agentsh/internal/testenv"
	"agentsh/policy"
	"agentsh/policy/policytest"
	"agentsh/policy/syntax"
)

// pack is a policy of this tree.
func pack(t *testing.T, name string) string {
	t.Helper()
	file, err := filepath.Abs("../../../packaging/policies/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// projectWith makes a directory with files.
func projectWith(t *testing.T, name string, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range files {
		file = filepath.Join(dir, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// begin runs agentsh init and returns what it prints and its exit code.
func begin(t *testing.T, args ...string) (string, int) {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	return beginAsUser(t, t.TempDir(), nil, args...)
}

// beginAsUser runs agentsh init for a user with a home and variables.
func beginAsUser(t *testing.T, home string, vars map[string]string, args ...string) (string, int) {
	t.Helper()
	t.Setenv("HOME", home)
	for _, name := range []string{"npm_config_registry", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL",
		"GOPROXY", "GOPRIVATE", "GONOPROXY", "GONOSUMDB", "GOSUMDB"} {
		t.Setenv(name, vars[name])
	}
	var out bytes.Buffer
	cmd := NewInit()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	code := failure.Report(&out, cmd.ExecuteContext(t.Context()))
	return out.String(), code
}

// check loads what init wrote, runs its tests and returns the policy.
func check(t *testing.T, dir string) *policy.Policy {
	t.Helper()
	name := filepath.Join(dir, ".agentsh/policy_test.yaml")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	s, err := policytest.ParseSuite(name, data)
	if err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	p, err := policytest.LoadPolicy(s, os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range syntax.Lint(p) {
		t.Errorf("%s: %s", problem.Pos, problem.Message)
	}
	report := policytest.Run(s, p)
	for i := range report.Results {
		if problem := report.Results[i].Problem; problem != "" {
			t.Errorf("%s: %s", report.Results[i].Case.Name, problem)
		}
	}
	return p
}

// stackFiles show one stack each.
var stackFiles = map[string]string{
	"node": "package.json", "python": "pyproject.toml", "go": "go.mod", "rust": "Cargo.toml", "java": "build.gradle.kts",
	"c": "CMakeLists.txt", "make": "GNUmakefile", "ruby": "Gemfile", "shell": "run.sh",
}

func TestInitWritesAPolicyForEachStack(t *testing.T) {
	for i := range project.Stacks {
		s := &project.Stacks[i]
		t.Run(s.Name, func(t *testing.T) {
			for _, name := range packs {
				dir := projectWith(t, "p", map[string]string{stackFiles[s.Name]: ""})
				next := strings.Join(s.Try[0], " ")
				if s.Name == "node" { // npm ci asks for a lock file
					next = "npm install"
				}
				out, code := begin(t, "--pack", pack(t, name), dir)
				if code != 0 || !strings.Contains(out, "stack "+s.Name+": "+stackFiles[s.Name]+"\n") ||
					!strings.Contains(out, "next: agentsh trust\nnext: agentsh exec -- "+next+"\n") {
					t.Errorf("%s: exit %d\n%s", name, code, out)
				}
				p := check(t, dir)
				if len(s.Publish) > 0 {
					word, _, _ := strings.Cut(s.Words, "|")
					d, _ := p.Evaluate(policytest.Command([]string{s.Publish[0], word}))
					if d.Effect != policy.Deny || d.Rule.Name != "no-publishing-"+s.Name {
						t.Errorf("%s: %s %s: %v", name, s.Publish[0], word, d)
					}
				}
			}
		})
	}
}

func TestInitTakesSeveralStacksAtOnce(t *testing.T) {
	dir := projectWith(t, "Två Project's", map[string]string{
		"package.json": "", "go.mod": "", "Makefile": "", "setup.py": "", "requirements-dev.txt": "",
	})
	out, code := begin(t, "--json", "--pack", pack(t, "agent-sandbox"), dir)
	var m made
	if err := json.Unmarshal([]byte(out), &m); err != nil || code != 0 {
		t.Fatalf("%v: exit %d\n%s", err, code, out)
	}
	if len(m.Stacks) != 4 || !slices.Equal(m.Stacks["python"], []string{"requirements-dev.txt", "setup.py"}) || len(m.Files) != 2 ||
		m.Project != dir || m.Extends != pack(t, "agent-sandbox") || len(m.Decisions) < 15 || len(m.Next) != 3 {
		t.Errorf("%+v", m)
	}
	if p := check(t, dir); p.Name() != "tv--project-s" {
		t.Errorf("name %q", p.Name())
	}
	dir = projectWith(t, "p", map[string]string{"package.json": ""})
	out, code = begin(t, "--stack", "rust,ruby", "--pack", pack(t, "dev-safe"), dir)
	if code != 0 || strings.Contains(out, "node") || !strings.Contains(out, "deny     cargo publish (no-publishing-rust)") ||
		!strings.Contains(out, "deny     gem push (no-publishing-ruby)") {
		t.Errorf("exit %d\n%s", code, out)
	}
	for args, want := range map[string]string{
		"--stack=cobol":            `--stack "cobol" is none of node, python, go, rust, java, c, make, ruby, shell`,
		"--pack=none":              `--pack "none" is no file and none of agent-sandbox`,
		"--pack=/nonexistent.yaml": "no policy to extend: looked for /nonexistent.yaml",
	} {
		if out, code := begin(t, args, projectWith(t, "p", nil)); code == 0 || !strings.Contains(out, want) {
			t.Errorf("%s: exit %d\n%s", args, code, out)
		}
	}
}

// Registries that the project names get rules, unless the pack allows them already, or a
// person must say what they lead to.
func TestInitAllowsTheRegistriesOfTheProject(t *testing.T) {
	dir := projectWith(t, "p", map[string]string{
		"package.json": "{}",
		".npmrc":       "registry=http://LOCALHOST:4873/\n@ours:registry=https://user:secret@npm.corp.example/x/\n",
		"package-lock.json": `{"a": {"resolved": "https://registry.npmjs.org/a.tgz"}, "b": {"resolved": "http://169.254.169.254/b"},
			"c": {"resolved": "http://127.0.0.1:4873/c.tgz"}, "d": {"resolved": "https://*/d"}, "e": {"resolved": "https://x.example\u0027]/e"},
			"f": {"resolved": "http://2130706433/f"}, "g": {"resolved": "file:../g"}}`,
		"requirements.txt":   "--index-url https://pypi.corp.example:8443/simple\nflask\n",
		"pyproject.toml":     "[project.urls]\nurl = \"https://home.example\"\n[[tool.uv.index]]\nname = 'x'\nurl = 'https://uv.corp.example/simple'\n",
		"Cargo.toml":         "",
		".cargo/config.toml": "[registries.ours]\nindex = \"sparse+https://cargo.corp.example/index/\"\n",
		"Gemfile":            "source 'https://rubygems.org'\nsource \"https://gems.corp.example\"\n",
		"pom.xml": "<project><url>https://home.example</url><repositories><repository><id>x</id>" +
			"<url> https://mvn.corp.example/m </url></repository></repositories></project>",
		"build.gradle": "repositories { mavenCentral()\n maven { url = uri(\"https://gradle.corp.example/m\") } }",
	})
	out, code := begin(t, "--json", "--pack", pack(t, "agent-sandbox"), dir)
	var m made
	if err := json.Unmarshal([]byte(out), &m); err != nil || code != 0 {
		t.Fatalf("%v: exit %d\n%s", err, code, out)
	}
	var got []string
	for _, r := range m.Registries {
		got = append(got, r.Host+":"+r.Port)
	}
	want := []string{"localhost:4873", "npm.corp.example:443", "uv.corp.example:443", "pypi.corp.example:8443", "cargo.corp.example:443",
		"gradle.corp.example:443", "mvn.corp.example:443", "gems.corp.example:443"}
	if !slices.Equal(got, want) {
		t.Errorf("registries %q", got)
	}
	for _, passed := range []string{"http://169.254.169.254/b", "https://*/d", "http://2130706433/f"} {
		if !slices.ContainsFunc(m.Notes, func(note string) bool { return strings.HasPrefix(note, "no rule for "+passed+",") }) {
			t.Errorf("%s is in none of %q", passed, m.Notes)
		}
	}
	text, err := os.ReadFile(m.Files[0])
	if err != nil || strings.Contains(string(text), "secret") || strings.Contains(string(text), "home.example") {
		t.Errorf("%v\n%s", err, text)
	}
	check(t, dir)
}

// TestInitTakesTheRegistriesOfTheUser: a session has neither the variables nor the settings
// files of its user. Passwords stay out of the policy, and so does what the project has
// itself.
func TestInitTakesTheRegistriesOfTheUser(t *testing.T) {
	home := projectWith(t, "home", map[string]string{
		".npmrc":               "//npm.corp.example/:_authToken=hunter2\nregistry=https://npm.corp.example/\n",
		".config/pip/pip.conf": "[global]\nindex-url = http://localhost:3141/root/pypi/+simple/\n",
		".config/go/env":       "GOPROXY=https://ignored.example\nGONOSUMDB=*.corp.example,x.example\n",
	})
	vars := map[string]string{"GOPROXY": "http://localhost:8081/go,https://proxy.golang.org,direct", "GOSUMDB": "sum.golang.org",
		"UV_INDEX_URL": "https://user:hunter2@uv.corp.example/simple", "PIP_EXTRA_INDEX_URL": "https://pypi.org/simple"}
	dir := projectWith(t, "p", map[string]string{"package.json": "{}", "go.mod": "", "setup.py": ""})
	out, code := beginAsUser(t, home, vars, "--pack", pack(t, "agent-sandbox"), dir)
	text, err := os.ReadFile(filepath.Join(dir, ".agentsh/policy.yaml"))
	if err != nil || code != 0 {
		t.Fatalf("%v: exit %d\n%s", err, code, out)
	}
	for _, want := range []string{
		"npm_config_registry: {value: 'https://npm.corp.example/', enforce: start}\n",
		"PIP_INDEX_URL: {value: 'http://localhost:3141/root/pypi/+simple/', enforce: start}\n",
		"GOPROXY: {value: 'http://localhost:8081/go,https://proxy.golang.org,direct', enforce: start}\n",
		"GONOSUMDB: {value: '*.corp.example,x.example', enforce: start}\n",
		"domains: ['npm.corp.example']\n    ports: [443]\n", "domains: ['localhost']\n    ports: [3141]\n",
		"domains: ['localhost']\n    ports: [8081]\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	for _, none := range []string{"hunter2", "UV_INDEX_URL", "PIP_EXTRA", "ignored.example"} {
		if strings.Contains(string(text), none) {
			t.Errorf("%s is in\n%s", none, text)
		}
	}
	if !strings.Contains(out, "note: UV_INDEX_URL by UV_INDEX_URL has a password") ||
		!strings.Contains(out, "note: commands get GONOSUMDB=*.corp.example,x.example, as you have it by ~/.config/go/env") ||
		strings.Contains(out, "hunter2") {
		t.Error(out)
	}
	check(t, dir)
	own := projectWith(t, "own", map[string]string{"package.json": "{}", ".npmrc": "registry=http://localhost:4873/\n"})
	out, code = beginAsUser(t, home, nil, "--pack", pack(t, "agent-sandbox"), own)
	if code != 0 || strings.Contains(out, "npm.corp.example") {
		t.Errorf("exit %d\n%s", code, out)
	}
}

func TestInitNeverReplacesAFile(t *testing.T) {
	for name, prepare := range map[string]func(dir string) error{
		"a policy": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, ".agentsh/policy.yaml"), []byte("kept"), 0o600)
		},
		"tests": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, ".agentsh/policy_test.yaml"), []byte("kept"), 0o600)
		},
		"a link": func(dir string) error { return os.Symlink("../../outside", filepath.Join(dir, ".agentsh/policy.yaml")) },
		"a linked directory": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, ".agentsh")), os.Symlink("..", filepath.Join(dir, ".agentsh")))
		},
		"a file as directory": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, ".agentsh")), os.WriteFile(filepath.Join(dir, ".agentsh"), nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := projectWith(t, "p", map[string]string{"go.mod": ""})
			if err := errors.Join(os.Mkdir(filepath.Join(dir, ".agentsh"), 0o755), prepare(dir)); err != nil {
				t.Fatal(err)
			}
			before := listing(t, filepath.Dir(dir))
			out, code := begin(t, "--pack", pack(t, "agent-sandbox"), dir)
			if code != 125 || !strings.Contains(out, "nothing is written") {
				t.Errorf("exit %d\n%s", code, out)
			}
			if after := listing(t, filepath.Dir(dir)); !slices.Equal(before, after) {
				t.Errorf("before %q, after %q", before, after)
			}
		})
	}
}

// listing is every name below a directory, with the content of files.
func listing(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.Walk(dir, func(name string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			var data []byte
			data, err = os.ReadFile(name)
			name += "=" + string(data)
		}
		out = append(out, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A repository may be anybody's: nothing of it is followed, waited for or copied.
func TestInitSurvivesAHostileProject(t *testing.T) {
	dir := projectWith(t, "x: ['${HOME}'] #\n\"'\x1b[31m", map[string]string{"Cargo.toml": "", "package.json": ""})
	outside := projectWith(t, "outside", map[string]string{"npmrc": "registry=https://outside.example/\n", "go.mod": ""})
	if err := errors.Join(os.Symlink(filepath.Join(outside, "npmrc"), filepath.Join(dir, ".npmrc")),
		os.Symlink(filepath.Join(outside, "go.mod"), filepath.Join(dir, "go.mod")), os.Mkdir(filepath.Join(dir, "Gemfile"), 0o755),
		unix.Mkfifo(filepath.Join(dir, "setup.py"), 0o600), unix.Mkfifo(filepath.Join(dir, "yarn.lock"), 0o600),
		os.Symlink(outside, filepath.Join(dir, ".cargo")), os.WriteFile(filepath.Join(dir, "\x1b[2J.sh"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	out, code := begin(t, "--pack", pack(t, "agent-sandbox"), dir)
	if code != 0 || strings.Contains(out, "outside.example") || strings.Contains(out, "\x1b") || strings.Contains(out, "stack go") ||
		strings.Contains(out, "stack python") || strings.Contains(out, "stack ruby") || !strings.Contains(out, "stack rust") {
		t.Errorf("exit %d\n%q", code, out)
	}
	if p := check(t, dir); p.Name() != "x----home" && !strings.HasPrefix(p.Name(), "x-") {
		t.Errorf("name %q", p.Name())
	}
}

func TestTheHomeIsNoProject(t *testing.T) {
	dir := projectWith(t, "home", map[string]string{"package.json": ""})
	if out, code := beginAsUser(t, dir, nil, "--pack", pack(t, "agent-sandbox"), dir); code != 125 || !strings.Contains(out, "is no project") {
		t.Errorf("exit %d\n%s", code, out)
	}
}

// A disk without room for both files gets none of them.
func TestInitWritesAllFilesOrNone(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := projectWith(t, "p", nil)
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	out, code := begin(t, dir, "--pack", pack(t, "agent-sandbox"), "--stack", "node")
	if code != 125 || !strings.Contains(out, "no space left") {
		t.Errorf("exit %d: %s", code, out)
	}
	files, err := os.ReadDir(filepath.Join(dir, ".agentsh"))
	if err != nil || len(files) > 0 {
		t.Errorf("%v, %v", files, err)
	}
}
