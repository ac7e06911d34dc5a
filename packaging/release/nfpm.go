package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gopkg.in/yaml.v3"
)

// packages runs nfpm for one architecture and one entry of nfpms.
func (m *maker) packages(ctx context.Context, entry yaml.Node, arch string, programs []binary) error {
	description, formats, err := m.describe(entry, arch, programs)
	if err != nil {
		return err
	}
	data, err := yaml.Marshal(description)
	if err != nil {
		return err
	}
	file := filepath.Join(m.out, "programs", arch, "nfpm.yaml")
	if err := os.WriteFile(file, data, 0o644); err != nil {
		return err
	}
	for _, format := range formats {
		if err := m.run(ctx, nil, io.Discard, m.nfpm, "package", "--config", file, "--packager", format, "--target", m.out+"/"); err != nil {
			return fmt.Errorf("make %s for %s: %w", format, arch, err)
		}
	}
	return nil
}

// describe turns an entry of nfpms, in goreleaser's format, into a file of
// nfpm. Some names differ, and goreleaser adds the programs by itself.
func (m *maker) describe(entry yaml.Node, arch string, programs []binary) (map[string]any, []string, error) {
	copied, err := clone(entry)
	if err != nil {
		return nil, nil, err
	}
	name := removeKey(copied, "file_name_template")
	if name == nil || name.Value != "{{ .ConventionalFileName }}" {
		return nil, nil, fmt.Errorf("line %d: file_name_template must be {{ .ConventionalFileName }}, as nfpm names files", entry.Line)
	}
	if err := m.release.expandAll(copied, arch); err != nil {
		return nil, nil, err
	}
	var formats []string
	if n := removeKey(copied, "formats"); n != nil {
		if err := n.Decode(&formats); err != nil {
			return nil, nil, err
		}
	}
	removeKey(copied, "id")
	var d map[string]any
	if err := copied.Decode(&d); err != nil {
		return nil, nil, err
	}
	d["name"] = d["package_name"]
	delete(d, "package_name")
	d["arch"], d["platform"], d["version"], d["mtime"] = arch, "linux", m.release.version, m.release.time
	if arch == "amd64" {
		d["deb"] = map[string]any{"arch_variant": "v1"} // goreleaser says so of every build without GOAMD64
	}
	contents, _ := d["contents"].([]any)
	for _, p := range programs {
		contents = append(contents, map[string]any{"src": p.path, "dst": "/usr/bin/" + p.name, "file_info": map[string]any{"mode": 0o755}})
	}
	d["contents"] = contents
	return d, formats, nil
}

// clone copies a node and replaces its aliases by what they refer to.
func clone(n yaml.Node) (*yaml.Node, error) {
	var value any
	if err := n.Decode(&value); err != nil {
		return nil, err
	}
	var out yaml.Node
	return &out, out.Encode(value)
}

// removeKey removes a key from a mapping and returns its value, or nil if it is
// missing.
func removeKey(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			value := mapping.Content[i+1]
			mapping.Content = append(mapping.Content[:i], mapping.Content[i+2:]...)
			return value
		}
	}
	return nil
}
