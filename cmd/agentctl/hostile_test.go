package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/controller/record"
)

// The agent program's own logs are extracted for people to read. They must not
// refer to files outside their directory, control a terminal or a CI system, or
// be files of git.
func TestRecordsWrittenByAProgramAreDataOnly(t *testing.T) {
	t.Parallel()
	p := newFixture(t, `
projects="$CLAUDE_CONFIG_DIR/projects/x"
mkdir -p "$projects/.git/hooks" "$projects/deep"
ln -s /etc/passwd "$projects/outside"
ln -s / "$projects/root"
ln -s ../../../../../../etc "$projects/up"
mkfifo "$projects/fifo"
printf '#!/bin/sh\n' > "$projects/.git/hooks/post-checkout"
printf '#!/bin/sh\n' > "$projects/setuid"; chmod 4755 "$projects/setuid"
echo '{"type":"user"}' > "$projects/deep/said.jsonl"
printf '{"type":"system","subtype":"init","session_id":"s","model":"m\033[31m","tools":["::set-env name=A::b"]}\n'
printf '{"type":"assistant","message":{"content":[{"type":"text","text":"\\u001b]0;title\\u0007\\n::error::x\\n##[group]y\\u202e"}]}}\n'
printf '{"type":"result","subtype":"success","is_error":false,"result":"agent ends\\r::stop-commands::z"}\n'
printf '::warning::plain\n\033[2J\n{"type":"no such\n'
`, "")
	p.asClaude()
	r, code := p.run()
	if code != 0 {
		t.Fatalf("exit %d: %+v", code, r.Error)
	}
	if text := p.read("out/transcripts/iteration-1/claude-config/projects/x/deep/said.jsonl"); text != "{\"type\":\"user\"}\n" {
		t.Errorf("the transcript is %q", text)
	}
	err := filepath.WalkDir(p.path("out/transcripts"), func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if d.Name() == ".git" || !d.IsDir() && !info.Mode().IsRegular() || info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			t.Errorf("came out: %s %s", info.Mode(), name)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	var stored controller.Result
	if err := json.Unmarshal([]byte(p.read("out/result.json")), &stored); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"projects/x/fifo", "projects/x/outside"} {
		if !strings.Contains(strings.Join(stored.Skipped, "\n"), name) {
			t.Errorf("not_taken lacks %s: %q", name, stored.Skipped)
		}
	}
	for _, name := range []string{"out/agent.log", "out/agent.jsonl", "out/result.json"} {
		p.checkData(name)
	}
	for _, args := range [][]string{{"runs", "show", r.RunID}, {"runs", "list"}} {
		out, err := p.command(args...).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
		checkText(t, strings.Join(args, " "), string(out))
	}
}

// asClaude makes the fixture's agent the program that is started as Claude
// Code.
func (p *fixture) asClaude() {
	p.t.Helper()
	p.write("harness.yaml", strings.Replace(p.read("harness.yaml"), "runtime: command", "runtime: claude", 1), 0o644)
	const allow = "env_policy:\n  allow: ["
	policy := p.read("policy.yaml")
	if !strings.Contains(policy, allow) {
		p.t.Fatal("the policy has no list of variables")
	}
	p.write(
		"policy.yaml",
		strings.Replace(policy, allow, allow+"CLAUDE_CONFIG_DIR, CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC, DISABLE_AUTOUPDATER, IS_SANDBOX, ", 1),
		0o644,
	)
}

// checkData fails the test if a file contains text that controls a terminal or
// a CI system, or invalid JSON lines.
func (p *fixture) checkData(name string) {
	p.t.Helper()
	text := p.read(name)
	checkText(p.t, name, text)
	if !strings.HasSuffix(name, ".jsonl") {
		return
	}
	for line := range strings.Lines(text) {
		var e record.AgentEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			p.t.Errorf("%s: %q: %v", name, line, err)
		}
		checkText(p.t, name, e.Text)
	}
}

// checkText fails the test for control characters, and for lines that a CI
// system executes as commands.
func checkText(t testing.TB, name, text string) {
	t.Helper()
	if i := strings.IndexFunc(text, func(r rune) bool {
		return r < 0x20 && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e
	}); i >= 0 {
		t.Errorf("%s holds %.40q", name, text[i:])
	}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "::") || strings.HasPrefix(line, "##[") {
			t.Errorf("%s holds the line %q", name, line)
		}
	}
}

// The agent cannot write the settings that start its hooks, by any of their
// names.
func TestAnAgentCannotChangeItsHooks(t *testing.T) {
	t.Parallel()
	p := newFixture(t, `
for file in $(find /sandbox -name 'settings*.json'); do
	echo "TRIED $file"
	for try in 'echo {} > "$1"' 'rm -f "$1"' 'mv "$1" "$1.old"' 'ln -sf /dev/null "$1"' 'mv "$(dirname "$1")" /sandbox/workspace/moved' 'chmod 777 "$1"' 'cp /dev/null "$1"' 'truncate -s 0 "$1"'; do
		sh -c "$try" sh "$file" 2>/dev/null && echo "CHANGED $file by $try"
	done
done
echo '{"type":"result","subtype":"success","is_error":false,"result":"ends"}'`, "")
	p.asClaude()
	r, code := p.run()
	if code != 0 {
		t.Fatalf("exit %d: %+v", code, r.Error)
	}
	log := p.read("out/agent.log")
	if strings.Contains(log, "CHANGED") {
		t.Errorf("the agent changed its settings:\n%s", log)
	}
	if !strings.Contains(log, "TRIED /sandbox/workspace/.claude/settings.json") {
		t.Errorf("the agent found no settings:\n%s", log)
	}
}

// If git's checks refuse one commit, the valid commits before it are extracted,
// and the reason is reported.
func TestValidCommitsAreExtractedBesideARefusedOne(t *testing.T) {
	t.Parallel()
	p := newFixture(t, `
cd /sandbox/workspace/repo
echo two > a.txt; git -c user.name=a -c user.email=a@b commit -qam sound
tree=$(printf '100644 blob %s\t.gitmodules\n' $(printf '[submodule "a"]\n\tpath = a\n\turl = --upload-pack=x\n' | git hash-object -w --stdin) | git mktree)
git update-ref refs/heads/main $(git -c user.name=a -c user.email=a@b commit-tree -p HEAD -m unsound $tree)
`, "")
	r, code := p.run()
	if code != 0 || r.Status != controller.StatusDone || !r.Partial {
		t.Fatalf("exit %d: %+v", code, r)
	}
	if len(r.Commits) != 1 || r.Commits[0].Subject != "sound" {
		t.Errorf("commits %+v", r.Commits)
	}
	if len(r.RefusedCommits) != 1 || !strings.Contains(r.RefusedCommits[0].Reason, "gitmodulesUrl") {
		t.Errorf("refused %+v", r.RefusedCommits)
	}
	p.git("bundle", "verify", "-q", r.Bundle)
}

// A repository in the work, the output or the transcripts runs nothing on the
// host, and the result reports it.
func TestARepositoryThatAnAgentLeavesIsInert(t *testing.T) {
	t.Parallel()
	p := newFixture(t, `
evil() {
	mkdir -p $1/objects $1/refs; echo 'ref: refs/heads/main' > $1/HEAD; : > $1/objects/x; : > $1/refs/x
	printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = "touch HIT;"\n' > $1/new
	mv $1/new $1/config
}
cd /sandbox/workspace/repo
evil sub/evil; evil /sandbox/workspace/output/evil
git add -f . && git -c user.name=a -c user.email=a@b commit -qm evil
exit 0
`, "")
	// With git_guard, the file server would refuse it at once.
	p.write("policy.yaml", strings.Replace(p.read("policy.yaml"), "git_guard: true", "git_guard: false", 1), 0o644)
	r, code := p.run()
	if code != 0 || !r.Partial || len(r.Commits) != 0 {
		t.Fatalf("exit %d: %+v", code, r)
	}
	rules := map[string]bool{}
	for _, f := range r.Findings {
		rules[f.Rule+" "+f.File] = true
	}
	t.Logf("%v %v", rules, r.Skipped)
	for _, dir := range []string{"out/files/sub/evil", "out/output/evil"} {
		if text := p.read(dir + "/HEAD"); text == "" {
			t.Errorf("%s was not taken", dir)
		}
		cmd := exec.Command("git", "status")
		cmd.Dir = p.path(dir)
		out, _ := cmd.CombinedOutput()
		if _, err := os.Lstat(p.path(dir + "/HIT")); err == nil {
			t.Errorf("%s: code of the agent ran: %s", dir, out)
		}
		if !rules["repository "+strings.TrimPrefix(dir, "out/")+"/config"] {
			t.Errorf("%s: no finding", dir)
		}
	}
}
