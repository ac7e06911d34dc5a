package foreground

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

func TestLinesThatACommandShows(t *testing.T) {
	text := "x agentsh: denied: not at the beginning\nagentsh: denied: one\n\nagentsh: denied: two\r\nagentsh: deni\nagentsh: denied: \n" +
		"\x1b[?2004l\ragentsh: denied: after a prompt\r\nagentsh: denied: overwritten\rby this\n" +
		"agentsh: denied: " + strings.Repeat("l", maxShownLine) + "\nagentsh: denied: unfinished"
	for size := 1; size <= len(text); size += 1 + size/3 {
		s := NewShown("agentsh: denied: ")
		var out bytes.Buffer
		w := s.Watch(&out)
		for rest := text; rest != ""; {
			n, err := w.Write([]byte(rest[:min(size, len(rest))]))
			if err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if out.String() != text {
			t.Fatal("the output was changed")
		}
		for line, want := range map[string]bool{
			"agentsh: denied: one": true, "agentsh: denied: two": true, "agentsh: denied: ": true, "agentsh: denied: three": false,
			"agentsh: denied: after a prompt": true, "agentsh: denied: overwritten": false,
			"agentsh: denied: not at the beginning": false, "agentsh: denied: unfinished": false, "agentsh: deni": false, "": false,
			"agentsh: denied: " + strings.Repeat("l", maxShownLine): false,
		} {
			if s.Since(line, time.Time{}) != want {
				t.Errorf("in pieces of %d: %q was shown: %v, want %v", size, line, !want, want)
			}
		}
	}
}

func TestOutputsThatAreOneFile(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	other, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var a, b bytes.Buffer
	s := NewShown("")
	for _, test := range []struct {
		x, y any
		want bool
	}{{w, w, true}, {s.Watch(w), w, true}, {w, other, false}, {&a, &a, true}, {&a, &b, false}, {w, &a, false}, {nil, nil, false}} {
		if got := SameFile(test.x, test.y); got != test.want {
			t.Errorf("%v and %v are one file: %v", test.x, test.y, got)
		}
	}
}
