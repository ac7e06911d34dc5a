package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/policy"
	"agentsh/policy/syntax"
	"agentsh/supervisor/host"
)

// TestConfigurationsOfTheInstallPages reads every configuration and policy of the
// pages about installing, whose policies are the packaged ones.
func TestConfigurationsOfTheInstallPages(t *testing.T) {
	pages, err := filepath.Glob("../../doc/platforms/*.md")
	if err != nil {
		t.Fatal(err)
	}
	installed := func(name string) string {
		return strings.Replace(name, "/etc/agentsh/policies", "../../packaging/policies", 1)
	}
	vars := host.PolicyVars("/work", nil)
	read := 0
	for _, page := range append(pages, "../../doc/install.md") {
		for _, b := range testenv.Blocks(t, page) {
			ofOpenShell := strings.Contains(b.Text, "\nfilesystem_policy:") // see TestThePolicyOfThePageHoldsAgentsh
			if b.Kind != "yaml" || !strings.HasPrefix(b.Text, "version: 1\n") || ofOpenShell {
				continue
			}
			read++
			at := fmt.Sprintf("%s:%d", page, b.Line)
			if strings.Contains(b.Text, "\nname: ") {
				source := policy.Source{Name: "/etc/agentsh/policies/of-the-page.yaml", Data: []byte(b.Text)}
				_, err := syntax.Load(
					source,
					syntax.Options{Vars: vars, ReadFile: func(name string) ([]byte, error) { return os.ReadFile(installed(name)) }},
				)
				if err != nil {
					t.Errorf("%s: %v", at, err)
				}
				continue
			}
			file := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(file, []byte(b.Text), 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := host.ReadConfig(file, false)
			if err != nil {
				t.Errorf("%s: %v", at, err)
				continue
			}
			if _, err := os.Stat(installed(c.Policy)); err != nil || c.EnvInject["BASH_ENV"] == "" {
				t.Errorf("%s: policy %s (%v), env_inject %v", at, c.Policy, err, c.EnvInject)
			}
		}
	}
	if read < 6 {
		t.Errorf("only %d configurations were found", read)
	}
}

// TestPackagedConfiguration: what the packages install names what they install.
func TestPackagedConfiguration(t *testing.T) {
	c, err := host.ReadConfig("../../packaging/config.yaml", false)
	if err != nil {
		t.Fatal(err)
	}
	if c.Policy != "/etc/agentsh/policies/default.yaml" || c.EnvInject["BASH_ENV"] != "/usr/lib/agentsh/bash_startup.sh" {
		t.Errorf("policy %s, env_inject %v", c.Policy, c.EnvInject)
	}
}

func TestTheInstalledConfigurationChoosesAPolicyForContainers(t *testing.T) {
	c, err := host.ReadConfig("../../packaging/config.yaml", false)
	if err != nil {
		t.Fatal(err)
	}
	if c.Container.Policy != "/etc/agentsh/policies/plain.yaml" || len(c.Container.Degraded) == 0 {
		t.Errorf("the key container is %+v", c.Container)
	}
}

// TestTheInstallPageListsAllKeys asks the reader for the keys of each mapping: an
// error about an unknown key lists them.
func TestTheInstallPageListsAllKeys(t *testing.T) {
	page, err := os.ReadFile("../../doc/install.md")
	if err != nil {
		t.Fatal(err)
	}
	known := regexp.MustCompile(`\(one of: ([a-z_, ]+)\)`)
	mappings := []string{"audit", "network", "sandbox", "trash"}
	for _, mapping := range append(mappings, "") {
		text := "none: 1\n"
		if mapping != "" {
			text = mapping + ": {none: 1}\n"
		}
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := host.ReadConfig(file, false)
		if err == nil || !known.MatchString(err.Error()) {
			t.Fatalf("%q: %v", text, err)
		}
		for key := range strings.SplitSeq(known.FindStringSubmatch(err.Error())[1], ", ") {
			name := strings.TrimPrefix(mapping+"."+key, ".")
			if !slices.Contains(mappings, name) && !strings.Contains(string(page), "`"+name+"`") {
				t.Errorf("doc/install.md does not list %s", name)
			}
		}
	}
}
