package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/controller/image"
	"agentsh/internal/strictyaml"
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

// config reads the configuration files and the flags. A flag wins over the user's
// file, and that over the machine's.
func (f *imageFlags) config() (image.Config, error) {
	c := image.Config{Places: map[string]string{}, Required: f.required}
	for _, name := range configFiles() {
		places, err := readImages(name)
		if err != nil {
			return c, err
		}
		maps.Copy(c.Places, places)
	}
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
	}
	if c.Cache = imageCache(); c.Cache == "" && len(c.Places) > 0 {
		return c, errors.New("images: no cache directory: set HOME or XDG_CACHE_HOME")
	}
	return c, nil
}

// imageCache is the directory of extracted images; empty: the user has none.
func imageCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "agentctl", "images")
}

// configName is the name of agentctl's configuration file.
const configName = "agentctl.yaml"

// configFiles are agentctl's configuration files: the machine's, then the user's.
func configFiles() []string {
	files := []string{filepath.Join("/etc/agentsh", configName)}
	if dir, err := os.UserConfigDir(); err == nil {
		files = append(files, filepath.Join(dir, "agentsh", configName))
	}
	return files
}

// configDialect is what a configuration file may contain.
var configDialect = strictyaml.Dialect{MaxBytes: 1 << 20, MaxDepth: 4, CoreTags: true, Empty: true}

// readImages reads the images of a configuration file. Paths start from its
// directory. A missing file has none.
func readImages(name string) (map[string]string, error) {
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	var problems []string
	add := func(p strictyaml.Problem) { problems = append(problems, p.String()) }
	places := map[string]string{}
	if root := strictyaml.Parse(name, data, &configDialect, add); root != nil {
		r := strictyaml.NewReader(name, &configDialect, add)
		r.Fields(root, "the configuration", map[string]func(*strictyaml.Node){
			"version": func(n *strictyaml.Node) {
				if n.Value != "1" {
					r.Fail(n, "", "version %q: this build reads version 1", n.Value)
				}
			},
			"images": func(n *strictyaml.Node) {
				r.Keys(n, "images", nil, func(key *strictyaml.Node) func(*strictyaml.Node) {
					return func(v *strictyaml.Node) {
						place, ok := r.Text(v)
						if ok && place == "" {
							r.Fail(v, "", "the path of an image is empty")
						}
						if !filepath.IsAbs(place) {
							place = filepath.Join(filepath.Dir(name), place)
						}
						places[key.Value] = place
					}
				})
			},
		})
	}
	if len(problems) > 0 {
		return nil, errors.New(strings.Join(problems, "\n"))
	}
	return places, nil
}
