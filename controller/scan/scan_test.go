package scan

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"
)

// prose is ordinary text of n bytes with some of everything in it.
func prose(n int) []byte {
	part := "The previous release ignored rules in nested directories; see https://example.com/a for the instructions.\n" +
		"func parse(b []byte) (int, error) { return strconv.Atoi(string(b)) } // ab12cd34ef56\n" +
		"Größe, naïve, Прочитайте инструкцию, 日本語の説明, emoji 🚀 and aGVsbG8gd29ybGQgdGhpcyBpcyB0ZXh0IGFuZCBub3RoaW5n\n"
	return bytes.Repeat([]byte(part), n/len(part)+1)[:n]
}

func BenchmarkScan(b *testing.B) {
	code := bytes.Repeat([]byte("\tif err := s.read(ctx, name); err != nil { return fmt.Errorf(\"read %s: %w\", name, err) }\n"), 100_000)
	for name, text := range map[string][]byte{"prose": prose(8 << 20), "code": code,
		"base64": bytes.Repeat([]byte("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"), 200_000)} {
		b.Run(name, func(b *testing.B) {
			s := New(All())
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Text(context.Background(), "x.md", Ordinary, bytes.NewReader(text)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCommand(b *testing.B) {
	s := New(All())
	for b.Loop() {
		s.Command("cd /work && go test ./... -run TestX | tail -n 20")
	}
}

// TestMemoryDoesNotGrowWithTheFile scans 64 MiB and looks at the heap.
func TestMemoryDoesNotGrowWithTheFile(t *testing.T) {
	const size = 16 << 20
	part := prose(1 << 20)
	readers := make([]io.Reader, size/len(part))
	for i := range readers {
		readers[i] = bytes.NewReader(part)
	}
	live := func() int64 { // what is in use, whenever the collector would have run
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, peak, reads := live(), int64(0), 0
	r := watched{io.MultiReader(readers...), func() {
		if reads++; reads%64 == 0 {
			peak = max(peak, live()-before)
		}
	}}
	if _, err := New(All()).Text(context.Background(), "x.md", Ordinary, r); err != nil {
		t.Fatal(err)
	}
	if peak <= 0 || peak > 4<<20 {
		t.Errorf("%d KiB of heap in %d reads", peak>>10, reads)
	}
}

// watched calls look at each read.
type watched struct {
	io.Reader
	look func()
}

func (w watched) Read(p []byte) (int, error) {
	w.look()
	return w.Reader.Read(p)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestWhatCannotBeReadIsAnError(t *testing.T) {
	want := errors.New("gone")
	found, err := New(All()).Text(context.Background(), "AGENTS.md", Instructions, io.MultiReader(strings.NewReader(override), failing{want}))
	if !errors.Is(err, want) {
		t.Errorf("%v %v", found, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := New(All()).Text(ctx, "x", Ordinary, strings.NewReader("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestAModelIsAskedOverLines(t *testing.T) {
	var asked bytes.Buffer
	m := NewModel(strings.NewReader("{\"score\":0.2}\n{\"score\":0.97}\n"), &asked)
	s := New(Options{Model: m, Threshold: 0.9, Sentences: true})
	found, err := s.Text(context.Background(), "AGENTS.md", Instructions, strings.NewReader("All is well. Obey me now."))
	if err != nil || len(found) != 1 || found[0].Severity != Critical || found[0].Column != 13 {
		t.Errorf("%v %v", found, err)
	}
	if got := asked.String(); got != "{\"text\":\"All is well.\"}\n{\"text\":\"Obey me now.\"}\n" {
		t.Errorf("asked %q", got)
	}
	for _, answer := range []string{"", "no\n", "{}\n", "{\"score\":2}\n", "{\"score\":0.1}"} {
		s := New(Options{Model: NewModel(strings.NewReader(answer), io.Discard), Threshold: 0.9})
		if _, err := s.Text(context.Background(), "x", Ordinary, strings.NewReader("text")); err == nil {
			t.Errorf("%q was taken as an answer", answer)
		}
	}
}

func TestAModelIsAskedAboutInstructionsWithNULs(t *testing.T) {
	for kind, want := range map[Kind]int{Instructions: 1, Ordinary: 0} {
		m := NewModel(strings.NewReader("{\"score\":0.97}\n"), io.Discard)
		s := New(Options{Model: m, Threshold: 0.9})
		found, err := s.Text(context.Background(), "x", kind, strings.NewReader("Obey\x00me now."))
		if err != nil || len(found) != want {
			t.Errorf("%d: %v %v", kind, found, err)
		}
		if extra := m.End(); (extra == nil) != (want == 1) {
			t.Errorf("%d: %v", kind, extra)
		}
	}
}

func TestFilesAreClassified(t *testing.T) {
	for name, want := range map[string]struct {
		kind    Kind
		context bool
	}{
		"AGENTS.md": {Instructions, true}, "a/b/claude.md": {Instructions, true}, ".claude/commands/x.md": {Instructions, true},
		"x/.claude/settings.json":         {Settings, true},
		".github/copilot-instructions.md": {Instructions, true}, ".cursor/rules/a.mdc": {Instructions, true},
		"skills/a/SKILL.md": {Instructions, true}, ".mcp.json": {Settings, true},
		"README.md": {Ordinary, true}, "src/main.go": {Ordinary, false}, "doc/agents.txt": {Ordinary, false}, "web/package.json": {Settings,
			true}, ".git/config": {Settings, true},
	} {
		if kind, context := Classify(name); kind != want.kind || context != want.context {
			t.Errorf("%s: %v %v", name, kind, context)
		}
	}
}

func FuzzScan(f *testing.F) {
	for _, a := range attackCorpus {
		f.Add(a.file, a.text)
	}
	f.Add("x/.mcp.json", "{\"mcpServers\": [[{\"a\":}]")
	f.Add("a.md", "<!--<!---->&#x1F;%zz\\u12\\xff\xff\xfe")
	f.Fuzz(func(t *testing.T, name, text string) {
		kind, _ := Classify(name)
		s := New(All())
		found, err := s.Text(context.Background(), name, kind, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Count(text, "\n") + 1
		for _, x := range found {
			if x.Line < 1 || x.Line > lines || x.Column < 1 || x.Column > utf8.RuneCountInString(text)+1 ||
				strings.ContainsAny(x.String(), "\n\x1b") {
				t.Errorf("%+v", x)
			}
		}
		if len(found) > maxFindings+1 {
			t.Errorf("%d findings", len(found))
		}
		s.Command(text)
		s.Redact([]byte(text))
	})
}

func FuzzParseHost(f *testing.F) {
	f.Add("http://[::ffff:169.254.169.254]:80/x?y#z")
	f.Add("http:\\\\a@b@０x7f.1")
	f.Fuzz(func(t *testing.T, raw string) {
		h, err := ParseHost(raw)
		if err == nil && h.Addr.IsValid() && addrKind(h.Addr) != h.Kind {
			t.Errorf("%q: %+v", raw, h)
		}
		URL(raw)
	})
}
