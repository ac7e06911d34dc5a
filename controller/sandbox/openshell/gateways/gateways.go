// Package gateways finds the gateways that OpenShell's own program registered for a user, and starts the one of this machine.
//
// The program keeps a directory for each gateway, in $XDG_CONFIG_HOME/openshell/gateways or for all users in
// /etc/openshell/gateways. metadata.json has its address; mtls has the files of a client; oidc_token.json has a token. The file
// active_gateway beside the directories names the one that commands use. Sources of v0.0.83 say so: crates/openshell-bootstrap.
package gateways

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Gateway is a registered gateway. Files are empty where it needs none.
type Gateway struct {
	Name      string // empty: it is registered nowhere
	Address   string // https://HOST:PORT, http://HOST:PORT
	CA        string // file
	Cert, Key string // files of a client certificate
	TokenFile string // file with a token, raw or as OpenShell's program stores one
}

// Variables of OpenShell's program.
const (
	envGateway  = "OPENSHELL_GATEWAY"
	envEndpoint = "OPENSHELL_GATEWAY_ENDPOINT"
	envSystem   = "OPENSHELL_SYSTEM_GATEWAY_DIR"
)

// metadata is what OpenShell's program says of a gateway. It has more fields.
type metadata struct {
	Name     string `json:"name"`
	Endpoint string `json:"gateway_endpoint"`
	Auth     string `json:"auth_mode"` // empty is mtls
}

// ErrNone reports that no gateway is registered, or none is active.
var ErrNone = errors.New("no gateway of OpenShell is active for this user: " +
	"write openshell: {gateway: https://HOST:PORT} in agentctl.yaml, or 'openshell gateway select NAME'")

// maxFile bounds a file of OpenShell's program, in bytes.
const maxFile = 1 << 20

// Find finds the gateway of a name. Without a name it is the one that OpenShell's program would use: that of the environment, or the active
// one of the user, or that of the machine.
func Find(name string, getenv func(string) string) (Gateway, error) {
	d := directories(getenv)
	endpoint := ""
	if name == "" {
		name, endpoint = strings.TrimSpace(getenv(envGateway)), getenv(envEndpoint)
	}
	if name == "" && endpoint != "" {
		return d.at(endpoint)
	}
	for _, dir := range d {
		if name == "" {
			name = active(dir)
		}
	}
	if name == "" {
		return Gateway{}, ErrNone
	}
	g, err := d.load(name)
	if err == nil && endpoint != "" {
		g.Address = endpoint
	}
	return g, err
}

// dirs are the directory of the user and that of the machine.
type dirs [2]string

func directories(getenv func(string) string) dirs {
	user, system := getenv("XDG_CONFIG_HOME"), getenv(envSystem)
	if user == "" {
		user = filepath.Join(getenv("HOME"), ".config")
	}
	if !filepath.IsAbs(system) {
		system = "/etc/openshell"
	}
	return dirs{filepath.Join(user, "openshell"), system}
}

// active is the name in the file active_gateway; empty: there is none.
func active(dir string) string {
	data, err := read(filepath.Join(dir, "active_gateway"))
	name := strings.TrimSpace(string(data))
	if err != nil || !single(name) {
		return ""
	}
	return name
}

// single reports whether a name is one element of a path.
func single(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

func read(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", name, maxFile)
	}
	return data, err
}

// load reads the registration of a gateway. That of the user hides that of the machine.
func (d dirs) load(name string) (Gateway, error) {
	if !single(name) {
		return Gateway{}, fmt.Errorf("%.100q is no name of a gateway: it is one element of a path", name)
	}
	for _, dir := range d {
		file := filepath.Join(dir, "gateways", name, "metadata.json")
		data, err := read(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		var m metadata
		if err == nil {
			err = json.Unmarshal(data, &m)
		}
		if err != nil {
			return Gateway{}, fmt.Errorf("gateway %s: %s: %w", name, file, err)
		}
		return d.gateway(name, m)
	}
	return Gateway{}, fmt.Errorf("gateway %s is not registered in %s: 'openshell gateway add ADDRESS --name %s', or write its address "+
		"in openshell of agentctl.yaml", name, filepath.Join(d[0], "gateways"), name)
}

// gateway is a gateway with its files, which are always the user's.
func (d dirs) gateway(name string, m metadata) (Gateway, error) {
	g := Gateway{Name: name, Address: m.Endpoint}
	dir := filepath.Join(d[0], "gateways", name)
	mtls := func(file string) string { return filepath.Join(dir, "mtls", file) }
	switch secure := strings.HasPrefix(m.Endpoint, "https://"); {
	case m.Auth == "plaintext" || m.Auth == "" && !secure:
	case m.Auth == "" || m.Auth == "mtls":
		g.CA, g.Cert, g.Key = mtls("ca.crt"), mtls("tls.crt"), mtls("tls.key")
		for _, file := range []string{g.CA, g.Cert, g.Key} {
			if _, err := os.Stat(file); err != nil {
				return Gateway{}, fmt.Errorf(
					"gateway %s: its client certificate: %w: 'openshell-gateway generate-certs' makes it on the "+
						"machine of the gateway; copy it here, or name ca, cert and key in openshell of agentctl.yaml",
					name,
					err,
				)
			}
		}
	case m.Auth == "oidc":
		g.TokenFile = filepath.Join(dir, "oidc_token.json")
		if _, err := os.Stat(mtls("ca.crt")); err == nil {
			g.CA = mtls("ca.crt")
		}
	default:
		return Gateway{}, fmt.Errorf(
			"gateway %s: it authenticates by %.40q, which agentctl does not: write openshell: {gateway: ADDRESS, "+
				"token_file: FILE} in agentctl.yaml",
			name,
			m.Auth,
		)
	}
	return g, nil
}

// at is the gateway of an address. It has the files of the first registered one with that address.
func (d dirs) at(address string) (Gateway, error) {
	if name := d.named(address); name != "" {
		return d.load(name)
	}
	return Gateway{Address: address}, nil
}

// named is the name of the first registered gateway with an address; empty: there is none.
func (d dirs) named(address string) string {
	same := func(a string) bool { return strings.TrimRight(a, "/") == strings.TrimRight(address, "/") }
	for _, dir := range d {
		entries, err := os.ReadDir(filepath.Join(dir, "gateways"))
		if err != nil {
			continue // without registrations
		}
		for _, e := range entries {
			data, err := read(filepath.Join(dir, "gateways", e.Name(), "metadata.json"))
			var m metadata
			if err == nil && json.Unmarshal(data, &m) == nil && same(m.Endpoint) {
				return e.Name()
			}
		}
	}
	return ""
}

// Named is the name under which OpenShell's program has the gateway of an address: the active one if it has that address.
func Named(address string, getenv func(string) string) (string, error) {
	if g, err := Find("", getenv); err == nil && g.Name != "" && strings.TrimRight(g.Address, "/") == strings.TrimRight(address, "/") &&
		getenv(envEndpoint) == "" {
		return g.Name, nil
	}
	if name := directories(getenv).named(address); name != "" {
		return name, nil
	}
	return "", fmt.Errorf("OpenShell's program knows no gateway at %s: 'openshell gateway add %s --name NAME'", address, address)
}
