package probe

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"unsafe"

	"agentsh/supervisor/launch"
	"agentsh/supervisor/netns"
	"agentsh/supervisor/probe/trial"
)

// Trials that need more than the kernel. The others are those of package trial.
const (
	trialParent      = "parent"       // starts a child and reports the child's number and mark
	trialTraced      = "traced"       // makes a call again and again that stops for a tracer
	trialTracee      = "tracee"       // starts a child with that trial and reports the child's thread
	trialCallsParent = "calls_parent" // starts a child with the next trial and reports the child's thread
	trialCalls       = "calls"        // makes calls once it is traced
	trialRedirect    = "net_redirect" // redirects the connections of a new network namespace
	trialLookups     = "inet_diag"    // looks up sockets of its own
)

// Serve runs one trial in a process that this package started as [ProcessName],
// reports the result on the control socket and waits until the other side closes
// it. An error means that there is no result.
func Serve() error {
	files, err := launch.Donations()
	if err != nil {
		return err
	}
	f := files[controlName]
	if f == nil {
		return errors.New("no control socket")
	}
	control, err := net.FileConn(f)
	if err != nil {
		return err
	}
	f.Close()
	var asked request
	if err := json.NewDecoder(control).Decode(&asked); err != nil {
		return err
	}
	a, err := run(asked)
	if errors.Is(err, trial.ErrUnknown) {
		return err
	}
	if err != nil {
		a.Error = err.Error()
	}
	if a.PID == 0 {
		a.PID, a.Addr = os.Getpid(), uint64(uintptr(unsafe.Pointer(&trial.Mark)))
	}
	if err := json.NewEncoder(control).Encode(a); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, control) // until the other side closes
	return err
}

// run runs one trial in this process.
func run(asked request) (a answer, err error) {
	switch asked.Trial {
	case trialCallsParent:
		_, a, err = startRequest(request{Trial: trialCalls, Calls: asked.Calls}, environment{}) // the child ends with this process
	case trialCalls:
		a.PID, err = trial.Calls(asked.Calls)
	case trialParent:
		_, a, err = startProcess(trial.Nothing, environment{}) // the child ends with this process
	case trialTracee:
		_, a, err = startProcess(trialTraced, environment{}) // the child ends with this process
	case trialTraced:
		a.PID, err = trial.Traced()
	case trialRedirect:
		a.Detail, err = redirect()
	case trialLookups:
		a.Detail, err = netns.Lookups()
	default:
		a.Detail, err = trial.Run(asked.Trial)
	}
	return a, err
}

// redirect loads rules into a new network namespace that send every connection
// to one port.
func redirect() (string, error) {
	if _, err := trial.Loopback(); err != nil {
		return "", err
	}
	rules, route := netns.RedirectIPv4(netns.SessionPorts)
	if err := rules.Send(); err != nil {
		return "", fmt.Errorf("rules: %w", err)
	}
	if err := route.Send(); err != nil {
		return "", fmt.Errorf("route: %w", err)
	}
	families := "IPv4"
	rules, route = netns.RedirectIPv6(netns.SessionPorts)
	if rules.Send() == nil && route.Send() == nil {
		families += ", IPv6"
	}
	return families, nil
}
