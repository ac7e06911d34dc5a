package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestChangesHideLines has commands delete, replace and move such files.
func TestChangesHideLines(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]string{
		"deleted":     "rm locked/key",
		"a link":      "ln -sf ../open locked/key",
		"a FIFO":      "rm locked/key && mkfifo locked/key",
		"a directory": "rm locked/key && mkdir locked/key",
		"appended":    "echo more >>locked/key",
		"moved":       "mv locked/key locked/other && echo new >locked/key",
	} {
		t.Run(name, func(t *testing.T) {
			b := openTools(t, nil)
			b.call("exec", args{"command": "echo seen >open; cat locked/key; " + do}, false)
			text, out := b.call("changes", args{"diff": true}, false)
			data, err := json.Marshal(out)
			if err != nil {
				t.Fatal(err)
			}
			b.want(text, "created   open\n", "+seen\n", "locked/key")
			if strings.Contains(text, "klocked") || strings.Contains(string(data), "klocked") {
				t.Errorf("the lines are shown: %s", text)
			}
		})
	}
}

// TestFilesThatOpenSlowlyHoldNoTool has FIFOs without another end in a workspace.
func TestFilesThatOpenSlowlyHoldNoTool(t *testing.T) {
	t.Parallel()
	b := openTools(t, nil)
	b.call("exec", args{"command": "mkfifo fifo; echo here >file"}, false)
	b.says("changes", args{"diff": true}, "fifo", "+here\n")
	b.says("grep", args{"pattern": "here"}, "file:1: here")
	b.fails("grep", args{"pattern": "here", "path": "fifo"}, "neither a file nor a directory")
	b.fails("read", args{"path": "fifo"}, "no regular file")
}

// TestAnEditThatGrowsBeyondTheLimitIsRefused multiplies a file by its places.
func TestAnEditThatGrowsBeyondTheLimitIsRefused(t *testing.T) {
	t.Parallel()
	b := openTools(t, nil)
	content := strings.Repeat("a", 1<<20)
	if err := os.WriteFile(filepath.Join(b.dir, "many"), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	b.fails("edit", args{"path": "many", "old_text": "a", "new_text": strings.Repeat("b", 1<<20), "replace_all": true},
		"the new content would have 1099511627776 bytes: at most 16 MiB")
	if after, err := os.ReadFile(filepath.Join(b.dir, "many")); err != nil || string(after) != content {
		t.Errorf("%d bytes, %v", len(after), err)
	}
}

// TestARefusedContentLeavesTheFile has git_guard refuse what the tools write: by a rename, and in place.
func TestARefusedContentLeavesTheFile(t *testing.T) {
	t.Parallel()
	b := openTools(t, nil)
	b.call("exec", args{"command": "git init -q . && git config user.name somebody"}, false)
	config := filepath.Join(b.dir, ".git", "config")
	before, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	patch := "*** Begin Patch\n*** Update File: .git/config\n@@\n-[user]\n+[alias]\n*** End Patch\n"
	for tool, in := range map[string]args{
		"write":       {"path": ".git/config", "content": "[core]\n\tfsmonitor = ./spy\n"},
		"edit":        {"path": ".git/config", "old_text": "[user]", "new_text": "[core]\n\tfsmonitor = ./spy\n[user]"},
		"apply_patch": {"patch": strings.Replace(patch, "+[alias]", "+[alias]\n+\tst = !./spy", 1)},
	} {
		b.fails(tool, in, "rule git_guard")
		if after, err := os.ReadFile(config); err != nil || string(after) != string(before) {
			t.Errorf("%s: the file has %q, %v", tool, after, err)
		}
	}
	if out := b.says("exec", args{"command": "ls -A .git /tmp | grep '^.agentsh-'; echo end"}); out["output"] != "end\n" {
		t.Errorf("left: %v", out["output"])
	}
}

// TestTwoServersLoseNoEdit has two servers of one workspace edit one file at once: those of two sessions, and of one.
func TestTwoServersLoseNoEdit(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]func(b *toolbox) *toolbox{
		"two sessions": func(b *toolbox) *toolbox {
			return b.another("-p", filepath.Join(filepath.Dir(b.dir), "policy.yaml"), "-w", b.dir)
		},
		"one session": func(b *toolbox) *toolbox {
			sockets, err := filepath.Glob(filepath.Join(b.run, "agentsh", "*", "socket"))
			if err != nil || len(sockets) != 1 {
				t.Fatalf("%v %v", sockets, err)
			}
			return b.another("--session", filepath.Base(filepath.Dir(sockets[0])))
		},
	} {
		t.Run(name, func(t *testing.T) {
			first := openTools(t, nil)
			servers := []*toolbox{first, second(first)}
			const edits = 12 // of each server
			var before, after strings.Builder
			for i := range edits * len(servers) {
				fmt.Fprintf(&before, "line %d.\n", i)
				fmt.Fprintf(&after, "edited %d.\n", i)
			}
			file := filepath.Join(first.dir, "file")
			if err := os.WriteFile(file, []byte(before.String()), 0o644); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for n, server := range servers {
				wg.Go(func() {
					for i := n; i < edits*len(servers); i += len(servers) {
						tool, in := "edit", args{"path": "file", "old_text": fmt.Sprintf("line %d.", i), "new_text": fmt.Sprintf("edited %d.", i)}
						if i%6 > 3 {
							tool, in = "apply_patch", args{"patch": fmt.Sprintf(
								"*** Begin Patch\n*** Update File: file\n@@\n-line %d.\n+edited %d.\n*** End Patch\n", i, i)}
						}
						res, err := server.session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: in})
						if err != nil || res.IsError {
							t.Errorf("%s %d: %v %+v", tool, i, err, res)
						}
					}
				})
			}
			wg.Wait()
			if text, err := os.ReadFile(file); err != nil || string(text) != after.String() {
				t.Errorf("%v:\n%s", err, text)
			}
		})
	}
}
