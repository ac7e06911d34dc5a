package local

import (
	"bytes"
	"strings"
	"sync"
)

// maxTail is how many bytes of the supervisor's messages are kept.
const maxTail = 16 << 10

// tail keeps the end of what is written to it. Safe for concurrent use.
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

// lastLine is the last line that says something and is no hint.
func (t *tail) lastLine() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := bytes.Split(t.buf, []byte{'\n'})
	for i := len(lines) - 1; i >= 0; i-- {
		line := strings.TrimSpace(string(lines[i]))
		line = strings.TrimPrefix(line, "agentsh: ")
		if line != "" && !strings.HasPrefix(line, "hint: ") {
			return line
		}
	}
	return ""
}
