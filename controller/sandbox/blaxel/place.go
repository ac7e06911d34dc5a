package blaxel

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	"agentsh/internal/socket"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// servePort is the port of agentsh serve --listen in the virtual machine. Port 80 and 443 are Blaxel's, and
// its sandbox API has 8080.
const servePort = 7000

// processName is the name of that process for the sandbox API.
const processName = "agentsh"

// secretSize is the size of the secret of a place, in bytes.
const secretSize = 32

// place is the virtual machine of one sandbox. It is made when the first stream is opened.
type place struct {
	b    *Backend
	spec sandbox.Spec

	mu    sync.Mutex
	asked bool   // Blaxel may have it
	lost  bool   // the answer to the request for it was lost, and nothing was seen of it since
	url   string // of its sandbox API; empty: it is not ready
	key   *socket.Key
}

// String implements [remote.Carrier].
func (p *place) String() string { return p.b.at() }

// Shell implements [remote.Carrier].
func (p *place) Shell() bool { return false }

// Check implements [remote.Carrier].
func (p *place) Check() error { return nil }

// remote configures how the sandbox is made in the virtual machine.
func (p *place) remote() remote.Config {
	return remote.Config{Name: Name, Carrier: p, State: p.b.cfg.State, Lease: p.b.cfg.Lease, Release: p.remove}
}

// name is that of the sandbox at Blaxel.
func (p *place) name() string { return nameOf(p.spec.RunID) }

// nameOf is the name of the sandbox of a run.
func nameOf(run string) string { return "agentsh-" + strings.ToLower(run) }

// Open implements [remote.Carrier].
func (p *place) Open(ctx context.Context) (remote.Stream, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.url == "" {
		if err := p.make(ctx); err != nil {
			return nil, errors.Join(err, p.removeMade(ctx))
		}
	}
	at, err := p.address()
	if err != nil {
		return nil, err
	}
	s := &stream{p: p}
	if s.Conn, err = socket.Dial(ctx, at, p.key, &s.messages); err != nil {
		return nil, p.cause(ctx, err)
	}
	return s, nil
}

// address is that of the port of agentsh.
func (p *place) address() (socket.Address, error) {
	at, err := socket.ParseAddress("ws" + strings.TrimPrefix(p.url, "http") + fmt.Sprintf("/port/%d", servePort))
	return at.WithHeader(p.b.api.header()), err
}

// cause is why the virtual machine does not answer.
func (p *place) cause(ctx context.Context, err error) error {
	r, failed := p.b.api.get(ctx, p.name())
	switch {
	case statusOf(failed) == http.StatusNotFound:
		return &sandbox.End{Kind: sandbox.EndRemoved, Text: "the sandbox at Blaxel is no more", Hint: "start the run again", Err: err}
	case failed != nil:
		return &sandbox.End{
			Kind: sandbox.EndUnreachable,
			Text: "Blaxel does not answer",
			Hint: "start the run again later",
			Err:  errors.Join(err, failed),
		}
	}
	if end := r.ended(); end != nil {
		return errors.Join(end, err)
	}
	var run process
	if p.b.api.call(ctx, http.MethodGet, p.url+"/process/"+processName, nil, &run) == nil && run.ended() {
		return &sandbox.End{
			Kind: sandbox.EndDied,
			Text: "agentsh in the virtual machine ended: " + run.last(),
			Hint: "start the run again",
			Err:  err,
		}
	}
	return err
}

// removeTime bounds the deletion of a sandbox.
const removeTime = 30 * time.Second

// remove deletes the virtual machine.
func (p *place) remove(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.removeMade(ctx)
}

func (p *place) removeMade(ctx context.Context) error {
	if !p.asked {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	var err error
	if p.lost {
		err = p.removeLate(ctx)
	} else {
		err = p.b.api.remove(ctx, p.name())
	}
	if err == nil {
		p.asked, p.lost, p.url = false, false, ""
	}
	return err
}

// lateTime is how long a virtual machine is looked for whose request had no answer, before it counts as not made. One that is
// made later still ends after idleTime, and has the labels for 'agentctl gc'.
const lateTime = 20 * time.Second

// removeLate deletes a virtual machine that Blaxel may only be about to make.
func (p *place) removeLate(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, p.b.late)
	defer cancel()
	for {
		r, err := p.b.api.get(within, p.name())
		switch {
		case err == nil && r.Metadata.Labels[labelRun] != p.spec.RunID:
			return nil // the name is somebody else's
		case err == nil:
			p.lost = false
			return p.b.api.remove(ctx, p.name())
		case isJunk(err):
			return p.b.api.remove(ctx, p.name())
		}
		if !pause(within, retryWait) {
			return p.b.api.remove(ctx, p.name())
		}
	}
}

// Times after which Blaxel deletes a virtual machine that nothing keeps awake.
const idleTime = "30m"

// defaultMemory is the memory of a virtual machine, in MiB.
const defaultMemory = 4096

// make makes the virtual machine and starts agentsh in it.
func (p *place) make(ctx context.Context) error {
	owner, err := remote.Owner(p.b.cfg.State)
	if err != nil {
		return err
	}
	c := p.spec.Container
	want := record{
		Metadata: metadata{Name: p.name(), Labels: map[string]string{labelOwner: owner, labelRun: p.spec.RunID}},
		Spec: spec{
			Region: p.b.region,
			Runtime: runtime{
				Image: c.Image.ID, Memory: cmp.Or(c.MemoryMB, defaultMemory), Generation: "mk3",
				Ports:     []port{{Name: "agentsh", Target: servePort, Protocol: "HTTP"}},
				ExtraArgs: map[string]string{landlock: "enabled"}, // the kernel that has it
			},
			Lifecycle: lifecycle{Policies: []expiration{{Type: "ttl-idle", Value: idleTime, Action: "delete"}}},
		},
	}
	ctx, cancel := context.WithTimeout(ctx, createTime)
	defer cancel()
	p.asked = true
	made, err := p.create(ctx, want)
	if err != nil {
		return err
	}
	at, err := p.b.api.sandboxURL(made.Metadata.URL)
	if err != nil {
		return err
	}
	secret := make([]byte, secretSize)
	_, _ = rand.Read(secret) // never fails, see crypto/rand
	if p.key, err = socket.NewKey(secret); err != nil {
		return err
	}
	program, err := p.push(ctx, at)
	if err != nil {
		return p.b.api.explain("send agentsh to the sandbox", err)
	}
	if err := p.b.api.write(ctx, at, keyFile, "0600", []byte(base64.StdEncoding.EncodeToString(secret)+"\n")); err != nil {
		return p.b.api.explain("send the key of the place", err)
	}
	if err := p.start(ctx, at, program); err != nil {
		return err
	}
	p.url = at
	return nil
}

// create makes the record and waits until the virtual machine is there. Without an answer, or with one of a gateway that
// gave up, the control plane may have made the record all the same: it is asked by the name.
func (p *place) create(ctx context.Context, want record) (r record, err error) {
	const what = "make a sandbox"
	lost := p.b.api.call(ctx, http.MethodPost, p.b.api.address(""), want, &r)
	var said *answer
	if errors.As(lost, &said) && said.refusesKernel() && p.without(landlock) {
		want.Spec.Runtime.ExtraArgs = nil
		lost = p.b.api.call(ctx, http.MethodPost, p.b.api.address(""), want, &r)
	}
	if isJunk(lost) {
		return r, p.b.api.explain(what, lost)
	}
	p.lost = lost != nil
	if status := statusOf(lost); status > 0 && status < 500 {
		p.lost = false
		if status == http.StatusConflict {
			p.asked = false // it is not of this run
		}
		return r, p.b.api.explain(what, lost)
	}
	for err = lost; err != nil || r.Status != "DEPLOYED" || r.Metadata.URL == ""; {
		if err == nil {
			if err := p.own(what, r); err != nil {
				p.asked = false
				return r, err
			}
			if end := r.ended(); end != nil {
				return r, end
			}
		}
		if !pause(ctx, retryWait) {
			return r, &sandbox.End{
				Kind: sandbox.EndNoRoom,
				Text: fmt.Sprintf("the sandbox at Blaxel was not there after %s (%s)", createTime, cmp.Or(r.Status, "no state")),
				Hint: "start the run again, or in another region", Err: err,
			}
		}
		r, err = p.b.api.get(ctx, want.Metadata.Name)
		answered := errors.As(err, &said)
		switch {
		case err == nil:
			lost, p.lost = nil, false // the record is there
		case isJunk(err):
			return r, p.b.api.explain(what, err)
		case lost != nil && (!answered || said.status == http.StatusNotFound):
			return r, p.b.api.explain(what, lost)
		case answered && !said.passes():
			return r, p.b.api.explain(what, err)
		}
	}
	return r, nil
}

// landlock is the name of a kernel in extraArgs, and of the fallback for a sandbox without it.
const landlock = "landlock"

// without reports whether the harness gives up a mechanism by its name.
func (p *place) without(name string) bool {
	return slices.ContainsFunc(p.spec.Degraded, func(d wire.Setting) bool { return d.Name == name })
}

// process is a process as the sandbox API describes it.
type process struct {
	Status   string `json:"status"`
	ExitCode int    `json:"exitCode"`
	Stdout   string `json:"stdout"`
	Logs     string `json:"logs"`
}

func (p process) ended() bool { return p.Status != "running" }

// last is how a process ended, with its last line.
func (p process) last() string {
	lines := strings.Split(strings.TrimSpace(p.Logs), "\n")
	return fmt.Sprintf("%s, exit code %d: %s", p.Status, p.ExitCode, text.Short(lines[len(lines)-1], maxSaid))
}

// start has the sandbox API start agentsh, and waits until it listens.
func (p *place) start(ctx context.Context, at, program string) error {
	idle := time.Duration(math.Ceil(p.b.cfg.Lease.Seconds())) * time.Second
	command := fmt.Sprintf("exec env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "+
		"%s serve --listen ws:0.0.0.0:%d --key %s --idle %s", program, servePort, keyFile, idle)
	var run process
	err := p.b.api.call(ctx, http.MethodPost, at+"/process", map[string]any{
		"name": processName, "command": command, "workingDir": "/", "keepAlive": true, "timeout": 0, "waitForCompletion": false,
	}, &run)
	if err != nil {
		return p.b.api.explain("start agentsh in the sandbox", err)
	}
	for {
		err := p.b.api.call(ctx, http.MethodGet, at+"/process/"+processName, nil, &run)
		switch {
		case isJunk(err) || err != nil && statusOf(err) < 500 && statusOf(err) > 0:
			return p.b.api.explain("look at agentsh in the sandbox", err)
		case err == nil && run.ended():
			return &sandbox.End{
				Kind: sandbox.EndDied, Text: "agentsh does not start in the sandbox: " + run.last(),
				Hint: "run 'agentsh detect' in a sandbox of the image; 'agentsh shim install' in it is for the API, not for this backend",
			}
		case err == nil && strings.Contains(run.Logs, listening):
			return nil
		}
		if !pause(ctx, startLook) {
			return fmt.Errorf("agentsh in the sandbox does not listen: %w", context.Cause(ctx))
		}
	}
}

// startLook is the interval at which the start of agentsh is looked at.
const startLook = 200 * time.Millisecond

// listening is what agentsh serve --listen prints first.
const listening = "agentsh: serving controllers at "

// own fails if a sandbox of the place's name is not of this run.
func (p *place) own(what string, r record) error {
	if run := r.Metadata.Labels[labelRun]; run != p.spec.RunID {
		return fmt.Errorf("%s: the sandbox %s at Blaxel has the label %s=%.100q: it is not of this run", what, p.name(), labelRun, run)
	}
	return nil
}

// find finds the virtual machine of a run whose controller is gone.
func (p *place) find(ctx context.Context) error {
	r, err := p.b.api.get(ctx, p.name())
	if statusOf(err) == http.StatusNotFound {
		return errors.New("its sandbox at Blaxel is no more")
	}
	if err != nil {
		return p.b.api.explain("find the sandbox", err)
	}
	if err := p.own("find the sandbox", r); err != nil {
		return err
	}
	if end := r.ended(); end != nil {
		return end
	}
	at, err := p.b.api.sandboxURL(r.Metadata.URL)
	if err != nil {
		return err
	}
	var file struct {
		Content string `json:"content"`
	}
	if err := p.b.api.call(ctx, http.MethodGet, fileAddress(at, keyFile), nil, &file); err != nil {
		return p.b.api.explain("read the key of the place", err)
	}
	secret, err := base64.StdEncoding.DecodeString(strings.TrimSpace(file.Content))
	if err != nil {
		return errors.New("the key of the place is no key: its sandbox at Blaxel was changed")
	}
	if p.key, err = socket.NewKey(secret); err != nil {
		return err
	}
	p.asked, p.url = true, at
	return nil
}

// stream is a stream to the virtual machine.
type stream struct {
	*socket.Conn
	p        *place
	messages sandbox.Tail
}

// Cause implements [remote.Stream].
func (s *stream) Cause() error {
	if last := s.messages.LastMessage(); last != "" {
		return errors.New(last)
	}
	return s.Err()
}

// Kill implements [remote.Stream].
func (s *stream) Kill() {
	_ = s.Close()
	<-s.Gone()
}
