package streams

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"agentsh/internal/wire"
)

func TestOutputWrittenBeforeTheEndIsDelivered(t *testing.T) {
	var stdout, stderr bytes.Buffer
	p, err := newPipes(wire.Streams{Stdout: &stdout, Stderr: &stderr}, nil)
	if err != nil {
		t.Fatal(err)
	}
	late, err := dup(p.Child[1]) // a background process that outlives the command
	if err != nil {
		t.Fatal(err)
	}
	p.Start(nil)
	want := strings.Repeat("x", 60<<10)
	if _, err := p.Child[1].WriteString(want); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Child[2].WriteString("e"); err != nil {
		t.Fatal(err)
	}
	p.Release()
	rest, err := p.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if stdout.String() != want || stderr.String() != "e" {
		t.Errorf("got %d bytes and %q", stdout.Len(), stderr.String())
	}
	if got := *p.Written(); got != (wire.OutputEnd{Stdout: int64(len(want)), Stderr: 1}) {
		t.Errorf("counted %+v", got)
	}
	if _, err := late.WriteString("late"); err != nil {
		t.Errorf("a late write fails: %v", err)
	}
	late.Close()
	<-rest
	if stdout.String() != want {
		t.Error("what was written after the end was delivered")
	}
}

func TestStdinIsPassedAndEnds(t *testing.T) {
	p, err := newPipes(wire.Streams{Stdin: strings.NewReader("hello")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Start(strings.NewReader("hello"))
	got := make([]byte, 16)
	n, err := p.Child[0].Read(got)
	if err != nil || string(got[:n]) != "hello" {
		t.Errorf("read %q, %v", got[:n], err)
	}
	p.Release()
	rest, err := p.Finish()
	if err != nil {
		t.Fatal(err)
	}
	<-rest
}

// dup gives a second descriptor of the same open file.
func dup(f *os.File) (*os.File, error) {
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_WRONLY, 0)
}
