package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"text/template"
	"time"

	"gopkg.in/yaml.v3"
)

// config is the part of .goreleaser.yml that this program executes. Other keys
// are errors.
type config struct {
	Version     int
	ProjectName string `yaml:"project_name"`
	Builds      []build
	Archives    []archive
	Packages    []yaml.Node `yaml:"nfpms"`
	SBOMs       []struct {
		ID, Artifacts, Cmd string
		Documents, Args    []string
	} `yaml:"sboms"`
	Checksum struct {
		NameTemplate string `yaml:"name_template"`
	}

	// Only goreleaser needs these.
	Dist      string
	Before    struct{ Hooks []string }
	Snapshot  map[string]string
	Release   map[string]bool
	Changelog map[string]bool
}

// build is one program for every architecture.
type build struct {
	ID, Main, Binary    string
	Goos, Goarch        []string
	ModTimestamp        string `yaml:"mod_timestamp"`
	Env, Flags, Ldflags []string
}

// archive describes one kind of archive: the programs and other files.
type archive struct {
	ID           string
	Formats      []string
	NameTemplate string   `yaml:"name_template"`
	BuildsInfo   fileInfo `yaml:"builds_info"`
	Files        []struct {
		Src, Dst    string
		StripParent bool `yaml:"strip_parent"`
		Info        fileInfo
	}
}

type fileInfo struct {
	Owner, Group string
	Mode         int64
	MTime        string
}

func readConfig(name string) (*config, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var c config
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &c, nil
}

// release holds the names for templates of the configuration.
type release struct {
	project, version, commit string
	time                     time.Time // of every file that is made
}

// expand executes the templates in text for one architecture.
func (r release) expand(text, arch string) (string, error) {
	if !strings.Contains(text, "{{") {
		return text, nil
	}
	t, err := template.New("").Option("missingkey=error").Parse(text)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, map[string]string{
		"ProjectName": r.project, "Version": r.version, "FullCommit": r.commit, "Os": "linux", "Arch": arch,
		"CommitDate": r.time.Format(time.RFC3339), "CommitTimestamp": fmt.Sprint(r.time.Unix()),
	})
	return b.String(), err
}

// expandAll executes the templates of every text below a YAML node.
func (r release) expandAll(n *yaml.Node, arch string) error {
	if n.Kind == yaml.ScalarNode {
		text, err := r.expand(n.Value, arch)
		if err != nil {
			return fmt.Errorf("line %d: %w", n.Line, err)
		}
		n.Value = text
	}
	for _, c := range n.Content {
		if err := r.expandAll(c, arch); err != nil {
			return err
		}
	}
	return nil
}
