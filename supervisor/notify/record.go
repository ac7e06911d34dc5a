package notify

import (
	"fmt"
	"log/slog"
	"sync/atomic"

	"agentsh/internal/wire"
)

// recorder writes audit events of one session.
type recorder struct {
	session string
	emit    func(wire.Event) error
	log     *slog.Logger
	lost    atomic.Uint64 // events that report could not write
}

// permit writes an event before the thing that it describes goes ahead. On an error
// that must be denied.
func (r *recorder) permit(e wire.Event) error {
	e.Session = r.session
	if err := r.emit(e); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

// report writes an event about something that is denied already. A failure changes
// nothing and is logged: the 1st, 10th, 100th and so on. A full disk fails each one.
func (r *recorder) report(e wire.Event) {
	e.Session = r.session
	if err := r.emit(e); err != nil {
		n := r.lost.Add(1)
		all := n
		for n >= 10 && n%10 == 0 {
			n /= 10
		}
		if n == 1 {
			r.log.Error("audit event lost", "so_far", all, "type", e.Type, "error", err)
		}
	}
}
