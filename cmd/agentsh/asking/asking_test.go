package asking

import (
	"bytes"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentsh/internal/wire"
)

// desk is a prompt with its output and the answers that were given.
type desk struct {
	*Prompt
	mu      sync.Mutex
	out     bytes.Buffer
	answers []wire.ApprovalAnswer
	in      *io.PipeWriter
	stopped func() // is called when a question is to be answered: the terminal is stopped
}

func (d *desk) Write(b []byte) (int, error) {
	if d.stopped != nil && strings.HasPrefix(string(b), "allow it?") {
		d.stopped()
		<-time.After(2 * stalled)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.out.Write(b)
}

func (d *desk) shown() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.out.String()
}

func newDesk() *desk {
	r, w := io.Pipe()
	d := &desk{in: w}
	d.Prompt = NewPrompt(r, d, func(a wire.ApprovalAnswer) error { d.answers = append(d.answers, a); return nil })
	return d
}

func (d *desk) close() {
	d.end()
	_ = d.in.Close()
	d.keys.close()
}

func waiting(ids ...string) []wire.Pending {
	var out []wire.Pending
	for _, id := range ids {
		out = append(out, wire.Pending{
			ID: id, Ends: time.Now().Add(time.Hour),
			Question: wire.Question{Kind: wire.AskExec, Subject: "/bin/x\x1b[2J", Argv: []string{"x", "a b\n"}, Message: "m\u202e"},
		})
	}
	return out
}

func TestAQuestionIsAnsweredOnlyAfterItCouldBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		defer d.close()
		_ = d.Update(waiting("1", "2"))
		for range 5 { // somebody goes on typing
			<-time.After(quiet - time.Millisecond)
			_, _ = io.WriteString(d.in, "y\n")
			synctest.Wait()
		}
		if len(d.answers) > 0 || strings.Contains(d.shown(), "allow it?") {
			t.Fatalf("%+v after %q", d.answers, d.shown())
		}
		<-time.After(2 * quiet)
		for _, word := range []string{"what\n", "\n", "A\r"} {
			_, _ = io.WriteString(d.in, word)
			synctest.Wait()
		}
		<-time.After(quiet)
		synctest.Wait()
		_, _ = io.WriteString(d.in, "\x04")
		synctest.Wait()
		want := []wire.ApprovalAnswer{{ID: "1", Allow: true, Always: true, By: d.by}, {ID: "2", By: d.by}}
		if len(d.answers) != 2 || d.answers[0] != want[0] || d.answers[1] != want[1] {
			t.Errorf("%+v", d.answers)
		}
		if text := d.shown(); strings.Count(text, "type y, a or n: ") != 2 || strings.ContainsAny(text, "\x1b\u202e") {
			t.Errorf("%q", text)
		}
	})
}

// What was read from the terminal before a question could be answered may be passed on later.
func TestInputThatWasReadBeforeAnswersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		defer d.close()
		pass := func() func(string) {
			d.keys.mu.Lock()
			defer d.keys.mu.Unlock()
			typed := d.keys.typed
			return func(text string) { typed([]byte(text)) }
		}
		_ = d.Update(waiting("1", "2"))
		beforeOpen := pass()
		<-time.After(2 * quiet)
		synctest.Wait()
		beforeOpen("y\r")
		if len(d.answers) > 0 {
			t.Fatalf("before the question was open: %+v", d.answers)
		}
		first := pass()
		var whileStopped func(string)
		d.stopped = func() { whileStopped = pass() }
		first("n\ry\r")
		first("y\r")
		<-time.After(2 * quiet)
		synctest.Wait()
		first("y\r")
		whileStopped("y\r")
		if len(d.answers) != 1 || d.answers[0].Allow {
			t.Errorf("to another question: %+v", d.answers)
		}
		pass()("y\r")
		if len(d.answers) != 2 || !d.answers[1].Allow {
			t.Errorf("%+v", d.answers)
		}
	})
}

// A command chooses its arguments: with spaces as wide as the terminal they would begin
// lines of their own.
func TestAnArgumentCannotLookLikeAQuestion(t *testing.T) {
	fill := strings.Repeat(" ", 100)
	question := wire.Question{Kind: wire.AskExec, Subject: "/bin/rm", Message: "m"}
	question.Argv = []string{"rm", fill + "  run        /bin/ls" + fill + "大大"}
	for _, cols := range []int{0, 20, 40, 80, 200} {
		for _, rows := range []int{5, 1000} {
			text := questionText(wire.Pending{ID: "1", Question: question, Ends: time.Now()}, time.Now(), func() (int, int) { return cols, rows })
			var began []string
			for _, line := range strings.Split(text, "\n") {
				if cols >= 40 && len(line) >= cols && !strings.HasPrefix(line, "question ") {
					t.Errorf("%d columns: %q", cols, line)
				}
				if began = append(began, line); strings.HasPrefix(line, "             | ") {
					began = began[:len(began)-1]
				}
			}
			want := []string{"", "agentsh: question 1", "  run        /bin/rm", "  arguments  rm ", "  message    m", ""}
			if cols != 0 && rows == 5 {
				want = append(want[:5], "question 1 has ", "")
			} else if cols == 0 {
				want = want[:6]
			}
			if len(began) != len(want) {
				t.Fatalf("%d columns, %d rows: %q", cols, rows, began)
			}
			for i := range want {
				if !strings.HasPrefix(began[i], want[i]) {
					t.Errorf("%d columns: %q instead of %q", cols, began[i], want[i])
				}
			}
			joined := strings.ReplaceAll(text, "\n             | ", "")
			if !strings.Contains(joined, fill+"  run        /bin/ls"+fill+"大大\"\n") {
				t.Errorf("%d columns: %q", cols, text)
			}
		}
	}
}

// What a command writes into a pipe may come to the terminal, as with tee.
func TestOutputInAPipeStandsAboveAQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		out := &desk{}
		s := &screen{w: out}
		if _, err := io.WriteString(s.share(w), "before"); err != nil {
			t.Fatal(err)
		}
		held := make(chan struct{})
		go func() { s.hold(); close(held) }()
		<-time.After(5 * settling)
		synctest.Wait()
		if text := out.shown(); text != "" {
			t.Errorf("shown before what is on its way: %q", text)
		}
		b := make([]byte, 20)
		if n, err := r.Read(b); err != nil || string(b[:n]) != "before" {
			t.Errorf("%q, %v", b[:n], err)
		}
		<-held
		s.release()
	})
}

func TestOutputIntoAPipeWaitsForTheAnswer(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	s := &screen{w: io.Discard}
	shared := s.share(w)
	s.hold()
	wrote := make(chan error, 1)
	go func() { _, err := io.WriteString(shared, "after"); wrote <- err }()
	if err := r.SetReadDeadline(time.Now().Add(10 * settling)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 20)
	if n, err := r.Read(b); err == nil {
		t.Errorf("during the question: %q", b[:n])
	}
	s.release()
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
}

// A reader that has stopped, such as a pager, does not keep a question back.
func TestAFullPipeKeepsNoQuestionBack(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	s := &screen{w: io.Discard}
	wrote := make(chan error, 1)
	go func() { _, err := s.share(w).Write(make([]byte, 1<<20)); wrote <- err }()
	if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	s.hold()
	_ = r.Close()
	if err := <-wrote; err == nil {
		t.Error("written into a pipe without a reader")
	}
	s.release()
}

func TestWhatIsTypedBelongsToOneOfTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		k := newKeys(r, nil)
		var typed []byte
		read := func() string {
			b := make([]byte, 10)
			n, _ := k.Read(b)
			return string(b[:n])
		}
		go func() { _, _ = w.Write([]byte("one")) }()
		if got := read(); got != "one" {
			t.Errorf("%q", got)
		}
		k.listen(func(b []byte) { typed = append(typed, b...) }, func() { typed = append(typed, '.') })
		_, _ = w.Write([]byte("two"))
		synctest.Wait()
		k.ignore()
		k.pass([]byte("three"))
		if got := read(); got != "three" || string(typed) != "two" {
			t.Errorf("%q, and the question got %q", got, typed)
		}
		k.listen(func(b []byte) {}, func() { typed = append(typed, '.'); k.ignore() })
		_ = w.Close()
		synctest.Wait()
		if string(typed) != "two." {
			t.Errorf("%q", typed)
		}
		if n, err := k.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%d, %v after the end", n, err)
		}
		k.close()
	})
}

// What a command wrote before a question stands above it, also if it arrives late. A
// command that goes on writing does not keep the question back.
func TestAQuestionComesAfterTheOutputBeforeIt(t *testing.T) {
	for name, gap := range map[string]time.Duration{"late": 3 * settling / 4, "endless": settling / 2} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			s := newScreen(&out)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for range 2 {
					<-time.After(gap)
					_, _ = shared{s, &out}.Write([]byte("before "))
				}
				for name == "endless" && t.Context().Err() == nil {
					<-time.After(gap)
					s.mu.Lock()
					s.wrote++
					held := strings.Contains(out.String(), inOrder)
					s.mu.Unlock()
					if held {
						return
					}
				}
			}()
			began := time.Now()
			s.hold()
			if took := time.Since(began); took > 10*settling {
				t.Errorf("%s: the question waited for %s", name, took)
			}
			if text := out.String(); !strings.HasPrefix(text, "before before ") {
				t.Errorf("%s: %q", name, text)
			}
			s.release()
			<-done
		})
	}
}

func TestModesOfATerminalAreFollowed(t *testing.T) {
	for text, want := range map[string][2]string{
		"plain":                       {"", ""},
		"\x1b[?1049h\x1b[?25l":        {"\x1b[?25h\x1b[?1049l", "\x1b[?25l\x1b[?1049h"},
		"\x1b[?1000;1006h":            {"\x1b[?1000l\x1b[?1006l", "\x1b[?1000h\x1b[?1006h"},
		"\x1b[?1049h\x1b[?1049l":      {"", ""},
		"\x1b[?2004h\x1bc":            {"", ""},
		"\x1b[31m\x1b[?7lx":           {"\x1b[?7h", "\x1b[?7l"},
		"\x1b[?\x1b[?1h":              {"\x1b[?1l", "\x1b[?1h"},
		"\x1b[?99999999999999999h":    {"", ""},
		"\x1b[?10\r00h\x1b[\n?1\x18h": {"\x1b[?1000l", "\x1b[?1000h"},
		"\u009b?1000h\u00a0x":         {"\x1b[?1000l", "\x1b[?1000h"},
		"\x1b]0;title\a\x1b]8;;http://a\a\x1b]52;c;eQ==\a": {"", ""},
		"\x1b]11;#000000\a":               {"\x1b]R\x1b\\\x1b]104\x1b\\\x1b]105\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\", ""},
		"\x1bP=1s\x1b\\":                  {"\x1bP=2s\x1b\\", ""},
		"\x1b_Ga=T;\x1b\\":                {"\x1b_Ga=d,q=2\x1b\\", ""},
		"\x1b[>1u\x1b[?1h":                {"\x1b[?1l\x1b[>0u", "\x1b[<u\x1b[?1h"},
		"\x1b[>4;2m":                      {"\x1b[>4;0m", "\x1b[>4;2m"},
		"\x1b[>4;2m\x1b[>4m":              {"", ""},
		"\x1b[>1u\x1b]4;x\x1bP\x1b_\x1bc": {"", ""},
	} {
		var whole, parts modes
		whole.read([]byte(text))
		for i := range len(text) {
			parts.read([]byte(text[i : i+1]))
		}
		for _, m := range []*modes{&whole, &parts} {
			if m.off() != want[0] || m.on() != want[1] {
				t.Errorf("%q: %q and %q", text, m.off(), m.on())
			}
		}
	}
}

// FuzzModes: whatever a command writes, the state is bounded and what is written back
// is made of sequences alone.
func FuzzModes(f *testing.F) {
	f.Add([]byte("\x1b[?1049;25;7hx\x1b[?1l\x1bc"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m modes
		m.read(b)
		if len(m.differ) > mostModes || len(m.params) > 64 || strings.Trim(m.on()+m.off(), "\x1b[]\\?<>;:,=0123456789hlmuPsR_Gadq") != "" {
			t.Errorf("%d modes, %q", len(m.differ), m.on())
		}
	})
}

// A reason that the command prints itself, before or after its event is known, is not
// printed again. Otherwise it is.
func TestAReasonThatTheCommandShowsIsNotPrintedAgain(t *testing.T) {
	const first, line = "agentsh: denied: x", "agentsh: denied: x\nagentsh: hint: y"
	for name, test := range map[string]struct {
		before, after string // of the event
		end           bool   // the command ends at once
		want          string
	}{
		"before":        {before: first + "\n", want: first + "\n"},
		"after":         {after: first + "\r\n", want: first + "\r\n"},
		"not at all":    {after: "other\n", want: "agentsh: denied: x\r\nagentsh: hint: y\r\nother\n"},
		"later":         {want: "agentsh: denied: x\r\nagentsh: hint: y\r\n"},
		"at the end":    {end: true, want: "agentsh: denied: x\r\nagentsh: hint: y\r\n"},
		"until the end": {after: first + "\n", end: true, want: first + "\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			s := newScreen(&out)
			w := shared{s, s.shown.Watch(&out)}
			_, _ = w.Write([]byte(test.before))
			s.noticeUnlessShown(line)
			_, _ = w.Write([]byte(test.after))
			if test.end {
				s.end()
			}
			<-time.After(2 * showing) // of the bubble
			synctest.Wait()
			if out.String() != test.want {
				t.Errorf("%s: %q, want %q", name, out.String(), test.want)
			}
		})
	}
}

// What was shown long ago does not count.
func TestAReasonIsPrintedAgainLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := newScreen(&out)
		_, _ = shared{s, s.shown.Watch(&out)}.Write([]byte("agentsh: denied: x\n"))
		<-time.After(3 * showing) // of the bubble
		s.noticeUnlessShown("agentsh: denied: x")
		<-time.After(2 * showing) // of the bubble
		synctest.Wait()
		if want := "agentsh: denied: x\nagentsh: denied: x\r\n"; out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
	})
}
