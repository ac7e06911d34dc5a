package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// bom is the part of CycloneDX 1.5 that a release uses. See
// https://cyclonedx.org/docs/1.5/json.
type bom struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Serial       string       `json:"serialNumber"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []*component `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Ref        string     `json:"bom-ref"`
	Type       string     `json:"type"`
	Name       string     `json:"name"`
	Version    string     `json:"version,omitempty"`
	PURL       string     `json:"purl,omitempty"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

// writeSBOM writes a document that lists the components of an archive's
// programs. The programs name their components themselves.
func (m *maker) writeSBOM(ctx context.Context, artifact, document string) error {
	data, err := os.ReadFile(artifact)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	name := filepath.Base(artifact)
	b := bom{
		Format: "CycloneDX", Spec: "1.5", Version: 1, Serial: serial(sum),
		Metadata: metadata{
			Timestamp: m.release.time.Format(time.RFC3339),
			Component: component{Ref: name, Type: "file", Name: name, Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}}},
		},
	}
	programs, err := programsIn(data)
	if err != nil {
		return fmt.Errorf("%s: %w", artifact, err)
	}
	seen := map[string]bool{}
	for _, p := range programs {
		if err := m.describeProgram(ctx, &b, p, seen); err != nil {
			return fmt.Errorf("%s: %s: %w", artifact, p.name, err)
		}
	}
	text, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(document, append(text, '\n'), 0o644)
}

// serial returns the serial number of a document: a UUID of version 8 (RFC
// 9562) that depends on the archive alone.
func serial(sum [32]byte) string {
	u := sum[:16]
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

type packed struct {
	name string
	data []byte
}

// programsIn reads the programs of an archive.
func programsIn(archive []byte) ([]packed, error) {
	zipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	var out []packed
	for r := tar.NewReader(zipped); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) && len(out) > 0 {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		if bytes.HasPrefix(data, []byte(elf.ELFMAG)) {
			out = append(out, packed{header.Name, data})
		}
	}
}

// describeProgram adds a program and its linked components.
func (m *maker) describeProgram(ctx context.Context, b *bom, p packed, seen map[string]bool) error {
	info, err := buildinfo.Read(bytes.NewReader(p.data))
	if err != nil {
		return err
	}
	sum := sha256.Sum256(p.data)
	program := &component{Ref: p.name, Type: "application", Name: p.name, Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}}}
	b.Components = append(b.Components, program)
	parts := []*component{standardLibrary(info.GoVersion)}
	for _, d := range info.Deps {
		parts = append(parts, &component{
			Type: "library", Name: d.Path, Version: d.Version, PURL: "pkg:golang/" + d.Path + "@" + d.Version,
			Properties: []property{{"go.sum", d.Sum}},
		})
	}
	arch := ""
	cgo := false
	for _, s := range info.Settings {
		program.Properties = append(program.Properties, property{"go.build." + s.Key, s.Value})
		cgo = cgo || s.Key == "CGO_ENABLED" && s.Value == "1"
		if s.Key == "GOARCH" {
			arch = s.Value
		}
	}
	if cgo {
		more, err := m.cComponents(ctx, arch)
		if err != nil {
			return err
		}
		parts = append(parts, more...)
	}
	on := dependency{Ref: program.Ref}
	for _, part := range parts {
		part.Ref = part.PURL
		on.DependsOn = append(on.DependsOn, part.Ref)
		if !seen[part.Ref] {
			seen[part.Ref] = true
			b.Components = append(b.Components, part)
		}
	}
	b.Dependencies = append(b.Dependencies, on)
	return nil
}

// standardLibrary is that of a version of Go. The experiments that a program was built with are
// no part of it: who looks for known faults would not find the version.
func standardLibrary(version string) *component {
	version, _, _ = strings.Cut(version, "-X:")
	return &component{Type: "library", Name: "std", Version: version, PURL: "pkg:golang/std@" + strings.TrimPrefix(version, "go")}
}

// cComponents returns the C libraries of this machine that agentsh links.
func (m *maker) cComponents(ctx context.Context, arch string) ([]*component, error) {
	libc := "libc6-dev"
	if arch == "arm64" {
		libc = "libc6-dev-arm64-cross"
	}
	var out []*component
	for _, of := range []struct{ name, pkg string }{{"libseccomp", "libseccomp-dev:" + arch}, {"glibc", libc}} {
		var version bytes.Buffer
		if err := m.run(ctx, nil, &version, "dpkg-query", "-W", "-f=${Version}", of.pkg); err != nil {
			return nil, err
		}
		pkg, _, _ := strings.Cut(of.pkg, ":")
		out = append(out, &component{
			Type: "library", Name: of.name, Version: version.String(),
			PURL: "pkg:deb/debian/" + pkg + "@" + version.String() + "?arch=" + arch,
		})
	}
	return out, nil
}
