package main

import (
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestAnswersSayWhatToDo holds texts that a model reads.
func TestAnswersSayWhatToDo(t *testing.T) {
	t.Parallel()
	b := openTools(t, nil)
	b.says("exec", args{"command": "true"}, "[exit status 0, no output]")
	b.fails("exec", args{"command": "true", "dir": "/"}, `the arguments do not fit: unexpected additional properties ["dir"]`,
		"exec has command, argv, cwd, stdin, timeout_seconds, background")
	b.fails("read", args{}, "read has path, offset, limit")
	b.fails("checkpoints", args{"all": true}, "checkpoints has no arguments")
	b.fails("rollback", args{"id": "99"}, `there is no checkpoint "99": none was made`)
	b.call("write", args{"path": "f", "content": "o o\no\n"}, false)
	b.fails("edit", args{"path": "f", "old_text": "o", "new_text": "p"}, "3 times, at lines 1, 2;")
	b.fails("grep", args{"pattern": "("}, "pattern: Unmatched ( or")
	b.call("exec", args{"command": "mkdir d; echo x >d/f; chmod 0 d"}, false)
	for _, tool := range []string{"read", "list"} {
		b.fails(tool, args{"path": "d/f"}, "ermission denied")
	}
	b.call("exec", args{"command": "chmod 755 d"}, false)
	b.fails("read", args{"path": "d/g"}, "does not exist")
	for range 5 {
		id := b.says("exec", args{"command": "sleep 300 & sleep 301", "background": true})["command_id"]
		if out := b.says("exec_kill", args{"command_id": id}, "ended by signal"); out["end"] != "signaled" {
			t.Errorf("%v", out)
		}
	}
}

// TestRefusalsStandOnceInATextOfATool has the output of the command say one already.
func TestRefusalsStandOnceInATextOfATool(t *testing.T) {
	t.Parallel()
	b := openTools(t, nil)
	text, _ := b.call("exec", args{"command": "cat secret/key; cat secret/key"}, false)
	b.want(text, "rule no-secrets")
	text, _ = b.call("exec", args{"command": "cat secret/key; cat <<'END'\n" + text + "END\n"}, false)
	b.want(text, "rule no-secrets")
	if n := strings.Count(text, "(rule no-secrets,"); n != 1 {
		t.Errorf("%d times: %s", n, text)
	}
}

// TestOutputsAreListedAsResources has the newest first, and none without output.
func TestOutputsAreListedAsResources(t *testing.T) {
	t.Parallel()
	b := openTools(t, nil)
	first := b.says("exec", args{"command": "echo first"})["command_id"].(string)
	b.call("exec", args{"command": "true"}, false)
	last := b.says("exec", args{"command": "echo last"})["command_id"].(string)
	list, err := b.session.ListResources(t.Context(), nil)
	if err != nil || len(list.Resources) != 2 || list.Resources[0].Name != "output of "+last || list.Resources[1].Name != "output of "+first {
		t.Fatalf("%v %+v", err, list)
	}
	if list.Resources[1].Title != "echo first" || list.Resources[1].Size != 6 {
		t.Errorf("%+v", list.Resources[1])
	}
	r, err := b.session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: list.Resources[1].URI})
	if err != nil || r.Contents[0].Text != "first\n" {
		t.Errorf("%v %+v", err, r)
	}
}
