package notify

import (
	"fmt"
	"log/slog"

	"agentsh/internal/wire"
)

// recorder writes audit events of one session.
type recorder struct {
	session string
	emit    func(wire.Event) error
	log     *slog.Logger
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

// report writes an event about something that is denied already. A failure is
// logged and changes nothing.
func (r *recorder) report(e wire.Event) {
	e.Session = r.session
	if err := r.emit(e); err != nil {
		r.log.Error("audit event lost", "type", e.Type, "error", err)
	}
}
