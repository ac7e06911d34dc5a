package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/supervisor/audit"
	auditreport "agentsh/supervisor/audit/report"
)

func newReportCommand() *cobra.Command {
	var format, session string
	cmd := &cobra.Command{
		Use:   "report [FILE]",
		Short: "Make one page of an audit log",
		Long: `Make one page of an audit log: the commands with what was decided and how they
ended, refusals by rule, files and signals. The HTML page has a timeline, needs
no other file and loads nothing.

FILE is by default the audit log that was written to last.`,
		Example: "  agentsh report -o html > report.html",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if format != "markdown" && format != "html" {
				return failure.New(failure.Usage, fmt.Errorf("--output %s: not a format", format), "use markdown or html")
			}
			path, err := logFile(args)
			if err != nil {
				return err
			}
			r, err := readReport(path, session)
			if err != nil {
				return failure.New(failure.Ours, err, "")
			}
			out := bufio.NewWriter(cmd.OutOrStdout())
			write := r.Markdown
			if format == "html" {
				write = r.HTML
			}
			if err := errors.Join(write(out), out.Flush()); err != nil {
				return failure.New(failure.Ours, err, "")
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "markdown", "`FORMAT` of the page: markdown or html")
	cmd.Flags().StringVar(&session, "session", "", "only the session with this `ID`")
	return cmd
}

// readReport reads a log to its end. Whether the log is whole is a part of the
// page; a line that is no event ends it.
func readReport(path, session string) (*auditreport.Report, error) {
	key, err := keyFile(path)
	if err != nil {
		return nil, err
	}
	c := verifyLog(path, key, false)
	if c.failed != nil {
		c = verifyLog(path, "", true)
	}
	r := &auditreport.Report{Source: path, Verified: c.Good, Check: c.sentence()}
	log, err := audit.OpenReader(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // opened for reading
	for {
		e, err := log.Next()
		var line *audit.LineError
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &line) {
			break // the check reports it
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if session == "" || e.Session == session {
			r.Add(e)
		}
	}
	if session != "" && len(r.Sessions) == 0 {
		return nil, fmt.Errorf("%s: no session %q", path, session)
	}
	r.Killed(c.Killed)
	r.Finish()
	return r, nil
}
