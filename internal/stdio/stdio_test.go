package stdio

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

type message struct {
	Text string `json:"text"`
}

func frame(t testing.TB, text string) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, message{text}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestAFrameIsFoundBehindNoise(t *testing.T) {
	for name, noise := range map[string]string{
		"nothing":                "",
		"a banner":               "Welcome to example.com\r\nLast login: today\r\n",
		"a line without end":     "motd",
		"a line like the magic":  "agentsh-stdio-1\nagentsh-stdio- 7\n agentsh-stdio-1 4\n",
		"bytes that are no text": "\x00\xff\x1b[2J\n",
		"as much as is skipped":  strings.Repeat("x", MaxNoise-100),
	} {
		for _, slow := range []func(io.Reader) io.Reader{func(r io.Reader) io.Reader { return r }, iotest.OneByteReader} {
			in := strings.NewReader(noise + frame(t, "hello") + "rest")
			var got message
			if err := Read(slow(in), &got, 100); err != nil || got.Text != "hello" {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
			if rest, _ := io.ReadAll(in); string(rest) != "rest" {
				t.Errorf("%s: %q is left", name, rest)
			}
		}
	}
}

func TestABadFrameIsAnError(t *testing.T) {
	whole := frame(t, "hello")
	for name, tt := range map[string]struct{ in, want string }{
		"nothing":            {"", "no frame"},
		"noise alone":        {"hello\n", "the stream ended"},
		"noise without end":  {strings.Repeat("x", 2*MaxNoise), "within 65536 bytes"},
		"too much noise":     {strings.Repeat("x\n", MaxNoise) + whole, "within 65536 bytes"},
		"a frame that ends":  {whole[:len(whole)-1], "unexpected EOF"},
		"a length in words":  {"agentsh-stdio-1 ten\n{}", "is not a length"},
		"a negative length":  {"agentsh-stdio-1 -1\n{}", "is not a length"},
		"a padded length":    {"agentsh-stdio-1 00000000002\n{}", "is not a length"},
		"a length too large": {"agentsh-stdio-1 4294967295\n{}", "at most 100"},
		"JSON that is none":  {"agentsh-stdio-1 2\n}{", "invalid character"},
	} {
		var got message
		if err := Read(strings.NewReader(tt.in), &got, 100); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	if err := Read(iotest.ErrReader(io.ErrClosedPipe), &message{}, 100); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a broken stream: %v", err)
	}
}

func TestALineIsFoundBehindNoise(t *testing.T) {
	in := strings.NewReader("motd\nplace need amd64\r\nrest")
	if got, err := ReadLine(in, "place "); got != "need amd64" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if rest, _ := io.ReadAll(in); string(rest) != "rest" {
		t.Errorf("%q is left", rest)
	}
	if _, err := ReadLine(strings.NewReader("motd\n"), "place "); !errors.Is(err, ErrNoFrame) {
		t.Errorf("no line: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("motd\n" + frame(f, "x") + "rest"))
	f.Add([]byte("agentsh-stdio-1 99\n{"))
	f.Add([]byte("agentsh-stdio-1 2\n{}"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		var got message
		err := Read(r, &got, 1000)
		read := len(in) - r.Len()
		if read > MaxNoise+1000 {
			t.Errorf("%d bytes were read", read)
		}
		if err != nil {
			return
		}
		var again message
		if err := Read(strings.NewReader(frame(t, got.Text)), &again, 10_000); err != nil || again != got {
			t.Errorf("%+v came back as %+v, %v", got, again, err)
		}
	})
}
