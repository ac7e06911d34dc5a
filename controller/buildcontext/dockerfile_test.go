package buildcontext

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestInstructionsAreThoseOfBuildKit compares with what BuildKit's parser makes of the same text.
func TestInstructionsAreThoseOfBuildKit(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []Instruction
	}{
		{"tabs", "FROM\tx\nENTRYPOINT\t[\"/y\"]", []Instruction{{"FROM", "x", 1}, {"ENTRYPOINT", `["/y"]`, 2}}},
		{"a name on two lines", "FROM x\nENTRY\\\nPOINT [\"/y\"]", []Instruction{{"FROM", "x", 1}, {"ENTRYPOINT", `["/y"]`, 2}}},
		{"two escapes continue nothing", "FROM x\nRUN a \\\\\nUSER b", []Instruction{{"FROM", "x", 1}, {"RUN", `a \\`, 2}, {"USER", "b", 3}}},
		{"a heredoc named as a file", "FROM x\nCOPY <<robots.txt /y\nUSER no\nrobots.txt\nUSER b",
			[]Instruction{{"FROM", "x", 1}, {"COPY", "<<robots.txt /y", 2}, {"USER", "b", 5}}},
		{"a tab before the end is text", "FROM x\nRUN <<END\n\tEND\nUSER no\nEND\nUSER b",
			[]Instruction{{"FROM", "x", 1}, {"RUN", "<<END", 2}, {"USER", "b", 6}}},
		{
			"a tab before the end of <<-", "FROM x\nRUN <<-'END'\n\tEND\nUSER b",
			[]Instruction{{"FROM", "x", 1}, {"RUN", "<<-'END'", 2}, {"USER", "b", 4}},
		},
		{"shifts and here strings", "FROM x\nRUN echo $((1<<n)) && cat <<<word \"<<END\"\nUSER b",
			[]Instruction{{"FROM", "x", 1}, {"RUN", `echo $((1<<n)) && cat <<<word "<<END"`, 2}, {"USER", "b", 3}}},
		{"the form of a list", "FROM x\nRUN [\"sh\", \"-c\", \"cat <<END\"]\nUSER b",
			[]Instruction{{"FROM", "x", 1}, {"RUN", `["sh", "-c", "cat <<END"]`, 2}, {"USER", "b", 3}}},
		{"a heredoc of ONBUILD", "FROM x\nONBUILD RUN <<END\nUSER no\nEND\nUSER b",
			[]Instruction{{"FROM", "x", 1}, {"ONBUILD", "RUN <<END", 2}, {"USER", "b", 5}}},
		{"a directive below a comment is a comment", "# a\n# escape=`\nFROM x\nRUN a `\nUSER b",
			[]Instruction{{"FROM", "x", 3}, {"RUN", "a `", 4}, {"USER", "b", 5}}},
		{"a directive below another", "# syntax=docker/dockerfile:1\n# escape=`\nFROM x\nRUN a `\n b",
			[]Instruction{{"FROM", "x", 3}, {"RUN", "a  b", 4}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d, err := ParseDockerfile("Dockerfile", tt.text); err != nil || !reflect.DeepEqual(d.Last, tt.want) {
				t.Errorf("%+v, %v", d.Last, err)
			}
		})
	}
}

func TestALongInstructionIsReadInOnePass(t *testing.T) {
	text := "FROM x\nRUN true " + strings.Repeat("\\\ny", maxDockerfile/3)
	done := make(chan error, 1)
	go func() {
		_, err := ParseDockerfile("Dockerfile", text)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute): // reading it in the square of its length takes longer
		t.Fatal("it takes too long")
	}
}
