package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	api "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"agentsh/controller/sandbox"
)

// NamePodman is the name of the backend whose engine is podman. Its service serves the API of
// Docker, with the differences in this file.
const NamePodman = "podman"

// schemeConnection begins the name of a connection of podman.
const schemeConnection = "connection:"

// findPodman returns the endpoint of podman's service: that of an address, that of CONTAINER_HOST,
// or the socket of this user's service.
func findPodman(address string, getenv func(string) string) (endpoint, error) {
	e := endpoint{Host: cmp.Or(address, getenv("CONTAINER_HOST"))}
	name, named := strings.CutPrefix(e.Host, schemeConnection)
	if e.Host == "" {
		name = getenv("CONTAINER_CONNECTION")
		named = name != ""
	}
	switch {
	case named:
		return podmanConnection(name, getenv)
	case e.Host != "":
		return e, nil
	}
	dir := "/run"
	if uid := os.Geteuid(); uid != 0 {
		dir = cmp.Or(getenv("XDG_RUNTIME_DIR"), fmt.Sprintf("/run/user/%d", uid))
	}
	e.Host = schemeUnix + path.Join(dir, "podman/podman.sock")
	return e, nil
}

// podmanConnection returns the endpoint of a connection that podman has stored.
func podmanConnection(name string, getenv func(string) string) (endpoint, error) {
	config := cmp.Or(getenv("XDG_CONFIG_HOME"), filepath.Join(getenv("HOME"), ".config"))
	file := cmp.Or(getenv("PODMAN_CONNECTIONS_CONF"), filepath.Join(config, "containers/podman-connections.json"))
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return endpoint{}, fmt.Errorf("podman has no connection %q: %s is missing: see 'podman system connection list'", name, file)
	}
	var all struct {
		Connection struct {
			Connections map[string]struct{ URI string }
		}
	}
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil {
		return endpoint{}, fmt.Errorf("connections of podman: %s: %w", file, err)
	}
	found, ok := all.Connection.Connections[name]
	if !ok || found.URI == "" {
		return endpoint{}, fmt.Errorf("podman has no connection %q: see 'podman system connection list'", name)
	}
	// The command at the other end finds the socket.
	if at, _, isSSH := strings.Cut(strings.TrimPrefix(found.URI, schemeSSH), "/"); isSSH && strings.HasPrefix(found.URI, schemeSSH) {
		found.URI = schemeSSH + at
	}
	return endpoint{Host: found.URI}, nil
}

// checkKind checks that the engine is that of the backend's name. They differ in how a container
// gets its rights.
func (b *Backend) checkKind(ctx context.Context) error {
	got, err := b.engine.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return err
	}
	is := Name
	for _, c := range got.Components {
		if strings.HasPrefix(c.Name, "Podman") {
			is = NamePodman
		}
	}
	if is != b.cfg.Name {
		return fmt.Errorf("the engine at %s is %s: run with --backend %s", b.host, is, is)
	}
	return nil
}

// rootlessPodman reports whether podman has not the rights of root. Podman 4.3 says so in a field that Docker's API does not have
// (pkg/api/handlers/compat/info.go), so the client does not read it, and not in the security options.
func (b *Backend) rootlessPodman(ctx context.Context) (bool, error) {
	dial := b.engine.Dialer()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://podman/info", nil) // the dialer connects and encrypts
	if err != nil {
		return false, err
	}
	got, err := transport.RoundTrip(req)
	if err != nil {
		return false, err
	}
	defer got.Body.Close()
	var info struct{ Rootless bool }
	if err := json.NewDecoder(io.LimitReader(got.Body, maxInfo)).Decode(&info); err != nil {
		return false, fmt.Errorf("read what podman says of itself: %w", err)
	}
	return info.Rootless, nil
}

// maxInfo bounds what an engine says of itself, in bytes.
const maxInfo = 1 << 20

// checkSources rejects mounts of what this machine does not have. Podman would make the
// directories.
func checkSources(mounts []sandbox.Mount) error {
	var errs []error
	for _, m := range mounts {
		if !path.IsAbs(m.Source) {
			continue
		}
		if _, err := os.Stat(m.Source); errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("container.mounts: %w: the path must exist on the machine of the engine", err))
		}
	}
	return errors.Join(errs...)
}

// packagedProfiles is where packages have the seccomp profiles.
const packagedProfiles = "/usr/share/agentsh/containers"

// withNamedProfile is a container whose seccomp profile is a file that podman reads: it takes no
// profile in the request. On this machine the file is temporary, until done is called.
func withNamedProfile(host api.HostConfig, engine string) (_ *api.HostConfig, done func(), err error) {
	const key = "seccomp="
	host.SecurityOpt = slices.Clone(host.SecurityOpt)
	i := slices.IndexFunc(host.SecurityOpt, func(o string) bool { return strings.HasPrefix(o, key) })
	profile := strings.TrimPrefix(host.SecurityOpt[i], key)
	if !strings.HasPrefix(engine, schemeUnix) {
		name := "seccomp-user.json"
		if len(host.CapAdd) > 0 {
			name = "seccomp-root.json"
		}
		host.SecurityOpt[i] = key + path.Join(packagedProfiles, name)
		return &host, func() {}, nil
	}
	f, err := os.CreateTemp("", "agentsh-seccomp-*.json")
	if err != nil {
		return nil, nil, err
	}
	done = func() { _ = os.Remove(f.Name()) } // temporary
	_, err = f.WriteString(profile)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil { // the service may have another user
		done()
		return nil, nil, err
	}
	host.SecurityOpt[i] = key + f.Name()
	return &host, done, nil
}
