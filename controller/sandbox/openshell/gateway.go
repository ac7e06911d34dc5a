package openshell

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/openshell/gateways"
	"agentsh/controller/sandbox/openshell/program"
	pb "agentsh/internal/openshellpb"
	"agentsh/internal/text"
)

// Gateway is a gateway and how it is reached.
type Gateway struct {
	Address   string // https://HOST:PORT; http:// for loopback alone; or the name of a registered one; empty: the active one
	Workspace string // empty: default
	CA        string // file with certificates; empty: those of this machine
	Cert, Key string // files of a client certificate; empty: none
	TokenFile string // file with a bearer token (JWT or OIDC), read again for each request; empty: none
}

// find completes what is not written down by what OpenShell's program registered.
func (g *Gateway) find(getenv func(string) string) error {
	if strings.Contains(g.Address, "://") {
		return nil
	}
	r, err := gateways.Find(g.Address, getenv)
	if err != nil {
		return err
	}
	g.Address = r.Address
	if g.CA == "" {
		g.CA = r.CA
	}
	if g.Cert == "" && g.Key == "" {
		g.Cert, g.Key = r.Cert, r.Key
	}
	if g.TokenFile == "" {
		g.TokenFile = r.TokenFile
	}
	return nil
}

// defaultWorkspace is the workspace of requests that name none.
const defaultWorkspace = "default"

// minor is the version of OpenShell that this backend speaks. Fields have other numbers in others.
const minor = "0.1."

// gateway is a connection to a gateway.
type gateway struct {
	client    pb.OpenShellClient
	conn      *grpc.ClientConn
	workspace string
	address   string
}

// requestTime bounds one request.
const requestTime = 30 * time.Second

func newGateway(g Gateway) (*gateway, error) {
	u, err := url.Parse(g.Address)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("%.200q is no address of a gateway: write https://HOST:PORT", g.Address)
	}
	if u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, errors.New("the address of a gateway is https://HOST:PORT, and has no user, path or query")
	}
	options := []grpc.DialOption{grpc.WithUserAgent("agentctl"), grpc.WithDefaultCallOptions(
		grpc.MaxCallRecvMsgSize(maxMessage), grpc.ForceCodecV2(newBounded()))}
	secure := u.Scheme == "https"
	if secure {
		c, err := g.tls()
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(c)))
	} else {
		if ip := net.ParseIP(u.Hostname()); ip == nil || !ip.IsLoopback() {
			return nil, fmt.Errorf("%s: write https://: what a run sends has the values of its credentials", g.Address)
		}
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	if g.TokenFile != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer{g.TokenFile, secure}))
	}
	host := u.Host
	if u.Port() == "" {
		host += map[bool]string{true: ":443", false: ":80"}[secure]
	}
	conn, err := grpc.NewClient("dns:///"+host, options...)
	if err != nil {
		return nil, fmt.Errorf("gateway %s: %w", g.Address, err)
	}
	return &gateway{pb.NewOpenShellClient(conn), conn, cmp.Or(g.Workspace, defaultWorkspace), g.Address}, nil
}

// tls is the configuration of TLS.
func (g Gateway) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if g.CA != "" {
		data, err := os.ReadFile(g.CA)
		if err != nil {
			return nil, fmt.Errorf("certificates of the gateway: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("certificates of the gateway: %s has none in PEM", g.CA)
		}
	}
	if (g.Cert == "") != (g.Key == "") {
		return nil, errors.New("a client certificate needs its key: name both, cert and key")
	}
	if g.Cert != "" {
		pair, err := tls.LoadX509KeyPair(g.Cert, g.Key)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// bearer is a token in a file.
type bearer struct {
	file   string
	secure bool
}

// GetRequestMetadata implements [credentials.PerRPCCredentials]. The file may have a new token each time.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := gateways.Token(b.file, time.Now())
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements [credentials.PerRPCCredentials].
func (b bearer) RequireTransportSecurity() bool { return b.secure }

// scope selects the workspace.
func (g *gateway) scope() *pb.WorkspaceSelector {
	return &pb.WorkspaceSelector{Selection: &pb.WorkspaceSelector_Workspace{Workspace: g.workspace}}
}

// version asks for the version and the health of the gateway. It refuses versions that this backend does not speak to.
func (g *gateway) version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	h, err := g.client.Health(ctx, &pb.HealthRequest{}) // the same in all versions since 0.0.45, which were read
	if err != nil {
		return "", g.away(explain("ask the gateway for its health", err))
	}
	v := strings.TrimPrefix(h.GetVersion(), "v")
	switch {
	case strings.HasPrefix(v, minor) || program.Known(v):
	case strings.HasPrefix(v, "0.0."):
		return "", program.Refused("the gateway", h.GetVersion())
	default:
		return "", &sandbox.End{
			Kind: sandbox.EndRefused,
			Text: fmt.Sprintf("the gateway is OpenShell %.40q, this agentctl speaks to %sx", h.GetVersion(), minor),
			Hint: "install a gateway of " + minor + "x, or reach its sandboxes by SSH with --backend exec: see doc/platforms/openshell.md",
		}
	}
	if h.GetStatus() == pb.ServiceStatus_SERVICE_STATUS_UNHEALTHY {
		return "", &sandbox.End{
			Kind: sandbox.EndUnreachable,
			Text: "the gateway says that it is not healthy", Err: errUnhealthy,
			Hint: "look at its log, and start the run again",
		}
	}
	return v, nil
}

// check asks for something that, unlike the version, needs a user.
func (g *gateway) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	_, err := g.client.ListSandboxes(ctx, &pb.ListSandboxesRequest{PageSize: 1, WorkspaceScope: g.scope()})
	return explain("list sandboxes", err)
}

var errUnhealthy = errors.New("not healthy")

// silent reports whether the error of a gateway says that none answers.
func silent(err error) bool {
	var end *sandbox.End
	return errors.As(err, &end) && end.Kind == sandbox.EndUnreachable && !errors.Is(err, errUnhealthy) &&
		!strings.Contains(end.Text, "tls: ")
}

// list lists the sandboxes with a label.
func (g *gateway) list(ctx context.Context, label string) ([]*pb.Sandbox, error) {
	var out []*pb.Sandbox
	err := pages(func(token string) (page, error) {
		asking, cancel := context.WithTimeout(ctx, requestTime)
		defer cancel()
		p, err := g.client.ListSandboxes(
			asking,
			&pb.ListSandboxesRequest{LabelSelector: label, PageToken: token, WorkspaceScope: g.scope()},
		)
		out = append(out, p.GetSandboxes()...)
		return p, explain("list sandboxes", err)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Bounds of a list of the gateway: pages, and bytes of all of them.
const (
	maxPages = 500
	maxList  = 64 << 20
)

// page is a part of a list.
type page interface {
	proto.Message
	GetNextPageToken() string
}

// pages has all pages of a list asked for.
func pages(ask func(token string) (page, error)) error {
	token, size := "", 0
	for range maxPages {
		p, err := ask(token)
		if err != nil {
			return err
		}
		if size += proto.Size(p); size > maxList {
			break
		}
		next := p.GetNextPageToken()
		if next == "" || next == token {
			return nil
		}
		token = next
	}
	return &sandbox.End{
		Kind: sandbox.EndRefused, Text: fmt.Sprintf("a list of the gateway does not end after %d pages or %d MiB", maxPages, maxList>>20),
		Hint: "look at the gateway with 'openshell sandbox list'",
	}
}

// create asks for a sandbox. Its errors are those of the gateway.
func (g *gateway) create(ctx context.Context, want *pb.CreateSandboxRequest) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	_, err := g.client.CreateSandbox(ctx, want)
	return err
}

func (g *gateway) get(ctx context.Context, name string) (*pb.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	r, err := g.client.GetSandbox(ctx, &pb.GetSandboxRequest{Name: name, WorkspaceScope: g.scope()})
	return r.GetSandbox(), err
}

// remove deletes a sandbox. One that is gone is no error. A gateway that starts again is asked again.
func (g *gateway) remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	_, err := g.client.DeleteSandbox(
		ctx,
		&pb.DeleteSandboxRequest{Name: name, WorkspaceScope: g.scope(), AllowMissing: true},
		grpc.WaitForReady(true),
	)
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return explain("delete "+name, err)
}

// maxSaid bounds what is shown of a message of the gateway, in characters.
const maxSaid = 300

// hintStart is for a gateway of this machine.
var hintStart = "is the gateway running? '" + strings.Join(gateways.Service, " ") + "' starts the one of the packages"

// explain says what an error of the gateway means for a run.
func explain(what string, err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	end := &sandbox.End{Kind: sandbox.EndRefused, Text: what + ": the gateway answers " + s.Code().String(), Err: err}
	if said := text.Short(s.Message(), maxSaid); said != "" {
		end.Text += ": " + said
	}
	switch s.Code() {
	case codes.Unauthenticated:
		end.Hint = "the token or the certificate is missing, or has expired: renew the file of token_file in openshell of agentctl.yaml"
	case codes.PermissionDenied:
		end.Hint = "ask for the rights of a user in this workspace, or name another: openshell: {workspace: NAME} in agentctl.yaml"
	case codes.ResourceExhausted:
		if strings.Contains(s.Message(), tooLarge) {
			end.Hint = fmt.Sprintf("an answer of the gateway has more than %d MiB: look with 'openshell sandbox list'", maxMessage>>20)
			break
		}
		end.Kind, end.Hint = sandbox.EndQuota, "delete sandboxes ('agentctl gc' finds those of this host), or have the quota raised"
	case codes.Internal:
		if strings.Contains(s.Message(), errFields.Error()) {
			end.Hint = "look with 'openshell sandbox list'"
		}
	case codes.Unavailable, codes.DeadlineExceeded:
		end.Kind = sandbox.EndUnreachable
		end.Hint = hintStart
		if refusesTLS(s.Message()) {
			end.Hint = "see ca, and cert and key of openshell in agentctl.yaml: the gateway and agentctl must know each other's certificate"
		}
	case codes.Canceled:
		return fmt.Errorf("%s: %w", what, err)
	case codes.AlreadyExists:
		end.Hint = "a sandbox of that name is there: 'agentctl gc' removes those of this host"
	case codes.InvalidArgument, codes.FailedPrecondition:
		end.Hint = "see doc/platforms/openshell.md"
	}
	return end
}

// away names the address of a gateway at another machine that does not answer. No command of this machine starts it.
func (g *gateway) away(err error) error {
	var end *sandbox.End
	if errors.As(err, &end) && end.Kind == sandbox.EndUnreachable && end.Hint == hintStart && gateways.Local(g.address) != nil {
		end.Hint = "does 'curl -v " + g.address + "' reach it from here? openshell: {gateway: https://HOST:PORT} in agentctl.yaml names another"
	}
	return err
}

// tooLarge is what gRPC says about a message beyond maxMessage. Its code is that of a quota.
const tooLarge = "message larger than max"

// refusesTLS reports whether a connection failed by a certificate. A gateway may close a connection before its reason
// is read.
func refusesTLS(message string) bool {
	return strings.Contains(message, "tls: ") || strings.Contains(message, "broken pipe") || strings.Contains(message, "connection reset")
}

// passes reports whether a gateway may answer again.
func passes(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted:
		return true
	}
	return false
}
