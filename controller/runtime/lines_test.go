package runtime

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCleanLeavesNothingThatActs(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"plain text stays", "ok  \texample.com/booking\t0.01s", "ok  \texample.com/booking\t0.01s"},
		{"emoji and typography stay", "déjà “vu” ✓ 🚀", "déjà “vu” ✓ 🚀"},
		{"colours go", "\x1b[1;31mFAIL\x1b[0m", "FAIL"},
		{"a window title goes", "a\x1b]0;title\x07b", "ab"},
		{"a title ended by ST goes", "a\x1b]8;;http://x\x1b\\link", "alink"},
		{"an unfinished sequence acts no more", "a\x1b[31", "a31"},
		{"a clipboard sequence goes", "\x1bPq data \x1b\\x", "x"},
		{"a bell, backspace and C1 controls go", "a\a\bb\u009b31m", "ab31m"},
		{"the carriage return of a line end goes", "text\r", "text"},
		{"a carriage return inside hides nothing", "evil\rgood", "evil good"},
		{"direction marks go", "a\u202eb\u2066c", "abc"},
		{"hidden tag characters go", "a\U000e0041b", "ab"},
		{"bytes that are no UTF-8 are replaced", "a\xffb", "a\uFFFDb"},
		{"a workflow command loses its mark", "::set-env name=X::y", ":set-env name=X::y"},
		{"also behind blanks", " \t::add-mask::secret", " \t:add-mask::secret"},
		{"also with more colons", "::::warning::x", ":warning::x"},
		{"also uncovered by an escape", "\x1b[0m::error::x", ":error::x"},
		{"also uncovered by a zero width space", "\u200b::error::x", ":error::x"},
		{"the older form loses its mark anywhere", "a ##[set-env]b ###[x]", "a # [set-env]b ## [x]"},
		{"the form of azure loses its mark", "##vso[task.setvariable]x", "# vso[task.setvariable]x"},
		{"a scope in the middle stays", "std::vector", "std::vector"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Clean(tt.in); got != tt.want {
				t.Errorf("Clean(%q) = %q, want %q", tt.in, got, tt.want)
			}
		})
	}
}

func FuzzCleanIsSafeAndStable(f *testing.F) {
	f.Add("::x::y ##[z] \x1b[31m \u202e\xff")
	f.Add("#\u200b#[x]")
	f.Add("\x1b\x1b[m[m")
	f.Fuzz(func(t *testing.T, in string) {
		out := Clean(strings.ReplaceAll(in, "\n", ""))
		if !utf8.ValidString(out) || strings.ContainsAny(out, "\x1b\r\n\x00\x07\u202e") {
			t.Errorf("Clean(%q) = %q", in, out)
		}
		if strings.HasPrefix(strings.TrimSpace(out), "::") || strings.Contains(out, "##[") || strings.Contains(out, "##vso[") {
			t.Errorf("Clean(%q) = %q is a workflow command", in, out)
		}
	})
}

func TestLinesAreCompleteHoweverTheyAreWritten(t *testing.T) {
	tests := []struct {
		name string
		in   string
		want []string
	}{
		{"nothing", "", nil},
		{"empty lines count", "\n\na\n", []string{"", "", "a"}},
		{"an unfinished last line comes too", "a\nb", []string{"a", "b"}},
		{"a line of the limit is one", strings.Repeat("x", MaxLine) + "\ny\n", []string{strings.Repeat("x", MaxLine), "y"}},
		{"a longer line comes in pieces, the next is not lost", strings.Repeat("x", 2*MaxLine+1) + "\ny\n",
			[]string{strings.Repeat("x", MaxLine), strings.Repeat("x", MaxLine), "x", "y"}},
		{"no character is cut in two", strings.Repeat("x", MaxLine-1) + "é\n", []string{strings.Repeat("x", MaxLine-1), "é"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, step := range []int{1, 7, 1 << 20} {
				var got []string
				l := NewLines(func(s string) { got = append(got, s) })
				for in := []byte(tt.in); len(in) > 0; {
					n := min(len(in), 1+rand.IntN(step))
					if m, err := l.Write(in[:n]); m != n || err != nil {
						t.Fatalf("Write = %d, %v", m, err)
					}
					in = in[n:]
				}
				l.Flush()
				if !slices.Equal(got, tt.want) {
					t.Fatalf("in steps of %d: got %d lines, want %d", step, len(got), len(tt.want))
				}
			}
		})
	}
}

// TestALongLineUsesBoundedMemory feeds 64 MiB without a line end.
func TestALongLineUsesBoundedMemory(t *testing.T) {
	n, longest := 0, 0
	l := NewLines(func(s string) { n += len(s); longest = max(longest, len(s)) })
	chunk := []byte(strings.Repeat("x", 64<<10))
	for range 1024 {
		if _, err := l.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	l.Flush()
	if n != 64<<20 || longest > MaxLine || cap(l.buf) > 2*MaxLine {
		t.Errorf("%d bytes in lines of at most %d, buffer of %d", n, longest, cap(l.buf))
	}
}
