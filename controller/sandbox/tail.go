package sandbox

import (
	"io"
	"os"
	"strings"
	"sync"
)

// maxTail is the number of bytes of the supervisor's messages that are stored.
const maxTail = 16 << 10

// maxLines is the number of lines of one message that are reported.
const maxLines = 4

// Tail stores the end of its input. Safe for concurrent use.
type Tail struct {
	mu  sync.Mutex
	buf []byte
}

// Write never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - maxTail; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// LastMessage is the last message with its lines joined, without its hint. A
// line that begins with "agentsh: " starts a message.
func (t *Tail) LastMessage() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var message []string
	for line := range strings.Lines(string(t.buf)) {
		line = strings.TrimSpace(line)
		text, begins := strings.CutPrefix(line, "agentsh: ")
		switch {
		case line == "" || strings.HasPrefix(text, "hint: "):
		case begins:
			message = []string{text}
		case len(message) < maxLines:
			message = append(message, text)
		}
	}
	return strings.Join(message, "; ")
}

// ReadFile stores the end of a file of messages.
func (t *Tail) ReadFile(name string) {
	f, err := os.Open(name)
	if err != nil {
		return
	}
	defer f.Close()
	if _, err := f.Seek(-maxTail, io.SeekEnd); err != nil { // it is shorter
		_, _ = f.Seek(0, io.SeekStart)
	}
	_, _ = io.Copy(t, io.LimitReader(f, maxTail)) // what could be read is the message
}
