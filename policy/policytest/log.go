package policytest

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// MaxEvents bounds the events that are read from one log.
const MaxEvents = 10_000_000

// Events calls each for every event of an audit log, which has one JSON object
// on each line. An error has the line number.
func Events(r io.Reader, each func(wire.Event) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, wire.MaxMessage)
	n := 0
	for lines.Scan() {
		n++
		if n > MaxEvents {
			return fmt.Errorf("line %d: more than %d events", n, MaxEvents)
		}
		if len(strings.TrimSpace(lines.Text())) == 0 {
			continue
		}
		var e wire.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("line %d: not an audit event: %w", n, err)
		}
		if err := each(e); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w", n+1, err)
	}
	return nil
}

// Requests returns the requests of an event: none, one, or two for a rename or
// link. An event without the necessary data has none.
func Requests(e wire.Event) []policy.Request {
	if e.Decision == "" {
		return nil
	}
	switch e.Type {
	case wire.EventCommand, wire.EventExec:
		return commandEvent(e)
	case wire.EventFile:
		return fileEvent(e)
	case wire.EventNet:
		return netEvent(e)
	case wire.EventSignal:
		return signalEvent(e)
	}
	return nil
}

func commandEvent(e wire.Event) []policy.Request {
	if len(e.Argv) == 0 {
		return nil
	}
	q := Command(e.Argv)
	if e.Path != "" {
		q.Path = e.Path
		q.Called = cmp.Or(e.Called, e.Path)
	}
	for _, file := range e.Chain {
		q.Chain = append(q.Chain, policy.Program{Called: file, Path: file})
	}
	if e.Process != nil {
		q.Cwd = e.Process.Cwd
	}
	if e.Type == wire.EventExec {
		q.Depth = 1
		if e.Process != nil && e.Process.Exe != "" {
			q.Parent = e.Process.Exe
			q.Ancestors = []string{q.Parent}
		}
	}
	return []policy.Request{q}
}

func fileEvent(e wire.Event) []policy.Request {
	op, ok := policy.ParseFileOp(e.Op)
	if !ok || op&(op-1) != 0 {
		return nil
	}
	var out []policy.Request
	for _, name := range []string{e.Path, e.Target} {
		if path.IsAbs(name) {
			out = append(out, &policy.FileRequest{Path: path.Clean(name), Op: op})
		}
	}
	return out
}

func netEvent(e wire.Event) []policy.Request {
	if e.Target == "" && e.Path != "" {
		return []policy.Request{&policy.UnixSocketRequest{Path: e.Path, Op: e.Op}}
	}
	// A connection by an address has the name, too: "example.com at 192.0.2.1:443".
	name, at, named := strings.Cut(e.Target, " at ")
	if !named {
		at = e.Target
	}
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		return nil
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil
	}
	q := &policy.NetworkRequest{Port: n, Protocol: "tcp"}
	if e.Op == "udp" {
		q.Protocol = "udp"
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		q.Addr = addr
	} else {
		q.Domain = strings.ToLower(host)
	}
	if named {
		q.Domain = strings.ToLower(name)
	}
	if reached, err := netip.ParseAddrPort(address(e)); err == nil && !q.Addr.IsValid() {
		q.Addr = reached.Addr()
	}
	if e.Process != nil {
		q.Binary = e.Process.Exe
	}
	return []policy.Request{q}
}

// address is the address that a connection reached, with its port.
func address(e wire.Event) string {
	if e.Net == nil {
		return ""
	}
	return e.Net.Address
}

// signalEvent parses a target: the relation, then the process id and the
// program's name if they are known.
func signalEvent(e wire.Event) []policy.Request {
	signal, ok := policy.ParseSignal(e.Op)
	words := strings.Fields(e.Target)
	if !ok || len(words) == 0 {
		return nil
	}
	q := &policy.SignalRequest{Signal: signal, Target: words[0]}
	if len(words) > 1 {
		q.PID, _ = strconv.Atoi(words[1])
	}
	if len(words) > 2 {
		q.Name = strings.Join(words[2:], " ")
	}
	return []policy.Request{q}
}

// Replayed is one recorded request with the decision of another policy.
type Replayed struct {
	Seq        uint64
	Request    policy.Request
	Was        string // the recorded decision
	Now        policy.Decision
	Diagnostic policy.Diagnostic
}

// Changed reports whether the policy decides differently from the record. It
// ignores whether an allowed request is logged.
func (r Replayed) Changed() bool {
	if went := r.Was == policy.Allow.String() || r.Was == policy.Audit.String(); went || r.Now.Permits() {
		return went != r.Now.Permits()
	}
	return r.Was != r.Now.Effect.String()
}

// ReplayCount counts the results of a replay.
type ReplayCount struct {
	Judged  int // requests
	Changed int
	Skipped int // events with a decision that do not say what was asked
}

// Resolve completes the request of a command by what the files of this machine say of
// its program: interpreters, links and copies. It leaves a request whose program is
// not here as it is.
type Resolve func(q *policy.CommandRequest)

func (r Resolve) apply(q policy.Request) {
	if c, ok := q.(*policy.CommandRequest); ok && r != nil {
		r(c)
	}
}

// Replay evaluates a recorded session under another policy and calls each for
// every request. resolve may be nil.
func Replay(p *policy.Policy, log io.Reader, resolve Resolve, each func(Replayed) error) (ReplayCount, error) {
	var count ReplayCount
	err := Events(log, func(e wire.Event) error {
		requests := Requests(e)
		if len(requests) == 0 && e.Decision != "" {
			count.Skipped++
		}
		for _, q := range requests {
			resolve.apply(q)
			r := Replayed{Seq: e.Seq, Request: q, Was: e.Decision}
			r.Now, r.Diagnostic = p.Evaluate(q)
			count.Judged++
			if r.Changed() {
				count.Changed++
			}
			if err := each(r); err != nil {
				return err
			}
		}
		return nil
	})
	return count, err
}
