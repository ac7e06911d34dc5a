package docker

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	api "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	"agentsh/internal/agentfile"
	"agentsh/packaging/containers"
)

// What this host puts into a container.
const (
	dirInside    = "/.agentsh"
	program      = dirInside + "/agentsh"
	configInside = dirInside + "/config.yaml"
)

// container is the container of one sandbox. It is made when the first stream is opened.
type container struct {
	b    *Backend
	spec sandbox.Spec

	mu   sync.Mutex
	made made
}

// made is a container that the engine has made.
type made struct {
	id   string // empty: none
	at   time.Time
	said *words // of its first process; nil: nobody listened
}

// String implements [remote.Carrier].
func (c *container) String() string { return c.b.at() }

// Shell implements [remote.Carrier]. agentsh itself is started, without a shell.
func (c *container) Shell() bool { return false }

// Check implements [remote.Carrier].
func (c *container) Check() error { return nil }

// Open implements [remote.Carrier].
func (c *container) Open(ctx context.Context) (remote.Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made.id == "" {
		if err := c.make(ctx); err != nil {
			return nil, errors.Join(err, c.removeMade(ctx))
		}
	}
	return c.exec(ctx)
}

// removeTime bounds the removal of a container.
const removeTime = 30 * time.Second

// remove removes the container, if there is one.
func (c *container) remove(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.removeMade(ctx)
}

func (c *container) removeMade(ctx context.Context) error {
	if c.made.id == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	err := c.b.removeContainer(ctx, c.made.id)
	if err == nil {
		c.made.id = ""
	}
	return err
}

// make makes and starts the container.
func (c *container) make(ctx context.Context) error {
	config, host, err := c.describe(ctx, userOf(c.spec.Container.User, c.b.facts(c.spec.Container.Image.ID).user))
	if err != nil {
		return err
	}
	if err = c.start(ctx, config, host); errors.Is(err, errRoot) {
		if err := c.removeMade(ctx); err != nil {
			return err
		}
		if config, host, err = c.describe(ctx, asRoot(c.spec.Container.User)); err != nil {
			return err
		}
		err = c.start(ctx, config, host)
	}
	// A device that the machine of the engine lacks is found at the start only.
	if err != nil && len(host.Devices) > 0 && strings.Contains(err.Error(), fuseDevice) {
		if err := c.removeMade(ctx); err != nil {
			return err
		}
		host.Devices = nil // the supervisor says what is missing then, and the operator decides
		err = c.start(ctx, config, host)
	}
	return err
}

func (c *container) start(ctx context.Context, config *api.Config, host *api.HostConfig) error {
	if c.b.cfg.Name == NamePodman {
		named, done, err := withNamedProfile(*host, c.b.host)
		if err != nil {
			return fmt.Errorf("seccomp profile of the container: %w", err)
		}
		defer done()
		host = named
	}
	got, err := c.b.engine.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: config, HostConfig: host, Name: "agentsh-" + c.spec.RunID,
	})
	if err != nil {
		return fmt.Errorf("make container: %w", c.explainStart(err))
	}
	c.made = made{id: got.ID, at: time.Now()}
	for _, w := range got.Warnings {
		if strings.Contains(w, "iscarded") || strings.Contains(w, "gnored") {
			return fmt.Errorf("make container: the engine drops a part of the request: %s", w)
		}
	}
	if err := c.checkName(ctx, config.User); err != nil {
		return err
	}
	if err := c.checkRoom(ctx); err != nil {
		return err
	}
	if err := c.send(ctx); err != nil {
		return fmt.Errorf("send agentsh to the container: %w", c.b.explain(err))
	}
	if c.made.said, err = c.listen(ctx); err != nil {
		return fmt.Errorf("listen to the container: %w", c.b.explain(err))
	}
	if _, err := c.b.engine.ContainerStart(ctx, c.made.id, client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("start container: %w", c.explainStart(err))
	}
	return c.await(ctx)
}

// fuseDevice is what file servers need.
const fuseDevice = "/dev/fuse"

// describe describes the container of a user.
func (c *container) describe(ctx context.Context, user string) (*api.Config, *api.HostConfig, error) {
	owner, err := remote.Owner(c.b.cfg.State)
	if err != nil {
		return nil, nil, err
	}
	info, err := c.b.asked(ctx)
	if err != nil {
		return nil, nil, err
	}
	s := c.spec.Container
	lease := c.b.cfg.Lease
	config := &api.Config{
		Image: s.Image.ID, User: user, Cmd: []string{},
		Entrypoint: append([]string{program, "serve", "--container", lease.String()}, c.configured()...),
		WorkingDir: "/", Labels: map[string]string{labelOwner: owner, labelRun: c.spec.RunID},
		Healthcheck: &api.HealthConfig{Test: []string{"NONE"}}, AttachStdout: true, AttachStderr: true,
	}
	host := &api.HostConfig{
		AutoRemove: true, NetworkMode: api.NetworkMode(s.Network),
		Resources: api.Resources{
			Memory: s.MemoryMB << 20, MemorySwap: s.MemoryMB << 20, NanoCPUs: int64(s.CPUs * 1e9),
			Devices: []api.DeviceMapping{{PathOnHost: fuseDevice, PathInContainer: fuseDevice, CgroupPermissions: "rwm"}},
		},
	}
	if s.PIDs > 0 {
		host.PidsLimit = &s.PIDs
	}
	if s.DiskMB > 0 {
		host.StorageOpt = map[string]string{"size": fmt.Sprintf("%dM", s.DiskMB)}
	}
	for _, m := range s.Mounts {
		kind := mount.TypeVolume
		if path.IsAbs(m.Source) {
			kind = mount.TypeBind
		}
		host.Mounts = append(host.Mounts, mount.Mount{Type: kind, Source: m.Source, Target: m.Target, ReadOnly: !m.Writable})
	}
	c.secure(host, user, info.SecurityOptions)
	return config, host, nil
}

// userOf is the user of a container: that of the harness, or that of the image, or one that
// is not root.
func userOf(harness, image string) string {
	if harness != "" {
		return harness
	}
	if isRoot(image) {
		return "1000:1000"
	}
	return image
}

// asRoot is the user of a container in place of another name of root: that name's UID if the harness has it, or one that is not root.
func asRoot(harness string) string {
	name, group, has := strings.Cut(harness, ":")
	if name != "" {
		name = "0"
	}
	if has {
		name += ":" + group
	}
	return userOf(name, "0")
}

// isRoot reports whether a user of a container is root. An image without a user has root. Engines read 00 and +0 as
// numbers, too.
func isRoot(user string) bool {
	name, _, _ := strings.Cut(user, ":")
	number, err := strconv.Atoi(name)
	return name == "" || name == "root" || err == nil && number == 0
}

// secure sets what a whole session needs, and nothing more. doc/platforms/docker.md has the
// same as flags.
func (c *container) secure(host *api.HostConfig, user string, engine []string) {
	if isRoot(user) {
		host.CapAdd = []string{"SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE"}
		host.SecurityOpt = []string{"seccomp=" + containers.SeccompRoot}
	} else {
		host.CapDrop = []string{"ALL"}
		host.SecurityOpt = []string{"no-new-privileges", "seccomp=" + containers.SeccompUser}
		if c.b.cfg.Name == NamePodman {
			host.SecurityOpt = append(host.SecurityOpt, "unmask=ALL")
		} else { // what the docker program makes of systempaths=unconfined
			host.MaskedPaths, host.ReadonlyPaths = []string{}, []string{}
		}
	}
	for _, o := range engine {
		if strings.HasPrefix(o, "name=apparmor") {
			host.SecurityOpt = append(host.SecurityOpt, "apparmor=agentsh-container")
		}
	}
}

// explainStart adds what to do to the error of a container that the engine refused.
func (c *container) explainStart(err error) error {
	text := err.Error()
	hint := ""
	switch {
	case strings.Contains(text, "storage-opt") || strings.Contains(text, "StorageOpt") || strings.Contains(text, "pquota"):
		hint = "container.disk_mb: the storage driver of the engine cannot limit a container's disk: leave it out, " +
			"or see 'docker run --storage-opt'"
	case strings.Contains(text, "apparmor"):
		hint = "load the profile on the engine's machine: apparmor_parser -r /usr/share/agentsh/containers/apparmor"
	case errdefs.IsConflict(err) && strings.Contains(text, "already in use"):
		hint = "a container of an earlier run has the name: 'agentctl gc --backend " + c.b.cfg.Name + "' removes it"
	case strings.Contains(text, "unable to find user") || strings.Contains(text, "no matching entries in passwd"):
		hint = otherUser
	case strings.Contains(text, "network") && (errdefs.IsNotFound(err) || strings.Contains(text, "unable to find network")):
		hint = "container.network: '" + c.b.cfg.Name + " network ls' lists what there is"
	case strings.Contains(text, packagedProfiles):
		hint = "install the package of agentsh on the engine's machine: podman reads the seccomp profile there"
	case strings.Contains(text, "bind source path does not exist") || strings.Contains(text, "statfs"):
		hint = "container.mounts: the path must exist on the machine of the engine"
	}
	if hint != "" {
		return fmt.Errorf("%w: %s", err, hint)
	}
	return c.b.explain(err)
}

// checkRoom refuses an image that has something else in the place of the supervisor. An engine may follow a link to where others
// write.
func (c *container) checkRoom(ctx context.Context) error {
	for _, name := range []string{dirInside, program, configInside} {
		got, err := c.b.engine.ContainerStatPath(ctx, c.made.id, client.ContainerStatPathOptions{Path: name})
		switch {
		case errdefs.IsNotFound(err):
		case err != nil:
			return c.b.explain(err)
		case got.Stat.Mode.IsDir() != (name == dirInside), got.Stat.LinkTarget != "" && got.Stat.LinkTarget != name:
			return fmt.Errorf("%s of the image is in the place of the supervisor: make an image without it", name)
		}
	}
	return nil
}

// configured are the arguments for the configuration that the operator named.
func (c *container) configured() []string {
	if c.b.cfg.Operator == "" {
		return nil
	}
	return []string{"--config", configInside}
}

// send puts the supervisor's program into the container, and its configuration if the
// operator named one.
func (c *container) send(ctx context.Context) error {
	file := c.b.cfg.Agentsh
	arch := c.b.facts(c.spec.Container.Image.ID).arch
	if file == "" || agentfile.Check(file, arch) != nil {
		var err error
		if file, err = agentfile.Find(arch); err != nil {
			return err
		}
	}
	read, write := io.Pipe()
	go func() { _ = write.CloseWithError(writeArchive(write, file, c.b.cfg.Operator)) }() // ends when read is closed
	_, err := c.b.engine.CopyToContainer(ctx, c.made.id, client.CopyToContainerOptions{DestinationPath: "/", Content: read})
	return errors.Join(err, read.Close())
}

// writeArchive writes what this host puts into a container.
func writeArchive(to io.Writer, program, config string) error {
	w := tar.NewWriter(to)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dirInside[1:] + "/", Mode: 0o755})
	if err == nil {
		err = addFile(w, program, "agentsh", 0o755)
	}
	if err == nil && config != "" {
		err = addFile(w, config, path.Base(configInside), 0o644)
	}
	return errors.Join(err, w.Close())
}

func addFile(w *tar.Writer, file, name string, mode int64) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(dirInside[1:], name), Mode: mode, Size: info.Size()})
	if err == nil {
		_, err = io.CopyN(w, f, info.Size())
	}
	return err
}
