package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/text"
	"agentsh/internal/wire"
	"agentsh/supervisor/audit"
)

// exitBad is the exit status of a check that found a fault.
const exitBad = 1

func newAuditCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "audit", Short: "Check audit logs", Args: cobra.NoArgs}
	cmd.AddCommand(newAuditVerifyCommand())
	return cmd
}

func newAuditVerifyCommand() *cobra.Command {
	var key string
	var chainOnly, asJSON bool
	cmd := &cobra.Command{
		Use: "verify [FILE]",
		Example: "  agentsh audit verify\n" +
			"  agentsh audit verify --json audit.jsonl",
		Short: "Check that nothing in an audit log was changed",
		Long: `Check that nothing in an audit log was changed, removed, added or moved, and
that its end is not before the one its anchor names.

The anchor is made with a key that only the owner of the logs can read; --chain-only
goes without it and cannot see that whole lines at the end are missing, or that
the log was replaced by another. Sessions without an end are named: their
supervisors were killed or crashed. The exit status is 1 when the log is not good,
125 when it could not be checked.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := logFile(args)
			if err != nil {
				return err
			}
			if key == "" {
				if key, err = keyFile(path); err != nil {
					return err
				}
			}
			c := verifyLog(path, key, chainOnly)
			if err := c.print(cmd.OutOrStdout(), asJSON); err != nil {
				return failure.New(failure.Ours, err, "")
			}
			return c.failure()
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "`FILE` with the key of the anchor (default: FILE.key, else the state directory's)")
	cmd.Flags().BoolVar(&chainOnly, "chain-only", false, "check the chain without the anchor and its key")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

// checked is the result of a verification.
type checked struct {
	File     string     `json:"file"`
	Good     bool       `json:"good"`
	Anchored bool       `json:"anchored"`          // the anchor was checked as well
	Last     audit.Head `json:"last"`              // the last event that is good
	Line     int        `json:"line,omitempty"`    // the first bad one
	Problem  string     `json:"problem,omitempty"` // why it is not good
	Killed   []string   `json:"killed,omitempty"`  // sessions without an end: their supervisors were killed or crashed

	failed error // it could not be checked
	hint   string
}

func verifyLog(path, key string, chainOnly bool) checked {
	c := checked{File: path, Anchored: !chainOnly}
	f, err := os.Open(path)
	if err != nil {
		c.failed = err
		return c
	}
	defer f.Close()
	if chainOnly {
		c.Last, err = audit.Verify(f)
	} else {
		k, missing := os.Open(key)
		if missing != nil {
			c.failed, c.hint = fmt.Errorf("audit key: %w", missing), "run as the owner of the logs, name the key with --key, or use --chain-only"
			return c
		}
		k.Close()
		c.Last, err = audit.VerifyFile(path, key)
	}
	if c.Good = err == nil; c.Good {
		if c.Killed, c.failed = audit.Killed(path); c.failed != nil {
			return c
		}
	}
	var line *audit.LineError
	if errors.As(err, &line) {
		c.Line = line.Line
		c.Problem = line.Error()
	} else if err != nil {
		c.Problem = err.Error()
	}
	return c
}

// sentence says the result to a person.
func (c checked) sentence() string {
	switch {
	case c.failed != nil:
		return "not checked: " + c.failed.Error()
	case !c.Good && c.Last.Seq == 0:
		return "NOT good: " + c.Problem
	case !c.Good:
		return fmt.Sprintf("NOT good: %s; good up to event %d", c.Problem, c.Last.Seq)
	case !c.Anchored:
		return fmt.Sprintf("the chain of %s is whole; its anchor was not checked", text.Count(c.Last.Seq, "event"))
	}
	return text.Count(c.Last.Seq, "event") + ", whole and anchored"
}

func (c checked) print(w io.Writer, asJSON bool) error {
	if c.failed != nil {
		return nil
	}
	if asJSON {
		return json.NewEncoder(w).Encode(c)
	}
	_, err := fmt.Fprintf(w, "%s: %s\n%s", c.File, printable(c.sentence()), killedLines(c.Killed))
	return err
}

// killedLines says which sessions have no end, one a line.
func killedLines(sessions []string) string {
	var b strings.Builder
	for _, s := range sessions {
		fmt.Fprintf(&b, "session %s: %s (%s): the log has no end of it\n", printable(s), wire.CauseSupervisor.Sentence(""), wire.CauseSupervisor)
	}
	return b.String()
}

func (c checked) failure() error {
	switch {
	case c.failed != nil:
		return failure.New(failure.Ours, c.failed, c.hint)
	case !c.Good:
		return failure.New(exitBad, nil, "")
	}
	return nil
}
