package audit

import (
	"errors"
	"fmt"
	"os"

	"agentsh/internal/wire"
)

// Copy is a log whose events another machine numbered and chained. It has the same
// bytes as the original. It is for one goroutine.
type Copy struct {
	file  *os.File
	head  Head
	line  []byte
	size  int64 // bytes that are written
	limit int64
}

// maxCopy bounds a copy, in bytes: what writes the log at the other machine must not fill
// the disk of this one. It is about ten million events.
const maxCopy = 4 << 30

// NewCopy makes the file of a copy, which must not exist, with mode 0600.
func NewCopy(path string) (*Copy, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("copy the audit log: %w", err)
	}
	return &Copy{file: f, limit: maxCopy}, nil
}

// Append writes one event. It refuses an event that was changed, that does not follow the
// last one, or that makes the copy longer than a log may be. One that could not be written,
// as on a full disk, may be appended again.
func (c *Copy) Append(e wire.Event) error {
	line, err := appendEvent(c.line[:0], &e)
	if err == nil && len(line) >= MaxLine {
		err = fmt.Errorf("event of %d bytes, at most %d", len(line), MaxLine)
	}
	if err != nil {
		return fmt.Errorf("copy the audit log: %w", err)
	}
	head, err := link(line, c.head)
	if err != nil {
		return fmt.Errorf("copy the audit log: %w", err)
	}
	line = append(line, '\n')
	c.line = line
	if c.size+int64(len(line)) > c.limit {
		return fmt.Errorf("copy the audit log: it has more than %d bytes", c.limit)
	}
	if _, err := c.file.WriteAt(line, c.size); err != nil {
		return fmt.Errorf("copy the audit log: %w", errors.Join(err, c.file.Truncate(c.size)))
	}
	c.head, c.size = head, c.size+int64(len(line))
	return nil
}

// Head is the last event of the copy.
func (c *Copy) Head() Head { return c.head }

// Close brings the copy to disk and closes it.
func (c *Copy) Close() error { return errors.Join(c.file.Sync(), c.file.Close()) }
