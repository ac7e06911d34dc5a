package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"agentsh/controller/record"
	"agentsh/controller/sandbox/local"
	"agentsh/internal/channel"
	"agentsh/internal/statedir"
)

// Files for ssh in the directory of a run.
const (
	identityFile = "ssh_identity"    // private key of clients
	knownFile    = "ssh_known_hosts" // public key of the server, under the name of [SSH.Alias]
	hostKeyFile  = "ssh_host.json"   // [hostKeys] of a sandbox whose controller is gone
)

// SSH is what the ssh program needs to enter a sandbox.
type SSH struct {
	Alias      string // name of the host in KnownHosts
	Identity   string // file of the private key
	KnownHosts string // file
}

// hostKeys are the server's halves of the keys of a kept sandbox.
type hostKeys struct {
	HostKey   []byte `json:"host_key"`   // private key of the server
	ClientKey []byte `json:"client_key"` // public key of clients
}

func alias(dir string) string { return "agentsh-" + filepath.Base(dir) }

// writeSSH writes the files for ssh into the directory of a run.
func writeSSH(dir string, k keys) error {
	err := os.WriteFile(filepath.Join(dir, identityFile), k.Key, 0o600)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, knownFile), append([]byte(alias(dir)+" "), k.HostKey...), 0o600)
}

// SSHOf returns what ssh needs for the sandbox of a run.
func SSHOf(state statedir.Dir, run record.Run) (SSH, error) {
	s := SSH{alias(run.Path), filepath.Join(run.Path, identityFile), filepath.Join(run.Path, knownFile)}
	if !run.Live {
		_, err := keptHostKeys(state, run)
		return s, err
	}
	if _, err := os.Stat(filepath.Join(run.Path, keysFile)); err != nil {
		return s, notReady(run)
	}
	return s, nil
}

// keptHostKeys returns the keys of a sandbox whose controller is gone. The first call
// makes them, and the files for ssh.
func keptHostKeys(state statedir.Dir, run record.Run) (h hostKeys, err error) {
	unlock, err := state.Lock()
	if err != nil {
		return h, err
	}
	defer unlock()
	data, err := os.ReadFile(filepath.Join(run.Path, hostKeyFile))
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return h, err
	}
	var k keys
	if h.HostKey, k.HostKey, err = channel.NewKeyPair(); err != nil {
		return h, err
	}
	if k.Key, h.ClientKey, err = channel.NewKeyPair(); err != nil {
		return h, err
	}
	if err := writeSSH(run.Path, k); err != nil {
		return h, err
	}
	return h, statedir.WriteJSON(filepath.Join(run.Path, hostKeyFile), h)
}

// Connect connects an ssh client to the sandbox of a run. It returns when the server has ended the connection, or ctx ends.
func Connect(ctx context.Context, run record.Run, client io.ReadWriter) error {
	conn, err := dial(ctx, run)
	if err != nil {
		return err
	}
	return connect(ctx, conn, client)
}

// ConnectKept is Connect for a sandbox whose controller is gone.
func ConnectKept(ctx context.Context, state statedir.Dir, run record.Run, kept local.Kept, client io.ReadWriter) error {
	h, err := keptHostKeys(state, run)
	if err != nil {
		return err
	}
	direct, err := kept.Dial(ctx, "agentctl")
	if err != nil {
		return fmt.Errorf("sandbox %s: %w", run.Sandbox, err)
	}
	s := &Server{path: run.Path, hostKey: h.HostKey, clientKey: h.ClientKey}
	conn, err := s.relayTo(ctx, direct)
	if err != nil {
		return errors.Join(err, direct.Close())
	}
	return connect(ctx, conn, client)
}

// connect copies both ways until conn ends.
func connect(ctx context.Context, conn net.Conn, client io.ReadWriter) error {
	defer func() { _ = conn.Close() }() // it may have ended
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	go func() { // ends with client, or with this process
		_, _ = io.Copy(conn, client)
		if half, ok := conn.(*net.UnixConn); ok {
			_ = half.CloseWrite() // fails only with the connection
		}
	}()
	_, err := io.Copy(client, conn)
	return errors.Join(err, ctx.Err())
}
