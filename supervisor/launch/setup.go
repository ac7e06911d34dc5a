package launch

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"agentsh/internal/layout"
)

// setupResult is what the init reported during its setup.
type setupResult struct {
	listener *os.File
	traced   bool     // there is no listener
	unjudged bool     // there is no engine
	why      error    // of that; nil: none was asked for
	probing  *answers // until the init is ready
	sockets  map[string]*os.File
	missing  map[string]error // optional parts that failed
	refused  []Proof
}

// Proof is one operation that the init tried after it had restricted itself.
// The kernel refused it with Errno.
type Proof struct {
	What  string
	Errno syscall.Errno
}

// add stores what a message of the setup announces.
func (r *setupResult) add(m *message) error {
	switch m.kind {
	case msgDied:
		return died(m.failure())
	case msgMissing:
		tag, errno := m.failure()
		r.missing[tag] = errno
		return nil
	case msgUnjudged:
		r.unjudged = true
		return nil
	case msgTraced:
		_, errno := m.failure()
		if r.traced = true; errno != 0 {
			r.why = fmt.Errorf("load the filter with a listener: %w", errno)
		}
		return nil
	}
	fds, err := m.descriptors(1)
	if err != nil {
		return err
	}
	switch m.kind {
	case msgListener:
		r.listener = fds[0]
		r.probing, err = refuseAll(r.listener)
		return err
	case msgSocket:
		r.sockets[string(m.data)] = fds[0]
		return nil
	default:
		m.closeFDs()
		return fmt.Errorf("message %q from the session init is unknown", m.kind)
	}
}

// addProofs checks the operations that the init tried. Each must have been
// refused.
func (r *setupResult) addProofs(b []byte) error {
	for len(b) > 0 {
		if len(b) < 5 || len(b) < 5+int(b[4]) {
			return fmt.Errorf("proof of restrictions: malformed message")
		}
		p := Proof{What: string(b[5 : 5+int(b[4])]), Errno: syscall.Errno(order.Uint32(b))}
		b = b[5+int(b[4]):]
		if !refusal(p.Errno) && (!r.traced || p.Errno != unix.ENOSYS) { // the answer of the filter without a tracer
			return fmt.Errorf("proof of restrictions: could %s, or %s proves nothing (%w)", p.What, p.What, p.Errno)
		}
		r.refused = append(r.refused, p)
	}
	return nil
}

// refusal reports whether an errno means that an operation is forbidden.
func refusal(e syscall.Errno) bool {
	return e == unix.EPERM || e == unix.EACCES || e == unix.EROFS
}

// check returns an error if the init reported too early that it is ready.
func (r *setupResult) check() error {
	if r.listener == nil && !r.traced && !r.unjudged || len(r.refused) == 0 {
		return fmt.Errorf("session init is ready without a listener or without proof")
	}
	return nil
}

// close closes the descriptors that no caller requested.
func (r *setupResult) close() {
	if r.listener != nil {
		r.listener.Close()
	}
	for _, s := range r.sockets {
		s.Close()
	}
}

// died is the error of a setup that ended at a step.
func died(step string, errno unix.Errno) error {
	var why string
	switch errno {
	case unix.EPERM:
		why = "a user may make none before Linux 5.11"
	case unix.EINVAL: // gVisor
		why = "this kernel makes none of these directories"
	}
	if why != "" && strings.HasPrefix(step, "create file system overlay ") {
		return fmt.Errorf("%s: %w: %s: have root run 'mkdir -p %s', as the package of agentsh does, "+
			"or go on with --degraded namespaces (in the configuration degraded: [namespaces])", step, errno, why, layout.Library)
	}
	return fmt.Errorf("%s: %w", step, errno)
}
