package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/text"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/audit"
)

// How a connection that agentsh net shows stands.
const (
	netOpen   = "open"
	netClosed = "closed"
	netDenied = "denied"
)

// netRow is one connection of a session, open or past.
type netRow struct {
	State string `json:"state"`
	wire.Connection
	Message string `json:"message,omitempty"`
}

func newNetCommand() *cobra.Command {
	var asJSON, all bool
	var past int
	cmd := &cobra.Command{
		Use:   "net [SESSION]",
		Short: "Show the connections of a running session",
		Long: `Show the connections of a running session: those that are open, with the bytes that
went so far, then those that ended or were denied, newest last. SESSION may be left
out when only one runs. 'agentsh events --follow --type net' shows them as they come.`,
		Example: "  agentsh net work\n  agentsh net work --json --past 1000",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if past < 0 {
				return failure.Usagef("--past %d: less than none", past)
			}
			client, one, err := attachOne(cmd.Context(), strings.Join(args, ""))
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }()
			open, err := client.Connections(cmd.Context())
			if err != nil {
				return failure.New(failure.Ours, err, "")
			}
			rows := make([]netRow, 0, len(open))
			for _, c := range open {
				rows = append(rows, netRow{State: netOpen, Connection: c})
			}
			ended, err := pastConnections(one.Audit, one.Session, past, all)
			if err != nil {
				return failure.New(failure.Ours, fmt.Errorf("%s: %w", one.Audit, err), "--past 0 shows what is open only")
			}
			rows = append(rows, ended...)
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(rows)
			}
			return printNet(cmd.OutOrStdout(), rows)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	cmd.Flags().IntVar(&past, "past", 50, "how many `CONNECTIONS` of the past are shown, 0 for none")
	cmd.Flags().BoolVar(&all, "requests", false, "show each inspected HTTP request, too")
	return cmd
}

// pastConnections reads the last so many connections of a session that ended or
// were denied out of its audit log.
func pastConnections(path, session string, most int, requests bool) ([]netRow, error) {
	if most == 0 {
		return nil, nil
	}
	r, err := audit.OpenReader(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // opened for reading
	var rows []netRow
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return rows[max(len(rows)-most, 0):], nil
		}
		if err != nil {
			return nil, err
		}
		if e.Type != wire.EventNet || e.Session != session {
			continue
		}
		if row, shown := netEvent(e, requests); shown {
			if rows = append(rows, row); len(rows) > 2*most {
				rows = append(rows[:0], rows[len(rows)-most:]...)
			}
		}
	}
}

// netEvent is an event as a row: of the end of a connection, of a denial, or of a
// request where these are asked for.
func netEvent(e wire.Event, requests bool) (netRow, bool) {
	row := netRow{State: netClosed, Message: e.Message}
	row.Target, row.Command, row.Process, row.Rule, row.Started = e.Target, e.Command, e.Process, e.Rule, e.Time
	if e.Net != nil {
		row.Net = *e.Net
		row.Started = e.Time.Add(-time.Duration(e.Net.Millis) * time.Millisecond)
	}
	switch e.Op {
	case "":
	case wire.OpUnreachable:
		row.State = e.Op
	default:
		row.Target = strings.TrimSpace(e.Op + " " + e.Target + " " + e.Path)
	}
	switch {
	case e.Decision == policy.Deny.String():
		row.State = netDenied
		return row, true
	case e.Phase == "end":
		return row, true
	case e.Phase == "request":
		row.State = "request"
		return row, requests
	}
	return row, false
}

// printNet prints a table; without connections, nothing.
func printNet(out io.Writer, rows []netRow) error {
	if len(rows) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STATE\tTARGET\tADDRESS\tSENT\tRECEIVED\tTIME\tPROGRAM\tRULE\tWHY")
	for _, r := range rows {
		program := "-"
		if r.Process != nil {
			program = orDefault(text.Short(r.Process.Exe, shown), "-")
		}
		fmt.Fprintf(
			w,
			"%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n",
			r.State,
			text.Short(r.Target, shown),
			orDefault(r.Address, "-"),
			r.Sent,
			r.Received,
			time.Duration(r.Millis)*time.Millisecond,
			program,
			text.Visible(ruleName(r.Rule)),
			orDefault(text.Short(r.Message, shown), "-"),
		)
	}
	return w.Flush()
}
