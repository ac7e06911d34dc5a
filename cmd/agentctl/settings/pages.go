package settings

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/controller"
	"agentsh/internal/statedir"
)

// AddPageFlags adds the flags of the commands that make pages.
func AddPageFlags(cmd *cobra.Command, out, format *string) {
	cmd.Flags().StringVar(out, "out", "", "write the page into `FILE`")
	cmd.Flags().StringVarP(format, "output", "o", "", "`FORMAT` of the page: html or markdown (default html, or what the name of FILE says)")
	Complete(cmd, "output", []string{formatHTML, formatMarkdown})
}

// WritePage writes a page in a format.
func WritePage(cmd *cobra.Command, out, format string, html, markdown func(io.Writer) error) error {
	if format == "" {
		format = formatHTML
		if strings.HasSuffix(out, ".md") {
			format = formatMarkdown
		}
	}
	write := html
	switch format {
	case formatHTML:
	case formatMarkdown:
		write = markdown
	default:
		return fmt.Errorf("--output %s: use %s or %s", format, formatHTML, formatMarkdown)
	}
	if out == "" || out == "-" {
		return writePage(cmd.OutOrStdout(), write)
	}
	return writePageFile(out, write)
}

const (
	formatHTML     = "html"
	formatMarkdown = "markdown"
)

func writePage(out io.Writer, write func(io.Writer) error) error {
	w := bufio.NewWriter(out)
	if err := errors.Join(write(w), w.Flush()); err != nil {
		return &output.Failure{Code: controller.ExitSandbox, Err: err}
	}
	return nil
}

// writePageFile replaces a file by the page, completely or not at all.
func writePageFile(name string, write func(io.Writer) error) (err error) {
	if err := statedir.CheckReplaced(name); err != nil {
		return &output.Failure{Code: controller.ExitConfiguration, Err: fmt.Errorf("write page: %w", err), Hint: "- is standard output"}
	}
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".")
	if err != nil {
		return &output.Failure{Code: controller.ExitConfiguration, Err: fmt.Errorf("write page: %w", err)}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err = errors.Join(writePage(f, write), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), name); err != nil {
		return &output.Failure{Code: controller.ExitConfiguration, Err: fmt.Errorf("write page: %w", err)}
	}
	return nil
}
