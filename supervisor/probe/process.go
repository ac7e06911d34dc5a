package probe

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/launch"
	"agentsh/supervisor/probe/trial"
)

// ProcessName is argv[0] of a process that runs one trial and ends. The program
// must call [Serve] when it is started under this name.
const ProcessName = "agentsh-probe"

// controlName is the name of the descriptor of a trial's control socket.
const controlName = "control"

// trialTimeout bounds one trial, the start of its process included.
const trialTimeout = 60 * time.Second

// mappedID is the id of root in the user namespace of a trial: root may not map
// itself, and every other id shows the same.
const mappedID = 60700

// ErrUndecided is in the chain of the error of a trial that had no result in
// time. On a busy machine that does not mean that the mechanism is missing.
var ErrUndecided = errors.New("the trial was not decided")

// answer is what the process of a trial reports, as JSON.
type answer struct {
	Detail string `json:"detail,omitempty"`
	Error  string `json:"error,omitempty"`
	PID    int    `json:"pid"`     // of a process to look at: the trial's own or its child
	Addr   uint64 `json:"address"` // of trial.Mark in that process
}

// request is what the process of a trial is asked for, as JSON.
type request struct {
	Trial string       `json:"trial"`
	Calls []trial.Call `json:"calls,omitempty"` // of [Taken]
}

// environment is where a trial runs.
type environment struct {
	user       bool    // in a new user namespace
	namespaces uintptr // CLONE_NEWNS and others
}

// process is one that waits with its trial done.
type process struct {
	server  *launch.Server
	control net.Conn
}

// startProcess starts a process for one trial and returns what it reports. The
// caller closes the process.
func startProcess(trial string, where environment) (*process, answer, error) {
	return startRequest(request{Trial: trial}, where)
}

func startRequest(r request, where environment) (*process, answer, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, answer{}, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "probe"), os.NewFile(uintptr(pair[1]), "probe")
	defer ours.Close()
	defer theirs.Close()
	control, err := net.FileConn(ours)
	if err != nil {
		return nil, answer{}, err
	}
	server, err := startServer(where, []launch.Donation{{Name: controlName, File: theirs}})
	if err != nil {
		return nil, answer{}, errors.Join(err, control.Close())
	}
	theirs.Close() // so that the end of the process closes the connection
	p := &process{server, control}
	a, err := p.request(r)
	if err != nil {
		p.close()
		return nil, answer{}, err
	}
	return p, a, nil
}

// startServer starts the process of a trial in its namespaces.
func startServer(where environment, donations []launch.Donation) (*launch.Server, error) {
	if !where.user && where.namespaces == 0 {
		return launch.StartServer(ProcessName, donations)
	}
	u := launch.User{Namespace: where.user, UID: os.Geteuid(), GID: os.Getegid()}
	if where.user && u.UID == 0 {
		u.UID, u.GID, u.HostUID, u.HostGID = mappedID, mappedID, mappedID, mappedID
	}
	return launch.StartScratch(ProcessName, donations, u, where.namespaces)
}

// request sends the request and waits for its result.
func (p *process) request(r request) (answer, error) {
	var a answer
	if err := p.control.SetDeadline(time.Now().Add(trialTimeout)); err != nil {
		return a, err
	}
	if err := json.NewEncoder(p.control).Encode(r); err != nil {
		return a, fmt.Errorf("start of the trial: %w", err)
	}
	watch := p.watchSilence(prompt)
	err := json.NewDecoder(p.control).Decode(&a)
	if silent := watch.End(nil); silent != nil {
		return a, silent
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return a, p.server.Err() // it ended without a result
	}
	if err != nil {
		return a, fmt.Errorf("no result after %s: %w", trialTimeout, ErrUndecided)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// close ends the process and waits for it.
func (p *process) close() {
	_ = p.control.Close() // the process is killed next
	p.server.Kill()
}

// try runs one trial in a process of its own and returns what it found out.
func try(trial string, where environment) (string, error) {
	p, a, err := startProcess(trial, where)
	if err != nil {
		return "", err
	}
	p.close()
	return a.Detail, nil
}
