package harness

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"agentsh/policy/env"
)

func TestAVariableThatNoProcessCanGetIsRejectedByName(t *testing.T) {
	big := strings.Repeat("x", env.MaxVar-len("BIG="))
	for _, c := range []struct{ what, text, file, want string }{
		{"one too large for the agent", "env:\n  sandbox:\n    BIG: " + big + "x\n", "",
			"a.yaml:5:5: error: env.sandbox: BIG is 131072 bytes with its name, the kernel passes at most 131071 to a process"},
		{"one too large for the scripts", "env:\n  runner:\n    BIG: " + big + "x\n", "", "a.yaml:5:5: error: env.runner: BIG is 131072 bytes"},
		{"one in a file", "host_files: [{src: e.env, dest: /sandbox/workspace/.env.d/e.env}]\n", "A=1\nBIG=" + big + "x\n",
			"e.env:2:1: error: host_files: BIG is 131072 bytes"},
		{"an argument", "runtime: command\ncommand: [a, " + big + "xxxx]\n", "", "a.yaml:4:14: error: command: argument 1 is 131082 bytes"},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := lay(t, tests{"a.yaml": head + c.text, "e.env": c.file})
			t.Chdir(dir)
			_, ps := Load("a.yaml", Options{})
			if got := short(dir, ps); !strings.Contains(got, c.want) {
				t.Errorf("%.300s\nwant %s", got, c.want)
			}
		})
	}
}

// TestTheLargestVariableReachesAProcess compares the limit with the kernel's.
func TestTheLargestVariableReachesAProcess(t *testing.T) {
	big := strings.Repeat("x", env.MaxVar-len("BIG="))
	h, ps := one(t, "env: {sandbox: {BIG: '${X}'}, runner: {R: '<<${X}>'}}\n")
	if ps != nil {
		t.Fatal(ps)
	}
	for value, want := range map[string]string{
		big[1:]: "", big: "env.runner: R is 131072 bytes", big + "x": "env.sandbox: BIG is 131072 bytes",
	} {
		x, ps := h.Expand(hostEnv(map[string]string{"X": value}))
		if ps != nil {
			t.Fatal(ps)
		}
		_, ps = x.Files()
		if want == "" && ps != nil || !strings.Contains(ps.Error(), want) {
			t.Errorf("%d bytes: %.200v", len(value), ps)
		}
		cmd := exec.CommandContext(t.Context(), "true")
		cmd.Env = []string{"BIG=" + value}
		if err := cmd.Run(); (err == nil) != (len(value) <= len(big)) {
			t.Errorf("a process with %d bytes: %v", len(value), err)
		}
	}
	dir := lay(t, tests{"a.yaml": head + "host_files: [{src: e.env, dest: /sandbox/workspace/.env.d/e.env, expand: true}]\n", "e.env": "BIG=a${X}\n"})
	h, _ = loaded(t, dir, "a.yaml", Options{})
	x, _ := h.Expand(hostEnv(map[string]string{"X": big}))
	if _, ps := x.Files(); !strings.Contains(short(dir, ps), "host_files: BIG is 131072 bytes") {
		t.Errorf("%.200v", ps)
	}
}

func TestVariablesThatAreTooManyForAProcessAreRejected(t *testing.T) {
	var text strings.Builder
	for i := range 11 {
		fmt.Fprintf(&text, "V%02d: '${X}%s', ", i, strings.Repeat("y", i))
	}
	for _, c := range []struct{ side, want string }{
		{"sandbox", "harness/a.yaml:3:192: error: the agent: 11 variables are 1100099 bytes, a process gets at most 1048576; the largest is V10 with 100014"},
		{"runner", "harness/a.yaml:3:191: error: env.runner: 11 variables are 1100099 bytes"},
	} {
		h, _ := one(t, "env: {"+c.side+": {"+text.String()+"}}\n")
		x, ps := h.Expand(hostEnv(map[string]string{"X": strings.Repeat("x", 100_000)}))
		if ps != nil {
			t.Fatal(ps)
		}
		if _, ps = x.Files(); !strings.Contains(ps.Error(), c.want) {
			t.Errorf("%.300v\nwant %s", ps, c.want)
		}
	}
}
