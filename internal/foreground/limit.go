package foreground

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
)

// Limit bounds the bytes of several outputs together.
type Limit struct {
	left atomic.Int64
	err  error
}

// NewLimit returns a limit of a number of bytes. name is the option that sets it.
func NewLimit(bytes int64, name string) *Limit {
	l := &Limit{err: fmt.Errorf("more than %d MiB were printed, see %s", bytes>>20, name)}
	l.left.Store(bytes)
	return l
}

// Writer returns an output of which every write fails beyond the limit.
func (l *Limit) Writer(w io.Writer) io.Writer { return &limited{w, l} }

type limited struct {
	w     io.Writer
	limit *Limit
}

func (l *limited) Write(p []byte) (int, error) {
	if l.limit.left.Add(-int64(len(p))) < 0 {
		return 0, l.limit.err
	}
	return l.w.Write(p)
}

// File returns the file that is written to, or nil.
func (l *limited) File() *os.File { return FileOf(l.w) }
