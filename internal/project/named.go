package project

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"agentsh/internal/layout"
)

// packs is the directory of the policies of the packages.
var packs = layout.Policies

// Named returns the policy file that a command line means by name: a file, or a policy of
// the packages by its bare name, such as agent-sandbox. A name that is both is an error:
// commands can make files in the current directory.
func Named(name string) (string, error) {
	pack := packOf(name)
	if pack == "" {
		return name, nil
	}
	if info, err := os.Stat(name); err == nil && !info.IsDir() {
		return "", fmt.Errorf("%s is a file here and a policy of the packages: write ./%s or %s", name, name, pack)
	}
	return pack, nil
}

// packOf returns the file of a policy of the packages; empty: none has this name.
func packOf(name string) string {
	if filepath.Ext(name) != "" || !slices.Contains(packNames(), name) {
		return ""
	}
	return filepath.Join(packs, name+".yaml")
}

// packNames are the names of the policies of the packages.
func packNames() []string {
	files, _ := filepath.Glob(filepath.Join(packs, "*.yaml")) // none where nothing is installed
	var names []string
	for _, file := range files {
		if name := strings.TrimSuffix(filepath.Base(file), ".yaml"); !strings.HasSuffix(name, "_test") {
			names = append(names, name)
		}
	}
	return names
}

// MissingHint is the advice for a policy that err says does not exist; empty: it says
// something else.
func MissingHint(name string, err error) string {
	if !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	names := packNames()
	if bare := strings.TrimSuffix(filepath.Base(name), ".yaml"); slices.Contains(names, bare) {
		return fmt.Sprintf("write '%s' for the policy of the packages, %s", bare, filepath.Join(packs, bare+".yaml"))
	}
	hint := "name a file that exists; a relative path starts from the current directory"
	if len(names) == 0 {
		return hint + ". No policies of the packages are in " + packs
	}
	return hint + ". Or name a policy of the packages: " + strings.Join(names, ", ")
}
