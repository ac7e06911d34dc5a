package project

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Tools are programs that the user has installed in the own home.
type Tools struct {
	Path []string          // directories of programs, the first one counts
	Env  map[string]string // what these programs need to find their parts
}

// Of returns the PATH of commands: these directories, then those of path.
func (t Tools) Of(path string) string {
	return strings.Join(append(slices.Clone(t.Path), path), ":")
}

// FindTools looks for ~/.local/bin, ~/.cargo/bin, ~/go/bin, the Node.js of nvm and the
// shims of pyenv, which choose a Python as the project says. It returns what shows says
// that commands can see.
func FindTools(home string, shows func(dir string) bool) Tools {
	t := Tools{Env: map[string]string{}}
	if home == "" {
		return t
	}
	pyenv := filepath.Join(home, ".pyenv")
	for _, dir := range []string{
		filepath.Join(home, ".local/bin"), nvm(home), filepath.Join(home, ".cargo/bin"), filepath.Join(home, "go/bin"),
		filepath.Join(pyenv, "shims"), filepath.Join(pyenv, "bin"),
	} {
		if isDir(dir) && shows(dir) && !strings.Contains(dir, ":") {
			t.Path = append(t.Path, dir)
		}
	}
	if rustup := filepath.Join(home, ".rustup"); isDir(rustup) && shows(filepath.Join(rustup, "toolchains")) {
		t.Env["RUSTUP_HOME"] = rustup
	}
	if slices.Contains(t.Path, filepath.Join(pyenv, "shims")) {
		t.Env["PYENV_ROOT"] = pyenv
	}
	return t
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// nvm returns the programs of nvm's default Node.js: of the newest version that the
// alias default fits, else of the newest.
func nvm(home string) string {
	dir := filepath.Join(home, ".nvm")
	alias, _ := os.ReadFile(filepath.Join(dir, "alias/default")) // without one the newest counts
	want := numbers(strings.TrimSpace(string(alias)))
	entries, _ := os.ReadDir(filepath.Join(dir, "versions/node")) // without nvm there are none
	best, fits := "", false
	for _, e := range entries {
		v := numbers(e.Name())
		if v == nil {
			continue
		}
		f := want != nil && len(want) <= len(v) && slices.Equal(v[:len(want)], want)
		if best == "" || f && !fits || f == fits && slices.Compare(numbers(best), v) < 0 {
			best, fits = e.Name(), f
		}
	}
	if best == "" {
		return ""
	}
	return filepath.Join(dir, "versions/node", best, "bin")
}

// numbers are the parts of a version such as v20.1.0; nil: it is none.
func numbers(version string) []int {
	var out []int
	for part := range strings.SplitSeq(strings.TrimPrefix(version, "v"), ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil
		}
		out = append(out, n)
	}
	return out
}
