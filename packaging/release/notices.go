package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// allowed are the accepted licences of linked modules.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// marks recognise a licence by words that only its text has.
var marks = []struct {
	licence string
	words   []string
	not     string
}{
	{"Apache-2.0", []string{"Apache License", "Version 2.0"}, ""},
	{"MIT", []string{"Permission is hereby granted, free of charge"}, ""},
	{"BSD-3-Clause", []string{"Redistribution and use in source and binary forms", "endorse or promote"}, ""},
	{"BSD-2-Clause", []string{"Redistribution and use in source and binary forms"}, "endorse or promote"},
	{"ISC", []string{"Permission to use, copy, modify, and", "with or without fee"}, ""},
	{"GPL", []string{"GNU GENERAL PUBLIC LICENSE"}, ""},
	{"LGPL", []string{"GNU LESSER GENERAL PUBLIC LICENSE"}, ""},
	{"AGPL", []string{"GNU AFFERO GENERAL PUBLIC LICENSE"}, ""},
	{"MPL-2.0", []string{"Mozilla Public License"}, ""},
}

// licences returns the licences that a text contains.
func licences(text string) []string {
	text = strings.Join(strings.Fields(text), " ")
	var out []string
	for _, m := range marks {
		if m.not != "" && strings.Contains(text, m.not) {
			continue
		}
		if !slices.ContainsFunc(m.words, func(w string) bool { return !strings.Contains(text, w) }) {
			out = append(out, m.licence)
		}
	}
	return out
}

// check returns an error for a licence that is not accepted, and for a text
// without a known licence.
func check(found []string) error {
	if len(found) == 0 {
		return errors.New("no licence is recognised")
	}
	for _, l := range found {
		if !slices.Contains(allowed, l) {
			return fmt.Errorf("licence %s is not allowed", l)
		}
	}
	return nil
}

// module is a Go module that a program links.
type module struct{ path, version, sum string }

func (m module) String() string { return m.path + "@" + m.version }

// modules lists the modules of the programs, each once, sorted.
func modules(programs []binary) ([]module, error) {
	all := map[module]bool{}
	for _, p := range programs {
		info, err := buildinfo.ReadFile(p.path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.path, err)
		}
		for _, d := range info.Deps {
			if d.Replace != nil {
				return nil, fmt.Errorf("%s: %s is replaced: say whose licence that is", p.path, d.Path)
			}
			all[module{d.Path, d.Version, d.Sum}] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b module) int { return strings.Compare(a.path, b.path) }), nil
}

// notices returns the copyright notices of everything that the programs
// contain, with the licences.
func (m *maker) notices(ctx context.Context, programs []binary) ([]byte, error) {
	list, err := modules(programs)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("agentsh and agentctl contain the work of others, under the licences below.\n")
	if _, err := m.ask(ctx, "mod", "download", profileModule); err != nil {
		return nil, err
	}
	list = append(list, module{path: profileModule, version: "packaging/containers/seccomp-*.json"})
	for _, one := range list {
		dir, err := m.ask(ctx, "list", "-m", "-f", "{{.Dir}}", one.path)
		if err != nil {
			return nil, err
		}
		if err := notice(&b, one.String(), dir); err != nil {
			return nil, err
		}
	}
	root, err := m.ask(ctx, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	if err := notice(&b, "the Go standard library and runtime, "+runtime.Version(), root); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(cText)
	if err != nil {
		return nil, err
	}
	cLibraries(&b)
	b.Write(text)
	return b.Bytes(), nil
}

// profileModule has the default profile that those in packaging/containers extend.
const profileModule = "github.com/moby/profiles/seccomp"

// ask returns the output of the go command.
func (m *maker) ask(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	err := m.run(ctx, nil, &out, "go", args...)
	return strings.TrimSpace(out.String()), err
}

// notice appends the licence files of a directory under a title.
func notice(b *bytes.Buffer, title, dir string) error {
	var found []string
	for _, pattern := range []string{"LICENSE*", "LICENCE*", "COPYING*", "NOTICE*", "PATENTS"} {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		found = append(found, names...)
	}
	var texts bytes.Buffer
	var kinds []string
	for _, name := range found {
		text, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("%s: %w", title, err)
		}
		kinds = append(kinds, licences(string(text))...)
		texts.WriteString(strings.TrimSpace(string(text)) + "\n\n")
	}
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	if err := check(kinds); err != nil {
		return fmt.Errorf("%s: %w", title, err)
	}
	heading(b, title, strings.Join(kinds, ", "))
	b.Write(texts.Bytes())
	return nil
}

func heading(b *bytes.Buffer, title, licence string) {
	fmt.Fprintf(b, "\n%s\n%s\n%s\n\n", strings.Repeat("=", 78), title, "Licence: "+licence)
}

// cText is the licence of the C libraries that agentsh links.
const cText = "packaging/licences/LGPL-2.1.txt"

// cLibraries lists the parts of agentsh that are not Go modules. The LGPL asks
// for the means to link with another version; these are their source and this
// tree's Makefile.
func cLibraries(b *bytes.Buffer) {
	heading(b, "libseccomp (in agentsh)", "LGPL-2.1-only")
	b.WriteString(
		"Copyright (c) 2012-2024 Red Hat, Inc., Microsoft Corporation, Canonical Ltd. and\nothers; author: Paul Moore and contributors. " +
			"https://github.com/seccomp/libseccomp\n\n",
	)
	heading(b, "GNU C Library (in agentsh)", "LGPL-2.1-or-later")
	b.WriteString("Copyright (C) 1991-2022 Free Software Foundation, Inc. and others.\nhttps://sourceware.org/glibc\n\n")
	heading(b, "libgcc (in agentsh)", "GPL-3.0-or-later WITH GCC-exception-3.1")
	b.WriteString(
		"Copyright (C) 1987-2022 Free Software Foundation, Inc. The exception permits\nprograms that gcc compiled to be conveyed under terms " +
			"of their own choice.\n\n",
	)
	b.WriteString(
		"The source of agentsh and the instructions to build it are public: \"make build\"\nlinks it with the libraries of the machine. The " +
			"text of the LGPL, version 2.1:\n\n",
	)
}
