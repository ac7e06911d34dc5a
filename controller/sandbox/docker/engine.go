package docker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/moby/client"

	"agentsh/controller/sandbox/remote"
)

// Name is the name of the backend.
const Name = "docker"

// Schemes begin the addresses of engines.
var Schemes = []string{schemeUnix, schemeTCP, schemeSSH, schemeContext}

const (
	schemeUnix    = "unix://"
	schemeTCP     = "tcp://"
	schemeSSH     = "ssh://"
	schemeContext = "context:"
)

// endpoint is where an engine answers.
type endpoint struct {
	Host          string
	SkipTLSVerify bool
	certs         string // directory of ca.pem, cert.pem and key.pem; empty: no TLS
}

// find returns the endpoint of an engine: that of an address, or the one that the engine's own
// program would use.
func find(address string, getenv func(string) string) (endpoint, error) {
	dir := getenv("DOCKER_CONFIG")
	if dir == "" {
		dir = filepath.Join(getenv("HOME"), ".docker")
	}
	e := endpoint{Host: cmp.Or(address, getenv("DOCKER_HOST"))}
	if e.certs = getenv("DOCKER_CERT_PATH"); e.certs == "" && getenv("DOCKER_TLS_VERIFY") != "" {
		e.certs = dir
	}
	chosen, named := strings.CutPrefix(e.Host, schemeContext)
	if e.Host == "" {
		var err error
		if chosen, err = currentContext(dir, getenv); err != nil {
			return e, err
		}
		named = true
	}
	if !named {
		return e, nil
	}
	if chosen == "" || chosen == "default" {
		e.Host = client.DefaultDockerHost
		return e, nil
	}
	return readContext(dir, chosen)
}

// currentContext is the context that the docker program uses.
func currentContext(dir string, getenv func(string) string) (string, error) {
	if name := getenv("DOCKER_CONTEXT"); name != "" {
		return name, nil
	}
	name := filepath.Join(dir, "config.json")
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	var config struct {
		CurrentContext string `json:"currentContext"`
	}
	if err == nil {
		err = json.Unmarshal(data, &config)
	}
	if err != nil {
		return "", fmt.Errorf("configuration of docker: %s: %w", name, err)
	}
	return config.CurrentContext, nil
}

// readContext reads a context of the docker program.
func readContext(dir, name string) (endpoint, error) {
	sum := sha256.Sum256([]byte(name))
	id := hex.EncodeToString(sum[:])
	data, err := os.ReadFile(filepath.Join(dir, "contexts/meta", id, "meta.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return endpoint{}, fmt.Errorf("docker has no context %q: see 'docker context ls'", name)
	}
	var meta struct {
		Endpoints map[string]endpoint
	}
	if err == nil {
		err = json.Unmarshal(data, &meta)
	}
	e := meta.Endpoints["docker"]
	if err == nil && e.Host == "" {
		err = errors.New("no endpoint of docker")
	}
	if err != nil {
		return e, fmt.Errorf("context %q of docker: %w", name, err)
	}
	if certs := filepath.Join(dir, "contexts/tls", id, "docker"); isDir(certs) {
		e.certs = certs
	}
	return e, nil
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// connect makes a client of an engine. It does not connect yet.
func (e endpoint) connect(name string) (*client.Client, error) {
	opts := []client.Opt{client.WithUserAgent("agentctl")}
	switch {
	case strings.HasPrefix(e.Host, schemeUnix):
		opts = append(opts, client.WithHost(e.Host))
	case strings.HasPrefix(e.Host, schemeSSH):
		dial, err := remote.DialSSH(e.Host, name+" system dial-stdio") // as the docker program does
		if err != nil {
			return nil, err
		}
		opts = append(opts, client.WithHost("http://engine.invalid"), client.WithDialContext(
			func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }))
	case strings.HasPrefix(e.Host, schemeTCP):
		tls, err := e.tls()
		if err != nil {
			return nil, err
		}
		opts = append(append(opts, tls...), client.WithHost(e.Host))
	default:
		return nil, fmt.Errorf("%.200q is no address of an engine: it begins with %s", e.Host, strings.Join(Schemes, ", "))
	}
	return client.New(opts...)
}

// tls are the options for an engine that is reached by TCP. What a run sends has the values of
// its credentials, so it is encrypted unless it stays on this machine.
func (e endpoint) tls() ([]client.Opt, error) {
	u, err := url.Parse(e.Host)
	if err != nil {
		return nil, fmt.Errorf("address of the engine: %w", err)
	}
	if e.SkipTLSVerify {
		return nil, fmt.Errorf("%s: its context does not verify the engine: set skip-tls-verify=false there", e.Host)
	}
	if e.certs != "" {
		in := func(file string) string { return filepath.Join(e.certs, file) }
		return []client.Opt{client.WithTLSClientConfig(in("ca.pem"), in("cert.pem"), in("key.pem"))}, nil
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("%s has no TLS: set DOCKER_CERT_PATH to the directory of ca.pem, cert.pem and key.pem, or use ssh://", e.Host)
	}
	return nil, nil
}
