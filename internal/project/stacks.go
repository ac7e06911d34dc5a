package project

import (
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Stack is a kind of tools that a project is built with.
type Stack struct {
	Name    string
	Files   []string   // patterns of files at the root of a project that show it
	Try     [][]string // usual commands
	Publish []string   // programs that publish packages
	Words   string     // the words with which they do, as in args of a rule
	Hosts   []string   // where its packages come from
	sources map[string]string

	settings []Setting
}

// Stacks are the stacks that are known. sources has patterns of the addresses of registries
// in files of a project.
var Stacks = []Stack{
	{
		Name: "node", Files: []string{"package.json"},
		Try:     [][]string{{"npm", "ci"}, {"npm", "test"}, {"npm", "run", "build"}},
		Publish: []string{"npm", "pnpm", "yarn", "bun"}, Words: "publish|unpublish|deprecate",
		Hosts: []string{"registry.npmjs.org"},
		sources: map[string]string{
			".npmrc":            `(?m)^\s*(?:@[^:\s]+:)?registry\s*=\s*"?([^\s"]+)`,
			".yarnrc.yml":       `(?m)^\s*npmRegistryServer:\s*["']?([^\s"']+)`,
			"package-lock.json": `"resolved":\s*"([^"]+)"`,
			"yarn.lock":         `(?m)^\s*resolved\s+"([^"]+)"`,
			"pnpm-lock.yaml":    `tarball:\s*(https?://[^\s,}]+)`,
		},
		settings: []Setting{{"npm_config_registry", ".npmrc", `(?m)^\s*registry\s*=\s*"?([^\s"]+)`}},
	},
	{
		Name: "python", Files: []string{"pyproject.toml", "setup.py", "setup.cfg", "requirements*.txt", "Pipfile", "tox.ini"},
		Try:     [][]string{{"python3", "-m", "venv", ".venv"}, {"pip", "install", "-r", "requirements.txt"}, {"pytest"}},
		Publish: []string{"twine", "uv", "poetry", "flit", "hatch", "pdm"}, Words: "upload|publish",
		Hosts: []string{"pypi.org", "files.pythonhosted.org"},
		sources: map[string]string{
			"requirements.txt": `(?m)^\s*(?:-i|--(?:extra-)?index-url)[ =]+(\S+)`,
			"pip.conf":         `(?m)^\s*(?:extra-)?index-url\s*=\s*(\S+)`,
			"pyproject.toml":   `\[\[tool\.(?:uv\.index|poetry\.source|pdm\.source)\]\][^\[]*?\n\s*url\s*=\s*["']([^"']+)`,
		},
		settings: []Setting{
			{"PIP_INDEX_URL", ".config/pip/pip.conf", `(?m)^\s*index-url\s*=\s*(\S+)`},
			{"PIP_EXTRA_INDEX_URL", ".config/pip/pip.conf", `(?m)^\s*extra-index-url\s*=\s*(\S+)`},
			{Name: "UV_DEFAULT_INDEX"}, {Name: "UV_INDEX_URL"},
		},
	},
	{
		Name: "go", Files: []string{"go.mod", "go.work"},
		Try:   [][]string{{"go", "build", "./..."}, {"go", "test", "./..."}},
		Hosts: []string{"proxy.golang.org", "sum.golang.org"},
		settings: []Setting{
			{"GOPROXY", ".config/go/env", `(?m)^GOPROXY=(\S+)`}, {"GOPRIVATE", ".config/go/env", `(?m)^GOPRIVATE=(\S+)`},
			{"GONOPROXY", ".config/go/env", `(?m)^GONOPROXY=(\S+)`}, {"GONOSUMDB", ".config/go/env", `(?m)^GONOSUMDB=(\S+)`},
			{"GOSUMDB", ".config/go/env", `(?m)^GOSUMDB=(\S+)`},
		},
	},
	{
		Name: "rust", Files: []string{"Cargo.toml"},
		Try:     [][]string{{"cargo", "build"}, {"cargo", "test"}},
		Publish: []string{"cargo"}, Words: "publish|yank",
		Hosts:   []string{"index.crates.io", "static.crates.io"},
		sources: map[string]string{".cargo/config.toml": `(?m)^\s*(?:index|registry)\s*=\s*"(?:sparse\+)?([^"]+)"`},
	},
	{
		Name: "java", Files: []string{"pom.xml", "build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"},
		Try:     [][]string{{"mvn", "-B", "verify"}, {"./gradlew", "build"}},
		Publish: []string{"mvn", "mvnw", "gradle", "gradlew"}, Words: "deploy|publish|release:*",
		Hosts: []string{"repo.maven.apache.org"},
		sources: map[string]string{
			"pom.xml":          `(?s)<repository>.*?<url>\s*([^<\s]+)`,
			"build.gradle":     `maven\s*\{[^}]*?url[^"'}]*["']([^"']+)`,
			"build.gradle.kts": `maven\s*[({][^})]*?["']([^"']+)`,
		},
	},
	{
		Name: "c", Files: []string{"CMakeLists.txt", "meson.build", "configure", "configure.ac"},
		Try: [][]string{{"cmake", "-B", "build"}, {"cmake", "--build", "build"}, {"ctest", "--test-dir", "build"}},
	},
	{Name: "make", Files: []string{"Makefile", "GNUmakefile", "makefile"}, Try: [][]string{{"make"}, {"make", "test"}}},
	{
		Name: "ruby", Files: []string{"Gemfile", "*.gemspec", "Rakefile"},
		Try:     [][]string{{"bundle", "install"}, {"bundle", "exec", "rake", "test"}},
		Publish: []string{"gem", "rake", "bundle"}, Words: "push|yank|release",
		Hosts:   []string{"rubygems.org", "index.rubygems.org"},
		sources: map[string]string{"Gemfile": `(?m)^\s*source\s*\(?\s*["']([^"']+)`},
	},
	{Name: "shell", Files: []string{"*.sh"}, Try: [][]string{{"bash", "-n", "build.sh"}, {"sh", "./test.sh"}}},
}

// FindStacks returns the stacks of a project and the files that show each one.
func FindStacks(root *os.Root) (map[string][]string, error) {
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	found := map[string][]string{}
	for {
		entries, err := dir.ReadDir(256)
		for _, e := range entries {
			if !e.Type().IsRegular() {
				continue // a link leads anywhere
			}
			for i := range Stacks {
				if shows(&Stacks[i], e.Name()) && len(found[Stacks[i].Name]) < maxShown {
					found[Stacks[i].Name] = append(found[Stacks[i].Name], e.Name())
				}
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	for _, names := range found {
		slices.Sort(names)
	}
	return found, nil
}

// Bounds of what is read of a project, which may be anybody's.
const (
	maxShown      = 4       // files that show a stack
	maxSource     = 8 << 20 // bytes of a file that names registries
	maxRegistries = 20
)

func shows(s *Stack, name string) bool {
	return slices.ContainsFunc(s.Files, func(pattern string) bool {
		ok, _ := path.Match(pattern, name) // the patterns are good
		return ok
	})
}

// Registry is a server that a file of the project names as a source of packages.
type Registry struct {
	Host string `json:"host"`
	Port string `json:"port"`
	File string `json:"file"` // relative to the root of the project
}

// Registries returns the registries that files of a project name for a stack. passed are
// those that cannot be in a rule, as they are written.
func (s *Stack) Registries(root *os.Root) (found []Registry, passed []string) {
	files := make([]string, 0, len(s.sources))
	for file := range s.sources {
		files = append(files, file)
	}
	slices.Sort(files)
	for _, file := range files {
		data, err := readBelow(root, file)
		if err != nil {
			continue // it is not there, or no file to read
		}
		for _, m := range regexp.MustCompile(s.sources[file]).FindAllSubmatch(data, -1) {
			r, ok := registry(string(m[1]), file)
			if text := string(m[1]); !ok && !slices.Contains(passed, text) && len(passed) < maxRegistries && strings.Contains(text, "//") {
				passed = append(passed, text)
			}
			same := func(x Registry) bool { return x.Host == r.Host && x.Port == r.Port }
			if ok && !slices.ContainsFunc(found, same) && len(found) < maxRegistries {
				found = append(found, r)
			}
		}
	}
	return found, passed
}

// readBelow reads the beginning of a regular file, through no link at its end.
func readBelow(root *os.Root, name string) ([]byte, error) {
	if info, err := root.Lstat(name); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fs.ErrInvalid, err)
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fs.ErrInvalid, err)
	}
	return io.ReadAll(io.LimitReader(f, maxSource))
}

// hostName is a name that can stand in a rule as it is.
var hostName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
})

// registry reads an address. Other addresses than names and loopback make no rule: what
// they lead to is for a person to say.
func registry(text, file string) (Registry, bool) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return Registry{}, false
	}
	r := Registry{Host: strings.ToLower(u.Hostname()), Port: u.Port(), File: file}
	if r.Port == "" {
		r.Port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	if r.Host == "127.0.0.1" || r.Host == "::1" {
		r.Host = "localhost"
	}
	last := r.Host[strings.LastIndexByte(r.Host, '.')+1:]
	number := last != "" && strings.Trim(last, "0123456789") == ""
	return r, len(r.Host) <= 253 && hostName().MatchString(r.Host) && !number && len(r.Port) <= 5 && r.Port != "0"
}
