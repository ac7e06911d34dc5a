package remote

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/local"
	"agentsh/internal/channel"
	"agentsh/internal/resume"
	"agentsh/internal/wire"
	"agentsh/supervisor/audit"
)

// keys are what a controller needs to speak to a sandbox. They are in the directory of the
// sandbox on this host: who can read the file can take the sandbox over.
type keys struct {
	Key     []byte      `json:"key"`      // private key of the controller
	HostKey []byte      `json:"host_key"` // public key of the supervisor
	Resume  wire.Resume `json:"resume"`
}

func keysOf(dir *local.Reserved) string { return filepath.Join(dir.Path(), "keys.json") }

// conn makes the connection whose streams have a token. Its lease begins now: the place may have taken long to reach.
func (k keys) conn(token []byte) *resume.Conn {
	return resume.New(token, time.Duration(k.Resume.Seconds)*time.Second, true)
}

// box makes the sandbox. It has no connection yet.
func (k keys) box(id string, dir *local.Reserved) (*box, error) {
	x := &box{id: id, dir: dir, gone: make(chan struct{})}
	x.keys = channel.ClientConfig{
		Key: k.Key, HostKey: k.HostKey, Build: "agentctl", Keepalive: channel.Keepalive{Dead: k.Resume.Dead()},
	}
	var err error
	if x.copied.log, err = audit.NewCopy(dir.AuditLog()); err != nil {
		return nil, err
	}
	return x, nil
}

// Take implements [sandbox.Taker]. The audit log is copied from its beginning.
func (b *Backend) Take(ctx context.Context, runID string) (sandbox.Sandbox, error) {
	dir, err := b.here.Retake(runID, b.cfg.Carrier.String())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("its sandbox was removed")
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, errors.New("a process of this host uses its sandbox")
	case err != nil:
		return nil, err
	}
	x, err := b.take(ctx, runID, dir)
	if err != nil {
		return nil, errors.Join(err, dir.Leave())
	}
	return x, nil
}

func (b *Backend) take(ctx context.Context, runID string, dir *local.Reserved) (*box, error) {
	var k keys
	data, err := os.ReadFile(keysOf(dir))
	if err == nil {
		err = json.Unmarshal(data, &k)
	}
	if err != nil {
		return nil, fmt.Errorf("keys of the sandbox: %w", err)
	}
	req := wire.PlaceRequest{Op: wire.PlaceTake, ID: runID, Nonce: make([]byte, resume.NonceSize)}
	_, _ = rand.Read(req.Nonce) // never fails, see crypto/rand
	s, err := b.again(ctx, req)
	if err != nil {
		return nil, err
	}
	before := filepath.Join(dir.Path(), "audit.before.jsonl")
	err = errors.Join(os.RemoveAll(filepath.Join(dir.Path(), trashName)), os.Rename(dir.AuditLog(), before))
	if err != nil {
		s.Kill()
		return nil, err
	}
	x, err := k.box(runID, dir)
	if err != nil {
		s.Kill()
		return nil, errors.Join(err, os.Rename(before, dir.AuditLog()))
	}
	x.copied.before = before
	x.conn = k.conn(resume.NextToken(k.Resume.Token, req.Nonce))
	x.begin(ctx, b, req, s)
	return x, nil
}
