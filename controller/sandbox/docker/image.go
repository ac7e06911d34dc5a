package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	"agentsh/controller/image"
	"agentsh/controller/sandbox"
)

// Pull implements [sandbox.Puller].
func (b *Backend) Pull(ctx context.Context, name string) (sandbox.Image, error) {
	found := sandbox.Image{Name: name}
	if name == "" {
		return found, fmt.Errorf("backend %s makes a container: write image: NAME in the harness", b.cfg.Name)
	}
	got, err := b.engine.ImageInspect(ctx, name)
	if errdefs.IsNotFound(err) {
		if err = b.pull(ctx, name); err != nil {
			return found, fmt.Errorf("image %s: %w", name, err)
		}
		got, err = b.engine.ImageInspect(ctx, name)
	}
	if err != nil {
		return found, fmt.Errorf("image %s: %w", name, b.explain(err))
	}
	found.ID, found.Digest = got.ID, got.ID
	for _, d := range got.RepoDigests {
		repository, digest, ok := strings.Cut(d, "@")
		if ok && strings.HasPrefix(digest, "sha256:") && (found.Digest == found.ID || strings.HasPrefix(name, repository)) {
			found.Digest = digest
		}
	}
	if _, pinned, is := strings.Cut(name, "@"); is { // the engine has compared it
		found.Digest = pinned
	}
	if got.Os != "linux" {
		return found, fmt.Errorf("image %s is for %s: take one for linux", name, got.Os)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	user := ""
	if got.Config != nil {
		user = got.Config.User
	}
	b.images[found.ID] = imageFacts{arch: got.Architecture, user: user}
	return found, nil
}

// imageFacts are what a sandbox needs to know of its image.
type imageFacts struct{ arch, user string }

// pull gets an image from its registry.
func (b *Backend) pull(ctx context.Context, name string) error {
	if strings.HasPrefix(name, "sha256:") {
		return errors.New("the engine does not have it, and no registry is named: write NAME@sha256:..., or load it with '" +
			b.cfg.Name + " load'")
	}
	var opts client.ImagePullOptions
	login, ok, err := image.FindLogin(ctx, name)
	if err != nil {
		return err
	}
	if ok {
		opts.RegistryAuth, err = authconfig.Encode(registry.AuthConfig{
			Username: login.Username, Password: login.Password, Auth: login.Auth,
			IdentityToken: login.IdentityToken, RegistryToken: login.RegistryToken, ServerAddress: login.Registry,
		})
		if err != nil {
			return err
		}
	}
	got, err := b.engine.ImagePull(ctx, name, opts)
	if err == nil {
		err = errors.Join(got.Wait(ctx), got.Close())
	}
	if err != nil && !client.IsErrConnectionFailed(err) {
		text := strings.TrimSpace(err.Error())
		return &pullError{fmt.Errorf("cannot be pulled: %s: try '%s pull %s', and 'docker login' if its registry needs it",
			text, b.cfg.Name, name)}
	}
	return b.explain(err)
}

// pullError is the error of an image that the engine could not get.
type pullError struct{ error }
