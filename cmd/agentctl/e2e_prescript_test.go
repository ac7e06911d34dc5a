package main

import (
	"os"
	"strings"
	"testing"

	"agentsh/controller"
)

// A skipped run succeeds without a sandbox, an agent and a post_script.
func TestAPreScriptSkipsTheRun(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, script, reason string }{
		{"by its output", `printf 'skipped=true\nreason=all done\ncount=3\n' >>"$FULLSEND_PRESCRIPT_OUTPUT"`, "all done"},
		{"by its own name", `echo skipped=true >"$AGENTSH_PRESCRIPT_OUTPUT"; echo printed`, ""},
		{"by its exit status", `echo; echo 'nothing to do'; echo; exit 78`, "nothing to do"},
		{"by both", `printf 'skipped=false\nreason=from the file\n' >>"$FULLSEND_PRESCRIPT_OUTPUT"; exit 78`, "from the file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newFixture(t, "echo never started", "pre_script: pre.sh\npost_script: post.sh")
			p.write("pre.sh", "#!/bin/sh\n"+tt.script+"\n", 0o755)
			p.write("post.sh", "#!/bin/sh\ntouch \"${0%/*}/posted\"\n", 0o755)
			r, code := p.run()
			if code != 0 || r.Status != controller.StatusSkipped || r.Error != nil || r.Delivered || len(r.Iterations) != 0 {
				t.Fatalf("exit %d: %s %+v", code, r.Status, r.Error)
			}
			if s := r.PreScript; s == nil || !s.Skipped || s.Reason != tt.reason {
				t.Errorf("%+v", s)
			}
			for _, name := range []string{"posted", "out"} {
				if _, err := os.Stat(p.path(name)); err == nil {
					t.Errorf("%s exists", name)
				}
			}
		})
	}
}

func TestAPreScriptThatDoesNotSkip(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "true", "pre_script: pre.sh")
	p.write("pre.sh", "#!/bin/sh\nprintf 'skipped=false\\nchecked=42\\n' >>\"$FULLSEND_PRESCRIPT_OUTPUT\"\n"+
		"echo ::add-mask::wonderland-7; echo token wonderland-7\n", 0o755)
	p.write("github", "", 0o600)
	cmd := p.command(p.runArgs()...)
	cmd.Env = append(cmd.Env, "GITHUB_ACTIONS=true", "GITHUB_OUTPUT="+p.path("github"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(string(out), "wonderland") || !strings.Contains(string(out), "token ***") {
		t.Errorf("printed:\n%s", out)
	}
	if got := p.read("github"); got != "skipped=false\nchecked=42\n" {
		t.Errorf("the next step reads %q", got)
	}
}

func TestAMisspeltSkipStartsNoAgent(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "echo never started", "pre_script: pre.sh")
	p.write("pre.sh", "#!/bin/sh\necho skipped true >>\"$FULLSEND_PRESCRIPT_OUTPUT\"\n", 0o755)
	r, code := p.run()
	if code != 2 || r.Error == nil || r.Error.Step != "pre_script" || !strings.Contains(r.Error.Message, `harness.yaml:8:13: line 1 of the output`) {
		t.Errorf("exit %d: %+v", code, r.Error)
	}
}

// What the script wants hidden is in no result and on no terminal. A reason is no
// command of a CI system.
func TestAReasonShowsNothingThatIsHidden(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"of the file":     `printf 'skipped=true\nkey=wonderland-7\nreason=no ##vso[task.x]wonderland-7 left\n' >>"$AGENTSH_PRESCRIPT_OUTPUT"`,
		"that is printed": `echo "no ##vso[task.x]wonderland-7 left"; exit 78`,
	} {
		t.Run(name, func(t *testing.T) {
			p := newFixture(t, "echo never started", "pre_script: pre.sh")
			p.write("pre.sh", "#!/bin/sh\necho ::add-mask::wonderland-7\n"+script+"\n", 0o755)
			out, err := p.command(p.runArgs("--json")...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if text := string(out); strings.Contains(text, "wonderland") || strings.Contains(text, "##vso[") || !strings.Contains(text, "*** left") {
				t.Errorf("printed:\n%s", text)
			}
		})
	}
}
