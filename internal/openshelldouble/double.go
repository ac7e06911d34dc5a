// Package openshelldouble is a strict double of a gateway of OpenShell 0.1 for tests: TLS, bearer tokens and the calls that
// agentctl uses. A sandbox is a directory of this machine and the processes that are started in it. Fields that are
// not in our description of the messages, and calls in another order, are errors.
package openshelldouble

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "agentsh/internal/openshellpb"
)

// Token is the token of the only user.
const Token = "token-of-the-double"

// Image is the image that can be had.
const Image = "ghcr.io/example/agent:1"

// Proxy is the proxy that the commands of a sandbox are told of. Nothing answers there.
const Proxy = "http://10.200.0.1:3128"

// Double is a gateway.
type Double struct {
	pb.UnimplementedOpenShellServer
	t        testing.TB
	dir      string
	server   *grpc.Server
	listener net.Listener
	address  string

	mu        sync.Mutex
	mutual    bool // only callers with a certificate are admitted
	version   string
	token     string
	quota     int
	looks     int // at a new sandbox until it is ready
	sandboxes map[string]*box
	outer     string // see [Confine]
	lib       string
	policies  []*pb.SandboxPolicy
	logs      []*pb.SandboxLogLine
	providers providers
}

// box is a sandbox.
type box struct {
	record  *pb.Sandbox
	dir     string
	left    int
	cancels map[int]context.CancelFunc // of its execs
	next    int
}

// New starts a gateway.
func New(t testing.TB) *Double {
	dir, err := os.MkdirTemp("/var/tmp", "openshell")
	if err != nil {
		t.Fatal(err)
	}
	d := &Double{t: t, dir: dir, version: "0.1.9", token: Token, quota: 100, sandboxes: map[string]*box{}}
	d.providers = newProviders()
	d.start("127.0.0.1:0")
	t.Cleanup(func() {
		d.server.Stop()
		_ = os.RemoveAll(dir)
	})
	return d
}

// start listens at an address.
func (d *Double) start(address string) {
	pair := certificate(d, "", nil)
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if d.mutual {
		config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		config.ClientCAs.AddCert(pair.Leaf)
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		d.t.Fatal(err)
	}
	d.address, d.listener = l.Addr().String(), l
	d.server = grpc.NewServer(
		grpc.Creds(credentials.NewTLS(config)),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := d.admit(ctx, info.FullMethod, req); err != nil {
				return nil, err
			}
			return next(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := d.admit(s.Context(), info.FullMethod, nil); err != nil {
				return err
			}
			return next(srv, s)
		}),
	)
	pb.RegisterOpenShellServer(d.server, d)
	server := d.server
	go func() { _ = server.Serve(l) }() // ends with the server
}

// Restart ends the gateway with all its streams and starts it again at the same address. Its sandboxes stay.
func (d *Double) Restart() {
	d.Down()
	d.start(d.address)
}

// Down ends the gateway until [Double.Restart].
func (d *Double) Down() {
	d.server.Stop()
	_ = d.listener.Close() // a server that was stopped before it served closes it later
}

// certificate makes a certificate and its key, once: that of the gateway, or one that by signed.
func certificate(d *Double, name string, by *tls.Certificate) tls.Certificate {
	certFile, keyFile := filepath.Join(d.dir, name+"ca.pem"), filepath.Join(d.dir, name+"key.pem")
	if pair, err := tls.LoadX509KeyPair(certFile, keyFile); err == nil {
		return pair
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		d.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name + "double"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: by == nil, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	parent, signer := c, any(key)
	if by != nil {
		parent, signer = by.Leaf, by.PrivateKey
		c.KeyUsage, c.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		d.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		d.t.Fatal(err)
	}
	for file, b := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(b), 0o600); err != nil {
			d.t.Fatal(err)
		}
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		d.t.Fatal(err)
	}
	return pair
}

// Mutual has the gateway admit only callers with its certificate, and returns the files of one.
func (d *Double) Mutual() (cert, key string) {
	own := certificate(d, "", nil)
	certificate(d, "client-", &own)
	d.mutual = true
	d.Restart()
	return filepath.Join(d.dir, "client-ca.pem"), filepath.Join(d.dir, "client-key.pem")
}

// Address is that of the gateway.
func (d *Double) Address() string { return "https://" + d.address }

// CA is a file with the certificate of the gateway.
func (d *Double) CA() string { return filepath.Join(d.dir, "ca.pem") }

// TokenFile makes a file with the token.
func (d *Double) TokenFile() string {
	name := filepath.Join(d.dir, "token")
	if err := os.WriteFile(name, []byte(Token+"\n"), 0o600); err != nil {
		d.t.Fatal(err)
	}
	return name
}

func (d *Double) with(do func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	do()
}

// Version is what the gateway says of itself from now on.
func (d *Double) Version(v string) { d.with(func() { d.version = v }) }

// Expire has the token of the user expire.
func (d *Double) Expire() { d.with(func() { d.token = "" }) }

// Quota is how many sandboxes there may be.
func (d *Double) Quota(n int) { d.with(func() { d.quota = n }) }

// Slowly has new sandboxes be ready after so many looks.
func (d *Double) Slowly(n int) { d.with(func() { d.looks = n }) }

// Names are the names of the sandboxes.
func (d *Double) Names() (names []string) {
	d.with(func() { names = slices.Sorted(maps.Keys(d.sandboxes)) })
	return names
}

// Policies are the policies of all sandboxes so far.
func (d *Double) Policies() (out []*pb.SandboxPolicy) {
	d.with(func() { out = slices.Clone(d.policies) })
	return out
}

// End has a sandbox end by itself in a phase.
func (d *Double) End(name string, phase pb.SandboxPhase) {
	d.with(func() {
		b := d.sandboxes[name]
		b.record.Status.Phase = phase
		b.end()
	})
}

// Lose deletes a sandbox as somebody else would.
func (d *Double) Lose(name string) {
	d.with(func() {
		d.sandboxes[name].end()
		delete(d.sandboxes, name)
	})
}

// end ends the execs of a sandbox.
func (b *box) end() {
	for _, cancel := range b.cancels {
		cancel()
	}
}

// admit checks who asks, and that the request has no unknown fields.
func (d *Double) admit(ctx context.Context, method string, req any) error {
	if m, ok := req.(proto.Message); ok && !known(m) {
		return status.Error(codes.InvalidArgument, "unknown fields")
	}
	happen(d, method)
	if strings.HasSuffix(method, "/Health") {
		return nil
	}
	older := false
	d.with(func() { older = strings.HasPrefix(d.version, "0.0.") })
	if older {
		return status.Error(codes.Unimplemented, "the messages of 0.0.x are others")
	}
	md, _ := metadata.FromIncomingContext(ctx)
	ok := false
	d.with(func() { ok = d.token != "" && slices.Equal(md.Get("authorization"), []string{"Bearer " + d.token}) })
	if !ok {
		return status.Error(codes.Unauthenticated, "token is missing or has expired")
	}
	return nil
}

// known reports whether a message has no unknown fields, at any depth.
func known(m proto.Message) bool {
	data, err := proto.Marshal(m)
	if err != nil {
		return false
	}
	other := m.ProtoReflect().New().Interface()
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, other) == nil && proto.Size(other) == len(data)
}

// scoped checks the workspace of a request.
func scoped(s *pb.WorkspaceSelector) error {
	if s.GetWorkspace() != "default" {
		return status.Errorf(codes.InvalidArgument, "workspace %q", s.GetWorkspace())
	}
	return nil
}

// Health implements the service.
func (d *Double) Health(context.Context, *pb.HealthRequest) (r *pb.HealthResponse, _ error) {
	d.with(func() { r = &pb.HealthResponse{Status: pb.ServiceStatus_SERVICE_STATUS_HEALTHY, Version: d.version} })
	return r, nil
}

// CreateSandbox implements the service.
func (d *Double) CreateSandbox(_ context.Context, r *pb.CreateSandboxRequest) (*pb.SandboxResponse, error) {
	if err := scoped(r.GetWorkspaceScope()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	name, spec := r.GetName(), r.GetSpec()
	switch p := spec.GetPolicy(); {
	case name == "" || len(name) > 19:
		return nil, status.Errorf(codes.InvalidArgument, "name %q", name)
	case spec.GetTemplate().GetImage() != Image:
		return nil, status.Errorf(codes.InvalidArgument, "image %q", spec.GetTemplate().GetImage())
	case p.GetVersion() != 1 || p.GetFilesystem() == nil || p.GetLandlock().GetCompatibility() == "":
		return nil, status.Error(codes.InvalidArgument, "a sandbox needs a policy")
	case d.sandboxes[name] != nil:
		return nil, status.Errorf(codes.AlreadyExists, "sandbox %s", name)
	case len(d.sandboxes) >= d.quota:
		return nil, status.Errorf(codes.ResourceExhausted, "at most %d sandboxes", d.quota)
	}
	if err := d.providers.checkProviders(spec); err != nil {
		return nil, err
	}
	b := &box{dir: filepath.Join(d.dir, "sandbox-"+name), left: d.looks, cancels: map[int]context.CancelFunc{}}
	err := os.MkdirAll(b.dir, 0o755) //nolint:gosec // as any home
	if err == nil && d.outer != "" {
		err = b.makeDirs()
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	b.record = &pb.Sandbox{
		Metadata: &pb.ObjectMeta{Id: "id-" + name, Name: name, Labels: r.GetLabels()}, Spec: spec,
		Status: &pb.SandboxStatus{Phase: pb.SandboxPhase_SANDBOX_PHASE_PROVISIONING},
	}
	d.sandboxes[name] = b
	d.policies = append(d.policies, spec.GetPolicy())
	return &pb.SandboxResponse{Sandbox: proto.CloneOf(b.record)}, nil
}

// GetSandbox implements the service.
func (d *Double) GetSandbox(_ context.Context, r *pb.GetSandboxRequest) (*pb.SandboxResponse, error) {
	if err := scoped(r.GetWorkspaceScope()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.sandboxes[r.GetName()]
	if b == nil {
		return nil, status.Errorf(codes.NotFound, "sandbox %s", r.GetName())
	}
	if b.left--; b.left < 0 && b.record.Status.Phase == pb.SandboxPhase_SANDBOX_PHASE_PROVISIONING {
		b.record.Status.Phase = pb.SandboxPhase_SANDBOX_PHASE_READY
	}
	return &pb.SandboxResponse{Sandbox: proto.CloneOf(b.record)}, nil
}

// ListSandboxes implements the service, with pages of two.
func (d *Double) ListSandboxes(_ context.Context, r *pb.ListSandboxesRequest) (*pb.ListSandboxesResponse, error) {
	if err := scoped(r.GetWorkspaceScope()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	key, value, _ := strings.Cut(r.GetLabelSelector(), "=")
	out := &pb.ListSandboxesResponse{}
	for _, name := range slices.Sorted(maps.Keys(d.sandboxes)) {
		s := d.sandboxes[name].record
		if name <= r.GetPageToken() || key != "" && s.GetMetadata().GetLabels()[key] != value {
			continue
		}
		if len(out.Sandboxes) == 2 {
			out.NextPageToken = out.Sandboxes[1].GetMetadata().GetName()
			break
		}
		out.Sandboxes = append(out.Sandboxes, proto.CloneOf(s))
	}
	return out, nil
}

// DeleteSandbox implements the service.
func (d *Double) DeleteSandbox(_ context.Context, r *pb.DeleteSandboxRequest) (*pb.DeleteSandboxResponse, error) {
	if err := scoped(r.GetWorkspaceScope()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.sandboxes[r.GetName()]
	if b == nil && !r.GetAllowMissing() {
		return nil, status.Errorf(codes.NotFound, "sandbox %s", r.GetName())
	}
	if b != nil {
		b.end()
		delete(d.sandboxes, r.GetName())
	}
	return &pb.DeleteSandboxResponse{}, nil
}

// find is a sandbox that is ready.
func (d *Double) find(name string) (*box, error) {
	b := d.sandboxes[name]
	if b == nil {
		return nil, status.Errorf(codes.NotFound, "sandbox %s", name)
	}
	if b.record.Status.Phase != pb.SandboxPhase_SANDBOX_PHASE_READY {
		return nil, status.Error(codes.FailedPrecondition, fmt.Sprint("sandbox is ", b.record.Status.Phase))
	}
	return b, nil
}
