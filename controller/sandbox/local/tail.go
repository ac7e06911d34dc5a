package local

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

// tail stores the end of its input. Safe for concurrent use.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - maxTail; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// lastMessage is the last message with its lines joined, without its hint. A
// line that begins with "agentsh: " starts a message.
func (t *tail) lastMessage() string {
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

// readFile stores the end of a file of messages.
func (t *tail) readFile(name string) {
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
