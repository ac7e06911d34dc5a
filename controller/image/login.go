package image

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// Login is what a user has stored for a registry, as by 'docker login' or 'podman login'.
type Login struct {
	Registry string // of the image
	authn.AuthConfig
}

// FindLogin returns what the user has stored for the registry of an image; ok is false if that
// is nothing. Helper programs that the user's configuration names are asked.
func FindLogin(ctx context.Context, reference string) (l Login, ok bool, err error) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return l, false, fmt.Errorf("image %q: %w", reference, err)
	}
	auth, err := authn.Resolve(ctx, authn.DefaultKeychain, ref.Context())
	if err != nil {
		return l, false, fmt.Errorf("login for %s: %w", ref.Context().RegistryStr(), err)
	}
	config, err := authn.Authorization(ctx, auth)
	if err != nil {
		return l, false, fmt.Errorf("login for %s: %w", ref.Context().RegistryStr(), err)
	}
	l = Login{Registry: ref.Context().RegistryStr(), AuthConfig: *config}
	return l, l.AuthConfig != authn.AuthConfig{}, nil
}
