package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// projectOf makes a repository with a policy in a directory of workDir, and a policy of its
// user. It returns a directory inside.
func projectOf(t *testing.T, dir string) (inside, file string) {
	t.Helper()
	inside, file = filepath.Join(dir, "work/sub"), filepath.Join(dir, "work/.agentsh/policy.yaml")
	for _, d := range []string{inside, filepath.Dir(file), filepath.Join(dir, ".config/agentsh")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("git", "init", "-q", filepath.Join(dir, "work")).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	writePolicy(t, file, "of-the-project")
	writePolicy(t, filepath.Join(dir, ".config/agentsh/policy.yaml"), "of-the-user")
	return inside, file
}

// writePolicy writes entryPolicy, whose rule about id has a name.
func writePolicy(t *testing.T, file, rule string) {
	t.Helper()
	text := strings.Replace(entryPolicy, "command_rules:\n", "command_rules:\n  - {name: "+rule+", commands: [id], decision: deny}\n", 1)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// in runs a command line in a directory of workDir and returns what it prints.
func in(t *testing.T, dir, cwd string, args ...string) string {
	t.Helper()
	cmd := program(t, dir, args...)
	cmd.Dir = cwd
	out, _ := cmd.CombinedOutput() // what it prints is looked at
	return string(out)
}

// What explains a session finds the policy that the session then has.
func TestWhatExplainsFindsThePolicyOfExec(t *testing.T) {
	dir := workDir(t)
	inside, file := projectOf(t, dir)
	for _, step := range []struct {
		name   string
		before func()
		want   []string // of all three
	}{
		{"not trusted", func() {}, []string{"of-the-user", ".agentsh/policy.yaml is not trusted, so it is not used"}},
		{"trusted", func() { in(t, dir, inside, "trust") }, []string{"of-the-project"}},
		{"changed", func() { writePolicy(t, file, "changed") }, []string{"has changed since it was trusted", "agentsh trust --forget"}},
	} {
		step.before()
		for _, args := range [][]string{
			{"exec", "--", "id"}, {"policy", "explain", "--", "id"}, {"policy", "explain", "--json", "--", "id"}, {"env", "explain", "--", "id"},
		} {
			out := in(t, dir, inside, args...)
			for _, want := range step.want {
				if !strings.Contains(out, want) {
					t.Errorf("%s: %s: %q is missing in\n%s", step.name, strings.Join(args, " "), want, out)
				}
			}
		}
	}
}

func TestExplainFindsProgramsOfTheHome(t *testing.T) {
	dir := workDir(t)
	inside, file := projectOf(t, dir)
	bin := filepath.Join(dir, ".local/bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "mine"), []byte("#!/bin/sh\necho $PATH\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(entryPolicy, ", /tmp, '/tmp/**'", "", 1) // what commands can write is not in PATH
	text = strings.Replace(text, "file_rules:\n", "file_rules:\n  - {name: own, paths: ['${USER_HOME}/.local/bin/**'], "+
		"operations: [read, list, stat, execute], decision: allow}\n", 1)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	in(t, dir, inside, "trust")
	path := strings.TrimSpace(in(t, dir, inside, "exec", "--", "mine"))
	if !strings.HasPrefix(path, bin+":") {
		t.Fatalf("PATH of a session: %s", path)
	}
	out := in(t, dir, inside, "policy", "explain", "--", "mine")
	if strings.Contains(out, "not found") || !strings.Contains(out, "decision: allow") {
		t.Errorf("%s", out)
	}
	if out := in(t, dir, inside, "env", "explain", "--values", "--", "mine"); !strings.Contains(out, `PATH="`+path+`"`) {
		t.Errorf("PATH is %s and not in\n%s", path, out)
	}
}

// Without --policy, a session's own file is read again, wherever the caller stands.
func TestAReloadReadsTheSessionsOwnPolicy(t *testing.T) {
	dir := workDir(t)
	inside, file := projectOf(t, dir)
	in(t, dir, inside, "trust")
	t.Cleanup(func() { in(t, dir, dir, "session", "destroy", "found", "named") })
	check := func(what, out, want string) {
		t.Helper()
		if !strings.Contains(out, want) {
			t.Errorf("%s: %q is missing in\n%s", what, want, out)
		}
	}
	check("create", in(t, dir, inside, "session", "create", "--name", "found"), "found\n")
	check("create", in(t, dir, dir, "session", "create", "--name", "named", "-p", "policy.yaml", "-w", "work"), "named\n")

	writePolicy(t, filepath.Join(dir, "policy.yaml"), "later")
	check("named", in(t, dir, inside, "session", "reload", "named"), " replaces ")
	check("named", in(t, dir, inside, "exec", "-s", "named", "--", "id"), "rule later, "+dir+"/policy.yaml:")

	writePolicy(t, file, "later")
	check("changed", in(t, dir, dir, "session", "reload", "found"), "has changed since it was trusted")
	check("changed", in(t, dir, dir, "exec", "-s", "found", "--", "id"), "rule of-the-project")
	in(t, dir, inside, "trust")
	check("trusted", in(t, dir, dir, "session", "reload", "found"), " replaces ")
	check("trusted", in(t, dir, dir, "exec", "-s", "found", "--", "id"), "rule later, "+file)
	in(t, dir, inside, "trust", "--forget")
	check("forgotten", in(t, dir, dir, "session", "reload", "found"),
		"was made with "+file+", and now "+dir+"/.config/agentsh/policy.yaml would be used")
	check("forgotten", in(t, dir, dir, "exec", "-s", "found", "--", "id"), "rule later, "+file)
}

// A workspace that nobody named and that has the home is told of: rules about the workspace
// are then rules about everything that its user has.
func TestAHomeAsWorkspaceIsToldOf(t *testing.T) {
	dir := workDir(t)
	inside, _ := projectOf(t, dir)
	const note = "agentsh: note: your home is in the workspace"
	for _, tt := range []struct {
		name, cwd string
		flags     []string
		told      bool
	}{
		{"the home", dir, nil, true},
		{"the home, as the user asks", dir, []string{"--workspace", "."}, false},
		{"a project in it", inside, nil, false},
	} {
		cmd := program(t, dir, append(append([]string{"exec"}, tt.flags...), "--", "true")...)
		cmd.Dir, cmd.Env = tt.cwd, append(cmd.Env, "XDG_RUNTIME_DIR="+t.TempDir())
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(out), note) != tt.told {
			t.Errorf("%s: %v, told %v: %s", tt.name, err, !tt.told, out)
		}
	}
}

// Keys and logins of a home stay closed where the workspace is the home or has it. They are
// there for stat. A project in the home sees none of them.
func TestKeysOfAHomeStayClosed(t *testing.T) {
	dir := workDir(t)
	home := filepath.Join(dir, "home")
	project := filepath.Join(home, "project")
	for name, text := range map[string]string{
		".ssh/id_ed25519": "SECRET", ".netrc": "SECRET", ".config/gh/hosts.yml": "SECRET", ".docker/config.json": "SECRET",
		".bash_history": "SECRET", ".cargo/credentials.toml": "SECRET", "notes": "read me", "project/main.c": "",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const script = `cd "$1" 2>/dev/null && cat .ssh/id_ed25519 .netrc .config/gh/hosts.yml .docker/config.json .bash_history .cargo/credentials.toml notes
mv .cargo c && cat c/credentials.toml; mv .docker d && cat d/*; ln .netrc n && cat n; ls -A; test -e .netrc && test -d .ssh && echo there`
	for _, pack := range []string{"default", "agent-sandbox", "dev-safe", "ci-strict", "observe", "agent-strict"} {
		file, err := filepath.Abs("../../packaging/policies/" + pack + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct{ workspace, want string }{
			{home, "read me.cargo\n.config\nnotes\nproject\nthere\n"},
			{dir, "read me.cargo\n.config\nnotes\nproject\nthere\n"},
			{project, ""},
		} {
			cmd := program(t, dir, "exec", "-p", file, "--workspace", tt.workspace, "--", "sh", "-c", script, "sh", home)
			cmd.Dir = tt.workspace
			cmd.Env = append(cmd.Env, "HOME="+home, "XDG_RUNTIME_DIR="+t.TempDir(), "XDG_STATE_HOME="+t.TempDir())
			var out, errs strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &errs
			err := cmd.Run()
			if strings.Contains(out.String(), "SECRET") || tt.want != "" && out.String() != tt.want {
				t.Errorf("%s, workspace %s: %v: %q, want %q: %s", pack, tt.workspace, err, out.String(), tt.want, errs.String())
			}
			if tt.want != "" && !strings.Contains(errs.String(), "rule user-secrets, ") {
				t.Errorf("%s, workspace %s: no reason: %s", pack, tt.workspace, errs.String())
			}
		}
	}
}
