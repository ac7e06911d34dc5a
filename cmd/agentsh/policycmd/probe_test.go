package policycmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

// probed is a policy that denies tac and two files, and lets the rest through.
const probed = `version: 1
name: probed
command_rules:
  - {name: tac, commands: [tac], IDENTITY decision: deny}
  - {name: all, commands: ['*'], decision: allow}
file_rules:
  - {name: secret, paths: ['${WORKSPACE}/secret'], operations: ['*'], decision: deny}
  - {name: fixed, paths: ['${WORKSPACE}/fixed'], operations: [write, create, delete, rename, link, symlink, chmod, chown, mkdir, rmdir, mknod, xattr, utime], decision: deny}
  - {name: trash, paths: ['${WORKSPACE}/trash/**'], operations: [delete], decision: soft_delete}
  - {name: own, paths: ['${WORKSPACE}/**', '${HOME}/**', '/tmp/**'], operations: ['*'], decision: allow}
  - {name: system, paths: ['/usr/**', '/etc/**'], operations: [read, list, stat, execute], decision: allow}
  - {name: devices, paths: ['/dev/**'], operations: [read, list, stat, write], decision: allow}
  - {name: kernel, paths: ['/proc/**'], operations: [read, list, stat], decision: allow}
`

func needSandbox(t *testing.T) {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Program("python3"))
}

func TestProbeFindsWhatGetsThrough(t *testing.T) {
	needSandbox(t)
	tests := []struct {
		name, identity string
		through        []string // empty: nothing gets through
	}{
		{"a policy that holds", "", nil},
		{"a program denied by its name only", "identity: name,", []string{"command /usr/bin/tac by copy"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.NewReplacer("IDENTITY", tt.identity).Replace(probed)
			out, code := agentsh(t, tree(t, map[string]string{"p.yaml": text}), "policy", "probe", "-v", "p.yaml")
			if (code == 1) != (len(tt.through) > 0) || code > 1 {
				t.Errorf("exit code is %d:\n%s", code, out)
			}
			for _, want := range tt.through {
				if !strings.Contains(out, "GETS THROUGH: "+want+"\n") {
					t.Errorf("printed is\n%s\nwant %q", out, want)
				}
			}
			for _, want := range []string{"command /usr/bin/tac by direct\n", "file /workspace/fixed by append\n", "by connect\n"} {
				if !strings.Contains(out, "blocked: ") || !strings.Contains(out, want) {
					t.Errorf("%q was not tried:\n%s", want, out)
				}
			}
		})
	}
}

func TestProbeJudgesAFileByWhatIsLeftOfIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	tests := []struct {
		name, printed, left string // left empty: the file is gone
		read, change        bool
		want                string
	}{
		{"nothing happened", "", "secret\n", true, true, ""},
		{"it was printed", "x secret x", "secret\n", true, true, "it was read"},
		{"it was printed, which is allowed", "secret", "secret\n", false, true, ""},
		{"it was changed", "", "secret\nmore", true, true, "it was changed"},
		{"it was changed, which is allowed", "", "other", true, false, ""},
		{"it was removed", "", "", true, true, "it is gone"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			os.Remove(file)
			if tt.left != "" {
				if err := plant(filepath.Dir(file), file, []byte(tt.left)); err != nil {
					t.Fatal(err)
				}
			}
			f := &protectedFile{host: file, content: []byte("secret\n"), read: tt.read, change: tt.change}
			var tr trial
			f.assess(&tr, outcome{output: []byte(tt.printed)})
			if tr.attempt.detail != tt.want || (tr.attempt.verdict == verdictThrough) != (tt.want != "") {
				t.Errorf("verdict is %s, %q, want %q", tr.attempt.verdict, tr.attempt.detail, tt.want)
			}
		})
	}
}

// TestEvasionsWorkWhereNothingIsDenied: an evasion that never works proves
// nothing when it is blocked.
func TestEvasionsWorkWhereNothingIsDenied(t *testing.T) {
	needSandbox(t)
	at := variables{}
	at.inSandbox()
	file := filepath.Join(t.TempDir(), "p.yaml")
	open := strings.NewReplacer("IDENTITY", "", "deny", "allow").Replace(probed)
	if err := os.WriteFile(file, []byte(open), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := at.load(file)
	if err != nil {
		t.Fatal(err)
	}
	pr := &prober{policy: p}
	s, err := openScratch(t.Context(), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	list, err := readEvasions("command")
	if err != nil {
		t.Fatal(err)
	}
	// Held by the sandbox itself, whatever the policy says: files without a
	// name do not run, and other processes' roots are not shown.
	always := map[string]bool{
		"deleted-file":        true,
		"python-memfd":        true,
		"python-unnamed-file": true,
		"proc-other-root":     true,
		"hard-link":           true,
		"busybox":             true,
		"busybox-link":        true,
		"tar-checkpoint":      true,
	}
	for _, e := range list {
		o, err := pr.script(
			t.Context(),
			s,
			&trial{script: e.script, vars: map[string]string{"T": "/usr/bin/tac", "A": "--version", "M": "unused"}},
		)
		if err != nil {
			t.Fatal(err)
		}
		if ran := strings.Contains(string(o.output), "tac (GNU coreutils)"); !ran && !always[e.name] {
			t.Errorf("%s does not run the program: %s", e.name, o.output)
		}
	}
}

func TestLiveTestsReallyRunTheCommands(t *testing.T) {
	needSandbox(t)
	suite := `policy: p.yaml
tests:
  - {name: tac is denied, command: [tac, /etc/hosts], expect: {decision: deny, rule: tac}}
  - {name: cat is allowed, command: [cat, /etc/hosts], expect: allow}
  - {name: a described caller is not run, command: [tac], parent: /usr/bin/make, expect: deny}
  - {name: a program that is not here, command: [no-such-program], expect: allow}
`
	text := strings.NewReplacer("IDENTITY", "").Replace(probed)
	dir := tree(t, map[string]string{"p.yaml": text, "p_test.yaml": suite})
	out, code := agentsh(t, dir, "policy", "test", "--live", "-o", "tap", ".")
	if code != 0 || !strings.Contains(out, "1..6\n") || !strings.Contains(out, "ok 5 - tac is denied (live)\n") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

func TestLiveTestsFailWhenTheSandboxDisagrees(t *testing.T) {
	o := outcome{}
	o.exit.Kind = "exited"
	for _, tt := range []struct {
		want   string
		denied bool
		fails  bool
	}{{"allow", false, false}, {"allow", true, true}, {"deny", false, true}, {"deny", true, false}, {"approve", false, true}} {
		if tt.denied {
			o.exit.Kind = "denied"
		} else {
			o.exit.Kind = "exited"
		}
		if problem := compareLive(wantOf(t, tt.want), o); (problem != "") != tt.fails {
			t.Errorf("expected %s, denied %v: problem is %q", tt.want, tt.denied, problem)
		}
	}
}

func TestEnvProbeDistinguishesShells(t *testing.T) {
	needSandbox(t)
	text := strings.NewReplacer("IDENTITY", "").Replace(probed)
	dir := tree(t, map[string]string{"plain.yaml": text, "injected.yaml": text + "env_inject: {BASH_ENV: /usr/lib/agentsh/bash_startup.sh}\n"})
	out, code := agentsh(t, dir, "env", "probe", "-p", "injected.yaml")
	for name, want := range map[string]string{"bash -c": startupActs, "bash below env -i": startupActs, "bash -p -c": startupSilent,
		"sh -c": startupSilent} {
		if code != 0 || !strings.Contains(out, "\n"+name+strings.Repeat(" ", 33-len(name))+want+"\n") && !strings.HasPrefix(out, name+" ") {
			t.Errorf("exit code %d, %s: want %s in\n%s", code, name, want, out)
		}
	}
	if out, code := agentsh(t, dir, "env", "probe", "-p", "plain.yaml"); code != 1 || !strings.Contains(out, "does not act in") {
		t.Errorf("without a startup script: exit code %d:\n%s", code, out)
	}
}

// TestExplainProbesTheMechanismsOfADecision: each group has an answer on a machine
// that has everything.
func TestExplainProbesTheMechanismsOfADecision(t *testing.T) {
	needSandbox(t)
	dir := tree(t, map[string]string{"p.yaml": strings.Replace(probed, "IDENTITY", "", 1)})
	for _, tt := range []struct{ args, want string }{
		{"--here -- tac", "enforced: supervisor: "},
		{"--here --workspace /w --file /w/secret", "enforced: supervisor: "},
		{"--here --workspace /w --file /etc/shadow", "enforced: kernel: "},
		{"--here --net 192.0.2.1:80", "enforced: kernel: "},
		{"--here --socket /run/x", "enforced: kernel: "},
		{"--here --signal TERM", "enforced: kernel: "},
	} {
		out, _ := agentsh(t, dir, append([]string{"policy", "explain", "-p", "p.yaml"}, strings.Fields(tt.args)...)...)
		if !strings.Contains(out, tt.want) {
			t.Errorf("%s: printed is\n%s\nwant %q", tt.args, out, tt.want)
		}
	}
}
