// Command release builds a release from the tables in .goreleaser.yml:
// programs, archives, packages, bills of material and checksums. The same tree
// and the same SOURCE_DATE_EPOCH give the same bytes on any machine. Run it in
// the root of the tree on Debian, whose packages contain the C libraries.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

const usage = `what to make is missing or has too many words:
       release packages [flags]              make everything below --out
       release files [flags]                 make what the tables name below out/package
       release sbom [flags] ARTIFACT FILE    describe an archive`

// maker builds one release.
type maker struct {
	config  *config
	release release
	out     string // directory
	nfpm    string // program
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	command, rest := "", args
	if len(args) > 0 {
		command, rest = args[0], args[1:]
	}
	var m maker
	var epoch int64
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprintln(f.Output(), usage)
		f.PrintDefaults()
	}
	f.StringVar(&m.release.version, "version", "", "version `V` of the release, as in semantic versioning, without a v")
	f.StringVar(&m.release.commit, "commit", "none", "commit `ID` that is released")
	f.Int64Var(&epoch, "epoch", -1, "`SECONDS` since 1970: the time of every file (SOURCE_DATE_EPOCH)")
	f.StringVar(&m.out, "out", "out/packages", "`DIR` to make, which is emptied before")
	f.StringVar(&m.nfpm, "nfpm", "nfpm", "`PROGRAM` that makes packages")
	if err := f.Parse(rest); err != nil {
		return err
	}
	if epoch < 0 {
		return errors.New("--epoch is missing")
	}
	m.release.time = time.Unix(epoch, 0).UTC()
	var err error
	if m.config, err = readConfig(".goreleaser.yml"); err != nil {
		return err
	}
	m.release.project = m.config.ProjectName
	if command == "sbom" {
		if f.NArg() != 2 {
			return errors.New(usage)
		}
		return m.writeSBOM(ctx, f.Arg(0), f.Arg(1))
	}
	if f.NArg() != 0 || m.release.version == "" {
		return errors.New(usage)
	}
	switch command {
	case "packages":
		return m.everything(ctx)
	case "files":
		programs, err := m.compile(ctx, func(arch string) bool { return arch == runtime.GOARCH })
		if err != nil {
			return err
		}
		return m.generate(ctx, programs)
	default:
		return errors.New(usage)
	}
}

// everything builds the release in an empty directory.
func (m *maker) everything(ctx context.Context) error {
	if err := os.RemoveAll(m.out); err != nil {
		return err
	}
	programs, err := m.compile(ctx, func(string) bool { return true })
	if err != nil {
		return err
	}
	if err := m.generate(ctx, of(programs, runtime.GOARCH)); err != nil {
		return err
	}
	for _, arch := range architectures(programs) {
		for _, a := range m.config.Archives {
			if err := m.archive(a, arch, of(programs, arch)); err != nil {
				return err
			}
		}
		for _, p := range m.config.Packages {
			if err := m.packages(ctx, p, arch, of(programs, arch)); err != nil {
				return err
			}
		}
	}
	archives, err := filepath.Glob(filepath.Join(m.out, "*.tar.gz"))
	if err != nil {
		return err
	}
	for _, a := range archives {
		if err := m.writeSBOM(ctx, a, a+".cdx.json"); err != nil {
			return err
		}
	}
	return m.checksums()
}

// of returns the programs for one architecture.
func of(programs []binary, arch string) []binary {
	var out []binary
	for _, p := range programs {
		if p.arch == arch {
			out = append(out, p)
		}
	}
	return out
}

func architectures(programs []binary) []string {
	var out []string
	for _, p := range programs {
		if !slices.Contains(out, p.arch) {
			out = append(out, p.arch)
		}
	}
	return out
}

// checksums writes the digests of all files in the format of sha256sum -c.
func (m *maker) checksums() error {
	entries, err := os.ReadDir(m.out)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(m.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(data), e.Name())
	}
	return os.WriteFile(filepath.Join(m.out, m.config.Checksum.NameTemplate), []byte(b.String()), 0o644)
}
