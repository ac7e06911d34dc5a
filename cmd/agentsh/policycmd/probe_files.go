package policycmd

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"agentsh/policy"
	"agentsh/policy/policytest"
)

// protectedFile is a file that the policy denies something of.
type protectedFile struct {
	name    string // inside
	host    string // in the scratch workspace; empty: a file of the machine
	content []byte // what must not be read or changed
	read    bool   // reading is denied
	change  bool   // every way to change it is denied
}

// files tries to read and to change every file that is denied: those of the
// workspace are made for it, those of the machine are only read.
func (pr *prober) files(ctx context.Context) ([]attempt, error) {
	list, err := readEvasions("file")
	if err != nil {
		return nil, err
	}
	names, err := policytest.DeniedFiles(pr.policy)
	if err != nil {
		return nil, err
	}
	found := make([][]attempt, len(names))
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	slots := make(chan struct{}, runtime.NumCPU())
	for i, name := range names {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			found[i], errs[i] = pr.file(ctx, name, list)
		})
	}
	wg.Wait()
	return slices.Concat(found...), errors.Join(errs...)
}

// file tries one file. A breach may leave anything behind, so the next evasion
// gets a new sandbox.
func (pr *prober) file(ctx context.Context, name string, list []evasion) ([]attempt, error) {
	target := pr.protected(name)
	if target == nil {
		return nil, nil
	}
	var out []attempt
	for len(list) > 0 {
		done, err := pr.fileOnce(ctx, target, list)
		if err != nil {
			return nil, err
		}
		out = append(out, done...)
		list = list[len(done):]
	}
	return out, nil
}

// fileOnce tries evasions in one sandbox up to the first that gets through.
func (pr *prober) fileOnce(ctx context.Context, target *protectedFile, list []evasion) (out []attempt, err error) {
	prepare := func(s *scratch) error {
		if target.host = pr.inWork(s, target.name); target.host == "" {
			return nil
		}
		return plant(s.dir, target.host, target.content)
	}
	s, err := openScratch(ctx, pr.policy, prepare)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closed := s.Close(); err == nil {
			err = closed
		}
	}()
	if err := pr.control(ctx, s); err != nil {
		return nil, err
	}
	for _, e := range list {
		t := trial{
			attempt: attempt{kind: "file", target: target.name, evasion: e.name}, script: e.script,
			vars: map[string]string{"T": target.name},
		}
		o, err := pr.script(ctx, s, &t)
		if err != nil {
			return nil, err
		}
		target.assess(&t, o)
		out = append(out, t.attempt)
		if t.attempt.verdict == verdictThrough {
			return out, nil
		}
	}
	return out, nil
}

// protected describes how a file can be probed; nil: not at all.
func (pr *prober) protected(name string) *protectedFile {
	denies := func(op policy.FileOp) bool {
		d, _ := pr.policy.Evaluate(&policy.FileRequest{Path: name, Op: op})
		return d.Effect == policy.Deny
	}
	t := &protectedFile{
		name: name, read: denies(policy.OpRead),
		change: denies(policy.OpWrite) && denies(policy.OpCreate) && denies(policy.OpDelete) && denies(policy.OpRename) && denies(policy.OpChmod),
	}
	if strings.HasPrefix(name, pr.work()+"/") {
		t.content = []byte("protected " + rand.Text() + "\n")
		if t.read || t.change {
			return t
		}
		return nil
	}
	content, err := os.ReadFile(name)
	if err != nil || !t.read || len(bytes.TrimSpace(content)) == 0 {
		return nil // not here, or nothing in it to know it by
	}
	t.content, t.change = content, false
	return t
}

// plant makes a file that anybody may change, and the directories above it.
func plant(root, file string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return err
	}
	if err := os.WriteFile(file, content, 0o666); err != nil {
		return err
	}
	for name := file; name != root; name = filepath.Dir(name) {
		mode := fs.FileMode(0o777)
		if name == file {
			mode = 0o666
		}
		if err := os.Chmod(name, mode); err != nil { // whatever the umask took
			return err
		}
	}
	return nil
}

// assess compares the output of a script and the file itself.
func (f *protectedFile) assess(t *trial, o outcome) {
	line, _, _ := bytes.Cut(bytes.TrimSpace(f.content), []byte("\n"))
	if f.read {
		t.decide(o, string(line))
	} else {
		t.decide(o, "\x00") // reading it is no breach
	}
	if t.attempt.verdict == verdictThrough {
		t.attempt.detail = "it was read"
		return
	}
	if f.host == "" || !f.change {
		return
	}
	now, err := os.ReadFile(f.host)
	switch {
	case err != nil:
		t.attempt.verdict, t.attempt.detail = verdictThrough, "it is gone"
	case !bytes.Equal(now, f.content):
		t.attempt.verdict, t.attempt.detail = verdictThrough, "it was changed"
	}
}

// hosts tries to reach what the policy denies: a service that listens on this
// machine for the purpose, and each destination that a rule names. The sandbox
// has no way out, so nothing leaves the machine.
func (pr *prober) hosts(ctx context.Context) (out []attempt, err error) {
	list, err := readEvasions("net")
	if err != nil {
		return nil, err
	}
	destinations, err := policytest.DeniedHosts(pr.policy)
	if err != nil {
		return nil, err
	}
	var config net.ListenConfig
	service, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the probe: %w", err)
	}
	defer func() { _ = service.Close() }() // the result is known
	if a, ok := service.Addr().(*net.TCPAddr); ok {
		d, _ := pr.policy.Evaluate(&policy.NetworkRequest{Addr: netip.AddrFrom4([4]byte{127, 0, 0, 1}), Port: a.Port, Protocol: "tcp"})
		if d.Effect == policy.Deny {
			destinations = append(destinations, service.Addr().String())
		}
	}
	var trials []trial
	for _, d := range destinations {
		host, port, err := net.SplitHostPort(d)
		if err != nil {
			continue
		}
		for _, e := range list {
			trials = append(trials, trial{
				attempt: attempt{kind: "host", target: d, evasion: e.name}, script: e.script,
				vars: map[string]string{"H": host, "P": port, "M": "reached " + rand.Text()},
			})
		}
	}
	if len(trials) == 0 {
		return nil, nil
	}
	s, err := openScratch(ctx, pr.policy, nil)
	if err != nil {
		return nil, err
	}
	err = pr.runAll(ctx, s, trials, func(t *trial, o outcome) { t.decide(o, t.vars["M"]) })
	if closed := s.Close(); err == nil {
		err = closed
	}
	return attemptsOf(trials), err
}
