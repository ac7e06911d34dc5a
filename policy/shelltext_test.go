package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"agentsh/policy"
)

func TestShellCommands(t *testing.T) {
	list, err := policy.ShellCommands("cd /x && git push \"--force\" 'a b' $REMOTE; (sudo rm -rf /)\nfor i in 1; do k\\ill $(pidof x); done")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range list {
		got = append(got, fmt.Sprintf("%d:%s", c.Line, strings.Join(c.Argv, "|")))
	}
	want := []string{"1:cd|/x", "1:git|push|--force|a b|$REMOTE", "1:sudo|rm|-rf|/", "2:kill|$(pidof x)", "2:pidof|x"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if k := list[1].Known; !k[3] || k[4] {
		t.Errorf("known words: %v", k)
	}
	for _, bad := range []string{"echo (", "if", strings.Repeat("(", 5000), strings.Repeat("x", policy.MaxShellText+1), "a 'b"} {
		if _, err := policy.ShellCommands(bad); err == nil {
			t.Errorf("%.20q parses", bad)
		}
	}
}

func FuzzShellCommands(f *testing.F) {
	f.Add("a && b $(c) `d`; e <<X\nX\n")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := policy.ShellCommands(text)
		for _, c := range list {
			if err != nil || len(c.Argv) == 0 || len(c.Argv) != len(c.Known) {
				t.Fatalf("%q: %+v %v", text, c, err)
			}
		}
	})
}
