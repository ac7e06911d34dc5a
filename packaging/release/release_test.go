package main

import (
	"bufio"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
)

func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestLicencesAreRecognised(t *testing.T) {
	tests := []struct {
		name, text string
		want       string
		ok         bool
	}{
		{"MIT", "Permission is hereby granted, free\nof charge, to any person", "MIT", true},
		{
			"BSD with three clauses",
			"Redistribution and use in source and binary forms ... used to endorse or promote products",
			"BSD-3-Clause",
			true,
		},
		{"BSD with two clauses", "Redistribution and use in source and\n\tbinary forms", "BSD-2-Clause", true},
		{"two licences", "Apache License\n Version 2.0 ... Permission is hereby granted, free of charge", "Apache-2.0 MIT", true},
		{"the GPL", "GNU GENERAL PUBLIC LICENSE Version 3", "GPL", false},
		{"the GPL besides an allowed one", "Permission is hereby granted, free of charge GNU GENERAL PUBLIC LICENSE", "MIT GPL", false},
		{"nothing that is known", "All rights reserved.", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := licences(tt.text)
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("licences %q, want %q", s, tt.want)
			}
			if err := check(got); (err == nil) != tt.ok {
				t.Errorf("check: %v", err)
			}
		})
	}
}

// Every library that a program or a test imports has its line in
// doc/dependencies.md.
func TestEveryDependencyIsExplained(t *testing.T) {
	page, err := os.ReadFile("doc/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := 0
	for s := bufio.NewScanner(f); s.Scan(); {
		words := strings.Fields(s.Text())
		if len(words) != 2 || !strings.HasPrefix(words[1], "v") {
			continue // what others need is marked as indirect
		}
		n++
		name := strings.TrimPrefix(words[0], "github.com/spf13/") // one line for both
		if !strings.Contains(string(page), name) {
			t.Errorf("doc/dependencies.md does not say what %s is for", words[0])
		}
	}
	if n == 0 {
		t.Error("go.mod requires nothing")
	}
}

func testMaker(t *testing.T) *maker {
	t.Helper()
	c, err := readConfig(".goreleaser.yml")
	if err != nil {
		t.Fatal(err)
	}
	return &maker{
		config:  c,
		out:     t.TempDir(),
		release: release{project: c.ProjectName, version: "1.2.3", commit: "abc", time: time.Unix(1, 0).UTC()},
	}
}

// The archive and the packages hold the same files of this tree, and each file
// of the tree that they name is there.
func TestTablesNameTheSameFiles(t *testing.T) {
	m := testMaker(t)
	var archived []string
	for _, f := range m.config.Archives[0].Files {
		archived = append(archived, f.Src)
	}
	var table struct {
		Contents []struct{ Src, Dst, Packager, Type string }
	}
	if err := m.config.Packages[0].Decode(&table); err != nil {
		t.Fatal(err)
	}
	var packaged []string
	for _, c := range table.Contents {
		if c.Src == "" {
			continue
		}
		packaged = append(packaged, c.Src)
		if strings.HasPrefix(c.Dst, "/etc/") != (c.Type == "config|noreplace") {
			t.Errorf("%s: what lies in /etc, and nothing else, is kept on upgrade", c.Dst)
		}
	}
	only := []string{
		"out/package/completions/*",   // packages name each of them
		"packaging/docker/Dockerfile", // builds from an unpacked archive
		"packaging/docker/agentctl.Dockerfile",
	}
	for _, src := range archived {
		if !slices.Contains(only, src) && !slices.Contains(packaged, src) {
			t.Errorf("%s is in the archive and in no package", src)
		}
	}
	policies, err := os.ReadDir("packaging/policies")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range policies {
		src := "packaging/policies/" + p.Name()
		if !strings.HasSuffix(src, "_test.yaml") && (!slices.Contains(packaged, src) || !slices.Contains(archived, src)) {
			t.Errorf("%s is in no package or not in the archive", src)
		}
	}
}

func TestDescriptionForNfpm(t *testing.T) {
	m := testMaker(t)
	d, formats, err := m.describe(m.config.Packages[0], "amd64", []binary{{"agentsh", "amd64", "x/agentsh"}})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"deb", "rpm", "apk", "archlinux"}; !slices.Equal(formats, want) {
		t.Errorf("formats %v, want %v", formats, want)
	}
	data, err := yaml.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"name: agentsh\n", "version: 1.2.3\n", "arch: amd64\n", "dst: /usr/bin/agentsh\n",
		"dst: /etc/agentsh/config.yaml\n", "arch_variant: v1\n"} {
		if !strings.Contains(string(data), want) {
			t.Errorf("the description has no %q", want)
		}
	}
	if strings.Contains(string(data), "{{") || strings.Contains(string(data), "package_name") {
		t.Errorf("the description has words of goreleaser:\n%s", data)
	}
}

func TestConfigurationIsReadStrictly(t *testing.T) {
	name := t.TempDir() + "/c.yml"
	if err := os.WriteFile(name, []byte("version: 2\nuniversal_binaries: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readConfig(name); err == nil || !strings.Contains(err.Error(), "universal_binaries") {
		t.Errorf("a table that is not carried out was accepted: %v", err)
	}
}

func TestTheStandardLibraryHasAVersionThatScannersKnow(t *testing.T) {
	for _, built := range []string{"go1.26.8", "go1.26.8-X:nogreenteagc"} {
		if c := standardLibrary(built); c.Version != "go1.26.8" || c.PURL != "pkg:golang/std@1.26.8" {
			t.Errorf("%s: %s, %s", built, c.Version, c.PURL)
		}
	}
}

func TestProgramsMeetTheirTargets(t *testing.T) {
	dir := t.TempDir()
	build := func(arch string, flags ...string) string {
		out := dir + "/" + arch + strings.Join(flags, "")
		cmd := exec.Command("go", append(append([]string{"build", "-o", out}, flags...), "./packaging/release/testdata/nothing")...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return out
	}
	good := build("arm64", "-ldflags=-s")
	dynamic := "/bin/sh"
	tests := []struct {
		name string
		b    binary
		want string
	}{
		{"a static, stripped program", binary{"agentctl", "arm64", good}, ""},
		{"of another architecture", binary{"agentctl", "amd64", good}, "is for EM_AARCH64"},
		{"with its symbols", binary{"agentctl", "arm64", build("arm64")}, "is not stripped"},
		{"too large", binary{"unknown", "arm64", good}, "at most 0"},
	}
	for _, tt := range tests {
		if err := tt.b.check(); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	native := binary{"agentctl", runtime.GOARCH, dynamic}
	if err := native.check(); err == nil || !strings.Contains(err.Error(), "is not static") {
		t.Errorf("a program that needs libraries: %v", err)
	}
}
