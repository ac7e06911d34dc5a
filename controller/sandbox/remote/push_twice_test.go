package remote

import (
	"context"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"agentsh/internal/stdio"
)

// Two sandboxes that begin at a place without the program send it both. The one that comes first
// runs the file that is there, and the other must leave it.
func TestAProgramThatRunsIsNotReplacedByTheSame(t *testing.T) {
	for name, shell := range shells(t) {
		t.Run(name, func(t *testing.T) {
			p := place{t, shell, t.TempDir()}
			programs := fakeProgram(t, "one")
			c, err := Parse("exec:env -i PATH="+os.Getenv("PATH")+" HOME="+p.home+" "+shell, "")
			if err != nil {
				t.Fatal(err)
			}
			late, err := c.Open(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			defer late.Kill()
			says := func(want string) {
				t.Helper()
				if answer, err := stdio.ReadLine(late, said); err != nil || !strings.HasPrefix(answer, want) {
					t.Fatalf("%q, %v", answer, err)
				}
			}
			if _, err := io.WriteString(late, makeScript(programs)); err != nil {
				t.Fatal(err)
			}
			says("need ")
			if _, err := p.enter(programs); err != nil {
				t.Fatal(err)
			}
			first, err := os.Stat(p.programs()[0])
			if err != nil {
				t.Fatal(err)
			}
			if err := push(late, programs[runtime.GOARCH]); err != nil {
				t.Fatal(err)
			}
			says("start")
			all := p.programs()
			if now, err := os.Stat(all[0]); err != nil || !os.SameFile(first, now) || len(all) != 1 {
				t.Errorf("the program was replaced: %v, %v", all, err)
			}
		})
	}
}
