package openshell

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/openshell/gateways"
	"agentsh/controller/sandbox/openshell/program"
	"agentsh/controller/sandbox/remote"
)

// A gateway of OpenShell 0.0.x is reached by OpenShell's own program, and its sandboxes by ssh: the numbers of its messages are others in
// each version.

// older returns the program for a gateway of 0.0.x. It is nil for one of 0.1, which takes messages.
func (b *Backend) older(ctx context.Context) (*program.Program, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.version == "" {
		v, err := b.gateway.version(ctx)
		if err != nil {
			return nil, err
		}
		b.version = v
	}
	if !program.Known(b.version) {
		return nil, nil
	}
	if set := b.given; len(set) > 0 {
		return nil, fmt.Errorf("the gateway is OpenShell %s, which is reached by its own program: leave %s out of openshell in agentctl.yaml; "+
			"the program has its own, see 'openshell gateway add --help'", b.version, strings.Join(set, ", "))
	}
	name, err := gateways.Named(b.cfg.Gateway.Address, b.cfg.Getenv)
	if err != nil {
		return nil, err
	}
	return &program.Program{Gateway: name, Dir: "/", Environ: gateways.Environ(os.Environ())}, nil
}

// given are the settings of a gateway that its own program does not take.
func given(g Gateway) []string {
	var out []string
	for name, value := range map[string]string{
		"ca": g.CA, "cert": g.Cert, "key": g.Key, "token_file": g.TokenFile, "workspace": strings.TrimPrefix(g.Workspace, defaultWorkspace),
	} {
		if value != "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// checkOlder checks what a run needs at a gateway of 0.0.x.
func checkOlder(ctx context.Context, p *program.Program) error {
	if err := remote.CheckSSH(); err != nil {
		return &sandbox.End{
			Kind: sandbox.EndRefused, Err: err, Text: "sandboxes of OpenShell 0.0.x are reached by ssh, which this machine does not have",
			Hint: "install the client of OpenSSH: 'apt-get install openssh-client'",
		}
	}
	return p.Check(ctx)
}

// checkImage refuses the name of an image that OpenShell's program would take for something else: a directory to build from, or one
// of its own images.
func checkImage(name string) error {
	if !strings.ContainsAny(name, "/:") || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "/") || strings.HasPrefix(name, "~") ||
		strings.HasPrefix(name, "-") {
		return fmt.Errorf("image %.200q: OpenShell 0.0.x takes whole names of images: write HOST/NAME:TAG", name)
	}
	return nil
}

// checkOlderSpec refuses what agentctl cannot give a sandbox of 0.0.x.
func checkOlderSpec(s sandbox.Spec) error {
	if len(s.Credentials) > 0 {
		return fmt.Errorf("credential %.100s: agentctl makes no providers at a gateway of OpenShell 0.0.x, whose proxy alone could put it into "+
			"requests: use a gateway of 0.1, or leave the provider out of the harness", s.Credentials[0].Name)
	}
	return checkImage(s.Container.Image.ID)
}

// foundOlder lists the sandboxes of an owner. Names are compared too: a label that somebody else set deletes nothing.
func (b *Backend) foundOlder(ctx context.Context, p *program.Program, owner string) ([]remote.Found, error) {
	all, err := p.List(ctx, labelOwner, owner)
	var out []remote.Found
	for _, s := range all {
		run := s.Labels[labelRun]
		if !plain(run) || s.Name != nameOf(run) || s.Phase == program.Deleting {
			continue
		}
		of := &olderPlace{b: b, program: *p, spec: sandbox.Spec{RunID: run}, asked: true}
		out = append(out, remote.Found{Run: run, Remove: of.remove})
	}
	return out, err
}

// olderPlace is the sandbox of one run at a gateway of 0.0.x. It is made when the first stream is opened.
type olderPlace struct {
	b       *Backend
	program program.Program
	spec    sandbox.Spec

	mu      sync.Mutex
	asked   bool // the gateway may have it
	carrier remote.Carrier
}

// String implements [remote.Carrier].
func (p *olderPlace) String() string { return p.b.at() }

// Shell implements [remote.Carrier].
func (p *olderPlace) Shell() bool { return true }

// Check implements [remote.Carrier].
func (p *olderPlace) Check() error { return nil }

// remote configures how the session is made in the sandbox.
func (p *olderPlace) remote() remote.Config {
	return remote.Config{
		Name: Name, Carrier: p, State: p.b.cfg.State, Agentsh: p.b.cfg.Agentsh, Lease: p.b.cfg.Lease, Release: p.remove, NetworkBy: who,
	}
}

func (p *olderPlace) name() string { return nameOf(p.spec.RunID) }

// dir has the policy of the sandbox and the configuration of ssh.
func (p *olderPlace) dir() string {
	return filepath.Join(p.b.cfg.State.OpenShell(), "sandbox-"+p.name())
}

// Open implements [remote.Carrier].
func (p *olderPlace) Open(ctx context.Context) (remote.Stream, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.carrier == nil {
		err := p.make(ctx)
		if err == nil {
			err = p.connect(ctx)
		}
		if err != nil {
			return nil, errors.Join(err, p.removeMade(ctx))
		}
	}
	s, err := p.carrier.Open(ctx)
	if err != nil {
		return nil, err
	}
	_, _ = io.WriteString(s, enter) // a stream that is broken says so when it is read
	return &olderStream{Stream: s, place: p}, nil
}

// enter is the first line for the shell of a stream. agentsh keeps its files outside of the home directory, which is that of commands.
//
// OpenShell runs a command of ssh by a login shell, which would run files of the home directory, and an agent may have written
// these. A shell without a command reads its standard input, and no such files (spawn_pipe_exec in ssh.rs of
// crates/openshell-sandbox at v0.0.45, and of crates/openshell-supervisor-process at v0.0.83 and v0.0.87).
const enter = "exec env HOME=/var/tmp/agentsh-home XDG_STATE_HOME=/var/tmp/agentsh-state sh\n"

// make makes the sandbox, which is ready then.
func (p *olderPlace) make(ctx context.Context) error {
	if err := errors.Join(checkName(p.name()), checkOlderSpec(p.spec)); err != nil {
		return err
	}
	owner, err := remote.Owner(p.b.cfg.State)
	if err != nil {
		return err
	}
	held, err := render(p.spec, p.b.cfg.Without)
	if err != nil {
		return err
	}
	policy, err := held.Text()
	if err != nil {
		return err
	}
	file := filepath.Join(p.dir(), "policy.yaml")
	if err := errors.Join(os.MkdirAll(p.dir(), 0o700), os.WriteFile(file, policy, 0o600)); err != nil {
		return err
	}
	p.asked = true
	at := p.program
	at.Dir = p.dir()
	err = at.Create(ctx, program.New{
		Name: p.name(), Image: p.spec.Container.Image.ID, Policy: file,
		Labels: map[string]string{labelOwner: owner, labelRun: p.spec.RunID},
	})
	if errors.Is(err, program.ErrExists) {
		p.asked = false // it is not of this run
		return errors.Join(err, os.RemoveAll(p.dir()))
	}
	return err
}

// connect finds out how ssh reaches the sandbox.
func (p *olderPlace) connect(ctx context.Context) error {
	config, err := p.program.SSHConfig(ctx, p.name())
	if err != nil {
		return err
	}
	file := filepath.Join(p.dir(), "ssh_config")
	if err := errors.Join(os.MkdirAll(p.dir(), 0o700), os.WriteFile(file, []byte(config), 0o600)); err != nil {
		return err
	}
	p.carrier = remote.SSHFile(file, program.Host(p.name()))
	return nil
}

// remove deletes the sandbox.
func (p *olderPlace) remove(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.removeMade(ctx)
}

func (p *olderPlace) removeMade(ctx context.Context) error {
	if !p.asked {
		return nil
	}
	err := p.program.Delete(context.WithoutCancel(ctx), p.name())
	if err == nil {
		p.asked, p.carrier = false, nil
		err = os.RemoveAll(p.dir())
	}
	return err
}

// find finds the sandbox of a run whose controller is gone.
func (p *olderPlace) find(ctx context.Context) error {
	if err := p.ended(ctx); err != nil {
		return err
	}
	p.asked = true
	return p.connect(ctx)
}

// ended is the end that the sandbox shows, or nil.
func (p *olderPlace) ended(ctx context.Context) error {
	all, err := p.program.List(ctx, labelRun, p.spec.RunID)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(s program.Sandbox) bool { return s.Name == p.name() })
	switch {
	case i < 0:
		return &sandbox.End{Kind: sandbox.EndRemoved, Text: "the sandbox of OpenShell is no more", Hint: "start the run again"}
	case all[i].Phase == program.Deleting:
		return &sandbox.End{Kind: sandbox.EndRemoved, Text: "somebody deleted the sandbox of OpenShell", Hint: "start the run again"}
	case all[i].Phase == program.Error:
		return &sandbox.End{
			Kind: sandbox.EndDied, Text: "the sandbox of OpenShell went to Error",
			Hint: "look at 'openshell sandbox get " + p.name() + "', and start the run again",
		}
	}
	return nil
}

// olderStream is a stream to a sandbox, which knows more about its end than ssh.
type olderStream struct {
	remote.Stream
	place *olderPlace
	once  sync.Once
	why   error
}

// Cause implements [remote.Stream].
func (s *olderStream) Cause() error {
	select {
	case <-s.Gone():
	default:
		return nil
	}
	s.once.Do(func() {
		if s.why = s.Stream.Cause(); s.why == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), askTime)
		defer cancel()
		var end *sandbox.End
		if errors.As(s.place.ended(ctx), &end) {
			s.why = end
		}
	})
	return s.why
}
