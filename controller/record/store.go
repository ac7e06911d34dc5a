package record

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Files of a run's directory besides the record. A report is made from them,
// because the operator may move or remove the results.
const (
	ResultFile      = "result.json"       // the result
	AuditFile       = "audit.jsonl"       // the audit log of the sandbox
	AgentAuditFile  = "agent-audit.jsonl" // the audit log of the session of an agent's program on the host
	AgentEventsFile = "agent.jsonl"       // events of the agent, see [AgentEvent]
	AgentLogFile    = "agent.log"         // lines that the agent printed
	PlaceLogFile    = "place.log"         // what the place of the sandbox says about it
	ChangesFile     = "changes.json"      // the differences of the changed files
)

// storeLimits bound the stored part of a file, in bytes. The results contain
// the whole file.
var storeLimits = map[string]int64{AuditFile: 16 << 20, AgentAuditFile: 16 << 20, AgentEventsFile: 8 << 20, AgentLogFile: 1 << 20,
	PlaceLogFile: 1 << 20}

// Stored describes how much of a file is in a run's directory.
type Stored struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Of    int64  `json:"of"` // size of the whole file; if larger than Bytes, the end is missing
}

// Store copies the first lines of a log into the directory, up to a limit.
func (d *Dir) Store(name string, from io.Reader) (Stored, error) {
	s := Stored{Name: name}
	to, err := os.OpenFile(filepath.Join(d.Path, name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return s, fmt.Errorf("store %s: %w", name, err)
	}
	if s.Bytes, err = io.Copy(to, io.LimitReader(from, storeLimits[name])); err == nil {
		s.Of, err = io.Copy(io.Discard, from)
		s.Of += s.Bytes
	}
	if err == nil && s.Of > s.Bytes {
		s.Bytes, err = cutToLines(to, s.Bytes)
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return s, fmt.Errorf("store %s: %w", name, err)
	}
	return s, nil
}

// cutToLines cuts a file of size bytes after its last line end, and returns the
// new size.
func cutToLines(f *os.File, size int64) (int64, error) {
	buf := make([]byte, 64<<10)
	for size > 0 {
		n := min(size, int64(len(buf)))
		if _, err := f.ReadAt(buf[:n], size-n); err != nil {
			return size, err
		}
		for i := n; i > 0; i-- {
			if buf[i-1] == '\n' {
				size -= n - i
				return size, f.Truncate(size)
			}
		}
		size -= n
	}
	return 0, f.Truncate(0)
}
