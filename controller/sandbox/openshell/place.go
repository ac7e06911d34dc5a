package openshell

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	pb "agentsh/internal/openshellpb"
	"agentsh/internal/text"
)

// Labels of sandboxes.
const (
	labelOwner = "agentsh-owner" // the state directory of the controller
	labelRun   = "agentsh-run"
)

// Times of a sandbox.
const (
	readyTime  = 5 * time.Minute // until it is ready
	readyLook  = 500 * time.Millisecond
	askTime    = 5 * time.Second // to find out why a stream ended
	cancelWait = 5 * time.Second
)

// place is the sandbox of one run at the gateway. It is made when the first stream is opened.
type place struct {
	b    *Backend
	spec sandbox.Spec

	mu       sync.Mutex
	asked    bool // the gateway may have it
	ready    bool
	provided bool // the gateway may have providers of this run
}

// String implements [remote.Carrier].
func (p *place) String() string { return p.b.at() }

// Shell implements [remote.Carrier]. A shell receives agentsh if the image has none.
func (p *place) Shell() bool { return true }

// Check implements [remote.Carrier].
func (p *place) Check() error { return nil }

// remote configures how the session is made in the sandbox.
func (p *place) remote() remote.Config {
	return remote.Config{
		Name: Name, Carrier: p, State: p.b.cfg.State, Agentsh: p.b.cfg.Agentsh, Lease: p.b.cfg.Lease, Release: p.remove,
		NetworkBy: who, Log: p.log,
	}
}

func (p *place) name() string { return nameOf(p.spec.RunID) }

// Open implements [remote.Carrier].
func (p *place) Open(ctx context.Context) (remote.Stream, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ready {
		if err := p.make(ctx); err != nil {
			return nil, errors.Join(err, p.removeMade(ctx))
		}
	}
	return p.b.exec(ctx, p.name())
}

// remove deletes the sandbox.
func (p *place) remove(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.removeMade(ctx)
}

func (p *place) removeMade(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	if p.asked {
		if err := p.b.gateway.remove(ctx, p.name()); err != nil {
			return err
		}
		p.asked, p.ready = false, false
	}
	return p.unprovide(ctx)
}

// make makes the sandbox and waits until it is ready.
func (p *place) make(ctx context.Context) error {
	if err := checkName(p.name()); err != nil {
		return err
	}
	owner, err := remote.Owner(p.b.cfg.State)
	if err != nil {
		return err
	}
	held, err := rendered(p.spec, p.b.cfg.Without)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	labels := map[string]string{labelOwner: owner, labelRun: p.spec.RunID}
	providers, err := p.provide(ctx, labels)
	if err != nil {
		return err
	}
	if err := bind(held, providers); err != nil {
		return err
	}
	var names []string
	for _, a := range providers {
		names = append(names, a.name)
	}
	p.asked = true
	want := &pb.CreateSandboxRequest{
		Name: p.name(), Labels: labels, WorkspaceScope: p.b.gateway.scope(),
		Spec: &pb.SandboxSpec{
			Template: &pb.SandboxTemplate{Image: p.spec.Container.Image.ID}, Policy: held, Providers: names,
			// The main process. A sandbox is Completed when it ends.
			Command: []string{"sleep", "infinity"},
		},
	}
	err = p.b.gateway.create(ctx, want)
	switch status.Code(err) {
	case codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.FailedPrecondition,
		codes.ResourceExhausted, codes.Unimplemented:
		p.asked = false // what has the name is not of this run
	}
	if err != nil && !passes(err) { // the answer may be lost: the sandbox is asked for by its name
		return explain(making, err)
	}
	return p.wait(ctx, want, err)
}

// making is what a place does in errors.
const making = "make a sandbox"

var errForeign = errors.New("another sandbox has its name")

// isOf reports whether a sandbox of the place's name is of this run.
func (p *place) isOf(s *pb.Sandbox) bool {
	return s.GetMetadata().GetLabels()[labelRun] == p.spec.RunID
}

// wait waits until the sandbox is ready. lost is the error of the request that made it; nil: the gateway has the request. A gateway
// that has no such sandbox after all is asked for it again: the name tells it that both requests are one.
func (p *place) wait(ctx context.Context, want *pb.CreateSandboxRequest, lost error) error {
	look := time.NewTicker(readyLook)
	defer look.Stop()
	for {
		s, err := p.b.gateway.get(ctx, p.name())
		switch {
		case status.Code(err) == codes.NotFound && lost != nil:
			lost = p.b.gateway.create(ctx, want)
			if lost != nil && !passes(lost) && status.Code(lost) != codes.AlreadyExists { // which is the late first request, or foreign
				return explain(making, lost)
			}
		case err != nil && !passes(err):
			return explain(making, cmp.Or(lost, err))
		case err == nil && !p.isOf(s):
			p.asked = false
			return errForeign
		case err == nil && s.GetStatus().GetPhase() == pb.SandboxPhase_SANDBOX_PHASE_READY:
			p.ready = true
			return nil
		case err == nil:
			if end := ended(s); end != nil {
				return end
			}
			lost = nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return &sandbox.End{
				Kind: sandbox.EndNoRoom, Text: fmt.Sprintf("the sandbox of OpenShell was not ready after %s%s", readyTime, conditions(s)),
				Hint: "look at 'openshell sandbox get " + p.name() + "' and the log of the gateway", Err: cmp.Or(lost, err),
			}
		}
	}
}

// ended is the end that a sandbox shows, or nil.
func ended(s *pb.Sandbox) error {
	end := &sandbox.End{Kind: sandbox.EndDied, Hint: "start the run again"}
	switch s.GetStatus().GetPhase() {
	case pb.SandboxPhase_SANDBOX_PHASE_COMPLETED:
		end.Text = "the sandbox of OpenShell went to Completed: its main process ended"
	case pb.SandboxPhase_SANDBOX_PHASE_ERROR:
		end.Text = "the sandbox of OpenShell went to Error"
		if c := s.GetStatus().ExitCode; c != nil {
			end.Text += fmt.Sprintf(": its main process ended with exit code %d", *c)
		}
	case pb.SandboxPhase_SANDBOX_PHASE_STOPPING, pb.SandboxPhase_SANDBOX_PHASE_STOPPED:
		end.Kind, end.Text = sandbox.EndKilled, "somebody stopped the sandbox of OpenShell"
	case pb.SandboxPhase_SANDBOX_PHASE_DELETING:
		end.Kind, end.Text = sandbox.EndRemoved, "somebody deleted the sandbox of OpenShell"
	default:
		return nil
	}
	end.Text += conditions(s)
	if strings.Contains(end.Text, "ImagePull") || strings.Contains(end.Text, "ErrImage") {
		end.Kind, end.Hint = sandbox.EndImage, "name an image that the gateway can pull"
	}
	return end
}

// conditions are the messages of conditions that do not hold.
func conditions(s *pb.Sandbox) string {
	var out []string
	for _, c := range s.GetStatus().GetConditions() {
		if c.GetStatus() != "True" && c.GetReason()+c.GetMessage() != "" {
			out = append(out, strings.TrimSpace(c.GetReason()+" "+c.GetMessage()))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return " (" + text.Short(strings.Join(out, "; "), maxSaid) + ")"
}

// find finds the sandbox of a run whose controller is gone.
func (p *place) find(ctx context.Context) error {
	s, err := p.b.gateway.get(ctx, p.name())
	if status.Code(err) == codes.NotFound {
		return errors.New("its sandbox is no more")
	}
	if err != nil {
		return explain("find the sandbox", err)
	}
	if end := ended(s); end != nil {
		return end
	}
	if !p.isOf(s) {
		return errForeign
	}
	p.asked, p.ready, p.provided = true, true, true
	return nil
}

// cause is why an exec ended or did not begin. err may be nil.
func (b *Backend) cause(name string, err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	s, failed := b.gateway.get(ctx, name)
	if status.Code(failed) == codes.NotFound {
		return &sandbox.End{Kind: sandbox.EndRemoved, Text: "the sandbox of OpenShell is no more", Hint: "start the run again", Err: err}
	}
	if failed == nil {
		if end := ended(s); end != nil {
			return end
		}
	}
	return explain("exec in the sandbox", cmp.Or(err, failed))
}
