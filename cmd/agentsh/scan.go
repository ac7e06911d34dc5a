package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/controller/scan"
	"agentsh/internal/rootfs"
	"agentsh/internal/text"
)

// scanAll at the end of a path asks for every file below it.
const scanAll = "/..."

// newScanCommand runs inside the scans that a controller runs outside.
func newScanCommand() *cobra.Command {
	var asJSON bool
	var skip []string
	cmd := &cobra.Command{
		Use:   "scan [DIR|FILE]...",
		Short: "Scan what an agent would take in",
		Long: `scan looks for what would lead an agent astray, as 'agentctl scan context' does,
from inside a sandbox: what a run has assembled is scanned once more where the
agent will read it. Of a directory the files are scanned that agents read without
being told to; DIR` + scanAll + ` scans all of them. A file that may not be read is left
out: the agent cannot read it either.

With --json each finding is one line, and the last line counts the files. The
exit status is 0 when everything was scanned, whatever was found.`,
		Example: "  agentsh scan --json /sandbox/workspace/app /sandbox/claude-config" + scanAll,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := scanOptions(skip)
			if err != nil {
				return err
			}
			p := scanPrinter{out: cmd.OutOrStdout(), json: asJSON, scanner: scan.New(o)}
			for _, name := range args {
				if err := p.path(cmd.Context(), name); err != nil {
					return failure.New(failure.Ours, err, "")
				}
			}
			if err := p.end(); err != nil {
				return failure.New(failure.Ours, err, "")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON lines")
	cmd.Flags().StringSliceVar(
		&skip,
		"skip",
		nil,
		"`SCANNER` to leave out: unicode_normalizer, context_injection, ssrf_validator or secret_redactor; may be given again",
	)
	return cmd
}

// scanOptions are all scanners but those that are left out.
func scanOptions(skip []string) (scan.Options, error) {
	o := scan.All()
	o.Unreadable = true
	for _, name := range skip {
		switch name {
		case "unicode_normalizer":
			o.Unicode = false
		case "context_injection":
			o.Injection, o.Settings = false, false
		case "ssrf_validator":
			o.URLs = false
		case "secret_redactor":
			o.Secrets = false
		default:
			return o, fmt.Errorf("unknown scanner %q", name)
		}
	}
	return o, nil
}

// scanPrinter scans paths and prints each finding at once.
type scanPrinter struct {
	out     io.Writer
	json    bool
	scanner *scan.Scanner
	files   int
}

// path scans a directory or a file.
func (p *scanPrinter) path(ctx context.Context, name string) error {
	dir, all := strings.CutSuffix(name, scanAll)
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer f.Close()
		kind, _ := scan.Classify(strings.TrimPrefix(filepath.ToSlash(dir), "/"))
		found, err := p.scanner.Text(ctx, dir, kind, f)
		p.files++
		return errors.Join(p.print(found), err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	var printed error
	files, err := p.scanner.Tree(ctx, rootfs.New(root), all, func(found []scan.Finding) {
		for i := range found {
			found[i].File = filepath.Join(dir, found[i].File)
		}
		printed = errors.Join(printed, p.print(found))
	})
	p.files += files
	return errors.Join(printed, err)
}

func (p *scanPrinter) print(found []scan.Finding) error {
	for i, f := range found {
		var err error
		if p.json {
			err = json.NewEncoder(p.out).Encode(scan.Line{Finding: &found[i]})
		} else {
			_, err = fmt.Fprintln(p.out, f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *scanPrinter) end() error {
	if p.json {
		return json.NewEncoder(p.out).Encode(scan.Line{Files: p.files, Done: true})
	}
	_, err := fmt.Fprintf(p.out, "%s\n", text.Count(p.files, "file"))
	return err
}
