package settings

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/controller/image"
)

// imageFlags are the flags that say where images are.
type imageFlags struct {
	places   []string
	required bool
}

func (f *imageFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(
		&f.places,
		"image",
		nil,
		"`NAME=PATH`: run in the image NAME of the harness, whose root file system is at PATH (a directory, an OCI layout, "+
			"a tar or docker archive); may be given again",
	)
	flags.BoolVar(
		&f.required,
		"require-image",
		false,
		"refuse a harness whose image has no PATH, instead of using this machine's programs",
	)
}

// config adds the flags to what the configuration files say.
func (f *imageFlags) config(of config) (image.Config, error) {
	c := image.Config{Places: maps.Clone(of.images), Required: f.required}
	for _, value := range f.places {
		// A name may have a port and a digest, but no "=".
		name, place, _ := strings.Cut(value, "=")
		if name == "" || place == "" {
			return c, fmt.Errorf("--image %q: write NAME=PATH, with the NAME that the harness has after image", value)
		}
		place, err := filepath.Abs(place)
		if err != nil {
			return c, err
		}
		c.Places[name] = place
		c.Given = append(c.Given, name)
	}
	if c.Cache = ImageCache(); c.Cache == "" && len(c.Places) > 0 {
		return c, errors.New("images: no cache directory: set HOME or XDG_CACHE_HOME")
	}
	return c, nil
}

// ImageCache is the directory of extracted images; empty: the user has none.
func ImageCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "agentctl", "images")
}
