package openshell

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"agentsh/controller/sandbox"
	"agentsh/internal/openshelldouble"
	pb "agentsh/internal/openshellpb"
)

// unheard is a way to a gateway on which the first request for a sandbox gets lost.
type unheard struct {
	pb.OpenShellClient
	late   bool                           // it arrives before the second one
	second func(pb.OpenShellClient) error // what the second one finds; nil: the gateway
	asked  int                            // requests for a sandbox
	looks  int                            // for the sandbox, without one
	enough func()                         // is called when it was looked for too often
}

func (u *unheard) CreateSandbox(
	ctx context.Context, r *pb.CreateSandboxRequest, o ...grpc.CallOption,
) (*pb.SandboxResponse, error) {
	u.asked++
	switch {
	case u.asked == 1:
		return nil, status.Error(codes.Unavailable, "connection reset")
	case u.late:
		if _, err := u.OpenShellClient.CreateSandbox(ctx, r, o...); err != nil {
			return nil, err
		}
	case u.second != nil:
		if err := u.second(u.OpenShellClient); err != nil {
			return nil, err
		}
	}
	return u.OpenShellClient.CreateSandbox(ctx, r, o...)
}

func (u *unheard) GetSandbox(ctx context.Context, r *pb.GetSandboxRequest, o ...grpc.CallOption) (*pb.SandboxResponse, error) {
	s, err := u.OpenShellClient.GetSandbox(ctx, r, o...)
	if status.Code(err) == codes.NotFound {
		if u.looks++; u.looks == 4 {
			u.enough()
		}
	}
	return s, err
}

// TestASandboxWhoseRequestWasLostIsAskedForAgain loses the request itself, so that the gateway knows no such sandbox.
func TestASandboxWhoseRequestWasLostIsAskedForAgain(t *testing.T) {
	for _, tt := range []struct {
		name string
		way  unheard
		want error // by its kind, or one of this package
	}{
		{"never arrives", unheard{}, nil},
		{"arrives late", unheard{late: true}, nil},
		{"the name is taken meanwhile", unheard{second: func(c pb.OpenShellClient) error {
			return takes(t, c, nameOf("unheard-1"))
		}}, errForeign},
		{"no room is left meanwhile", unheard{second: func(pb.OpenShellClient) error {
			return status.Error(codes.ResourceExhausted, "quota")
		}}, &sandbox.End{Kind: sandbox.EndQuota}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := openshelldouble.New(t)
			b := open(t, d)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			way := tt.way
			way.OpenShellClient, way.enough = b.gateway.client, cancel
			b.gateway.client = &way
			p := &place{b: b, spec: described("unheard-1")}
			s, err := p.Open(ctx)
			if err == nil {
				s.Kill()
			}
			var end *sandbox.End
			if errors.As(tt.want, &end) && kindOf(err) != end.Kind || end == nil && !errors.Is(err, tt.want) || way.asked != 2 {
				t.Fatalf("%v after %d requests and %d looks", err, way.asked, way.looks)
			}
			if err := p.remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			if left := len(d.Names()); (left == 1) != errors.Is(err, errForeign) {
				t.Errorf("%d sandboxes are left", left)
			}
		})
	}
}

// takes makes a sandbox of somebody else.
func takes(t *testing.T, c pb.OpenShellClient, name string) error {
	held, err := rendered(described("policy"), all())
	if err != nil {
		return err
	}
	_, err = c.CreateSandbox(t.Context(), &pb.CreateSandboxRequest{
		Name: name, Labels: map[string]string{labelRun: "other"},
		WorkspaceScope: &pb.WorkspaceSelector{Selection: &pb.WorkspaceSelector_Workspace{Workspace: defaultWorkspace}},
		Spec: &pb.SandboxSpec{
			Template: &pb.SandboxTemplate{Image: openshelldouble.Image}, Policy: held, Command: []string{"sleep", "infinity"},
		},
	})
	return err
}
