package policycmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/policy"
	"agentsh/policy/policytest"
	"agentsh/policy/syntax"
)

// stacks are what people do with eight kinds of tools. Each line ends with 42.
var stacks = []struct{ name, program, script string }{
	{"shell", "awk", `printf '#!/usr/bin/env bash\nset -e\nls | wc -l\n' >s.sh && chmod +x s.sh && ./s.sh && tar cf x.tar s.sh && tar tf x.tar &&
		find . -name '*.sh' | xargs grep -l bash && mv x.tar y.tar && rm y.tar && awk 'BEGIN{print 42}'`},
	{"python", "python3", `python3 -m venv --without-pip v && v/bin/python -c 'import subprocess
p = subprocess.Popen(["sleep", "300"]); p.terminate(); p.wait(); print(42)'`},
	{"c", "cc", `printf '#include <stdio.h>\nint main(void) { puts("42"); return 0; }\n' >a.c && printf 'a.out: a.c\n\tcc -o a.out a.c\n' >Makefile &&
		make -s && ./a.out`},
	{"node", "npm", `mkdir lib && echo '{"name":"lib","version":"1.0.0"}' >lib/package.json &&
		echo '{"name":"day","version":"1.0.0","scripts":{"t":"node -e \"console.log(42)\""}}' >package.json &&
		npm install --offline --no-audit --no-fund --no-update-notifier ./lib >/dev/null && npm run -s --no-update-notifier t`},
	{"ruby", "ruby", `printf 'require "open3"\nputs Open3.capture2("echo 42")[0]\n' >a.rb && ruby a.rb`},
	{"go", "go", `mkdir g && cd g && printf 'module day\n\ngo 1.22\n' >go.mod && printf 'package main\n\nimport "os"\n\nfunc main() { os.Stdout.WriteString("42\\n") }\n' >main.go &&
		go build -o day . && ./day`},
	{"java", "javac", `printf 'class M { public static void main(String[] a) { System.out.println(42); } }\n' >M.java && javac M.java && java M`},
	{"rust", "rustc", `printf 'fn main() { println!("42"); }\n' >m.rs && rustc m.rs && ./m`},
}

// learnedIn are the stacks that run with every test. AGENTSH_LEARN=all runs the others
// too, as far as this machine has them, and under more policies.
const learnedIn = 2

// TestALearnedPolicyDoesTheSameAgain records work under a policy, writes a policy from
// the log, and does the work again under that one.
func TestALearnedPolicyDoesTheSameAgain(t *testing.T) {
	needSandbox(t)
	all := os.Getenv("AGENTSH_LEARN") == "all"
	for i, stack := range stacks {
		if i >= learnedIn && !all {
			break
		}
		t.Run(stack.name, func(t *testing.T) {
			testenv.Need(t, testenv.Program(stack.program))
			packs := []string{[]string{"observe", "agent-sandbox"}[i%2]}
			if all {
				packs = []string{"observe", "agent-sandbox", "default", "ci-strict", "dev-safe", "plain"}
			}
			for _, pack := range packs {
				t.Run(pack, func(t *testing.T) { learnAndRepeat(t, pack, stack.script) })
			}
		})
	}
}

func learnAndRepeat(t *testing.T, pack, script string) {
	t.Helper()
	observed := openPack(t, pack)
	o, err := observed.run(t.Context(), "bash", "-c", script)
	if err != nil || o.exit.Code != 0 || !strings.HasSuffix(string(o.output), "42\n") {
		t.Fatalf("%s: %v: %+v\n%s", pack, err, o.exit, o.output)
	}
	if err := observed.session.Files().Drain(); err != nil { // the events of the last operations come after a command that succeeds
		t.Fatal(err)
	}
	log := filepath.Join(observed.state, "audit.jsonl")
	text, code := agentsh(t, t.TempDir(), "policy", "learn", "--workspace", policytest.Vars()["WORKSPACE"], log)
	if code != 0 {
		t.Fatalf("%s: learn: exit code %d\n%s", pack, code, text)
	}
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "agentsh: ") {
			lines = append(lines, line)
		}
	}
	text = strings.Join(lines, "")
	p, err := syntax.Load(policy.Source{Name: "learned.yaml", Data: []byte(text)}, syntax.Options{Vars: policytest.Vars()})
	if err != nil {
		t.Fatal(err)
	}
	s, err := openScratch(t.Context(), p, func(s *scratch) error { return makeProject(t, s.dir) })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	again, err := s.run(t.Context(), "bash", "-c", script)
	if err != nil || again.exit.Code != 0 || string(again.output) != string(o.output) {
		t.Errorf("%s: %v, %+v: under the learned policy it prints\n%sat first it printed\n%s\n%s", pack, err, again.exit, again.output, o.output, text)
	}
	other, err := s.run(t.Context(), "bash", "-c", "sha512sum /dev/null || echo refused")
	if err != nil || !strings.Contains(string(other.output), "refused") {
		t.Errorf("%s: %v: a program that was not recorded goes through: %s", pack, err, other.output)
	}
}
