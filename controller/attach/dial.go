package attach

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"agentsh/controller/record"
	"agentsh/controller/sandbox/local"
	"agentsh/internal/channel"
	"agentsh/internal/statedir"
)

// ErrNoSandbox reports that there is no sandbox with the name.
var ErrNoSandbox = errors.New("no such sandbox")

// Find finds the run of a sandbox by the sandbox's id, by a unique beginning of
// the id, or by the name [statedir.Latest].
func Find(state statedir.Dir, name string) (record.Run, error) {
	all, failed := List(state) // an unreadable record does not hide the others
	var found []record.Run
	for _, one := range all {
		switch {
		case one.Sandbox == name, name == statedir.Latest:
			return one, nil
		case name != "" && strings.HasPrefix(one.Sandbox, name):
			found = append(found, one)
		}
	}
	switch len(found) {
	case 0:
		return record.Run{}, errors.Join(fmt.Errorf("%w: %.64q", ErrNoSandbox, name), failed)
	case 1:
		return found[0], nil
	}
	return record.Run{}, fmt.Errorf("%d sandboxes begin with %.64q: %s and %s", len(found), name, found[0].Sandbox, found[1].Sandbox)
}

// List lists the runs that have a sandbox, the newest first: those that are
// running, and those whose sandbox is kept until KeptUntil. The error names
// records that cannot be read.
func List(state statedir.Dir) ([]record.Run, error) {
	all, err := record.List(state)
	var out []record.Run
	for _, one := range all {
		if one.Sandbox == "" {
			continue
		}
		kept, isKept := local.FindKept(state, one.Sandbox)
		if isKept {
			one.KeptUntil = &kept.Until
		}
		if one.Live || isKept {
			out = append(out, one)
		}
	}
	return out, err
}

// DialKept connects to the sandbox of a run whose controller is gone. Its actions
// are recorded as those in a running run are. The caller closes the client.
func DialKept(ctx context.Context, run record.Run, kept local.Kept, build string) (*channel.Client, error) {
	direct, err := kept.Dial(ctx, build)
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", run.Sandbox, err)
	}
	client, err := relayed(ctx, direct, run, build)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sandbox %s: %w", run.Sandbox, err), direct.Close())
	}
	return client, nil
}

// relayed returns a client of a relay in this process. The relay and its
// connection end with the client.
func relayed(ctx context.Context, direct *channel.Client, run record.Run, build string) (*channel.Client, error) {
	s := &Server{path: run.Path}
	var k keys
	var err error
	if s.hostKey, k.HostKey, err = channel.NewKeyPair(); err != nil {
		return nil, err
	}
	if k.Key, s.clientKey, err = channel.NewKeyPair(); err != nil {
		return nil, err
	}
	near, err := s.relayTo(ctx, direct)
	if err != nil {
		return nil, err
	}
	return channel.NewClient(ctx, near, channel.ClientConfig{Key: k.Key, HostKey: k.HostKey, Build: build})
}

// relayTo starts a relay in this process, and returns a connection to it. The relay and its
// own connection end with that.
func (s *Server) relayTo(ctx context.Context, direct *channel.Client) (near net.Conn, err error) {
	if s.actions, err = os.OpenFile(filepath.Join(s.path, actionsFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return nil, err
	}
	info, err := s.actions.Stat()
	if err != nil {
		return nil, errors.Join(err, s.actions.Close())
	}
	s.size = info.Size()
	near, far, err := channel.Pair()
	if err != nil {
		return nil, errors.Join(err, s.actions.Close())
	}
	server, err := channel.FromFile(far)
	if err = errors.Join(err, far.Close()); err != nil {
		return nil, errors.Join(err, near.Close(), s.actions.Close())
	}
	cfg := s.relay("operator " + userName(uint32(os.Geteuid())))
	go func() { // ends with the client
		_ = direct.Relay(context.WithoutCancel(ctx), server, cfg) // the client receives the error
		_ = direct.Close()
		_ = s.actions.Close()
	}()
	return near, nil
}

// Dial connects to the sandbox of a running run. The caller closes the client.
func Dial(ctx context.Context, run record.Run, build string) (*channel.Client, error) {
	var k keys
	err := run.ReadJSON(keysFile, &k)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notReady(run)
	}
	if err != nil {
		return nil, err
	}
	conn, err := dial(ctx, run)
	if err != nil {
		return nil, err
	}
	client, err := channel.NewClient(ctx, conn, channel.ClientConfig{Key: k.Key, HostKey: k.HostKey, Build: build})
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", run.Sandbox, err)
	}
	return client, nil
}

func notReady(run record.Run) error {
	return fmt.Errorf("sandbox %s is not ready yet, or is ending", run.Sandbox)
}

// dial connects to the socket of a running run.
func dial(ctx context.Context, run record.Run) (net.Conn, error) {
	dir, address, err := socketAddress(run.Path)
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", run.Sandbox, err)
	}
	defer dir.Close()
	conn, err := channel.Dial(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", run.Sandbox, err)
	}
	return conn, nil
}

// ActionDelete is the action of an operator who ends a sandbox and its run.
const ActionDelete = "delete the sandbox"

// DeletedBy is the operator who has asked for the end of a sandbox; empty: nobody, or it is not known.
func DeletedBy(run record.Run) string {
	actions, _ := Actions(run) // without them, nobody is named
	if n := len(actions); n > 0 && actions[n-1].What == ActionDelete {
		return actions[n-1].By
	}
	return ""
}

// Actions lists the operators' actions in the sandbox of a run.
func Actions(run record.Run) ([]Action, error) {
	file := filepath.Join(run.Path, actionsFile)
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Action
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxActions)
	for lines.Scan() {
		var a Action
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			return out, fmt.Errorf("read %s: line %d: %w", file, len(out)+1, err)
		}
		out = append(out, a)
	}
	if err := lines.Err(); err != nil {
		return out, fmt.Errorf("read %s: %w", file, err)
	}
	return out, nil
}
