package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/text"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/audit"
)

// eventTypes are the values of --type.
var eventTypes = []string{
	wire.EventSession, wire.EventCommand, wire.EventExec, wire.EventFile, wire.EventNet, wire.EventSignal, wire.EventCall, wire.EventEnv,
	wire.EventHost, wire.EventFault, wire.EventApproval,
}

// eventOptions are the flags of agentsh events.
type eventOptions struct {
	follow    bool
	json      bool
	types     []string
	decisions []string
	command   string
	rules     []string
	since     time.Duration
}

func newEventsCommand() *cobra.Command {
	var o eventOptions
	cmd := &cobra.Command{
		Use:   "events [FILE]",
		Short: "Show the events of an audit log",
		Long: `Show the events of an audit log, one line each.

FILE is by default the audit log that was written to last. --follow goes on until
it is interrupted. Without FILE it also shows the sessions that begin meanwhile.
--json prints the lines as they are in the log.`,
		Example: "  agentsh events --decision deny --since 1h\n  agentsh events --follow --type exec,file",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(); err != nil {
				return err
			}
			if state, all := logsToFollow(args); o.follow && all {
				return o.followAll(cmd.Context(), state, cmd.OutOrStdout())
			}
			path, err := logFile(args)
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), path, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "wait for further events until interrupted")
	f.BoolVar(&o.json, "json", false, "print JSON lines")
	f.StringSliceVar(&o.types, "type", nil, "only events of these `TYPES`: "+strings.Join(eventTypes, ", "))
	f.StringSliceVar(&o.decisions, "decision", nil, "only events with these `DECISIONS`: deny, allow, audit, ...")
	f.StringSliceVar(&o.rules, "rule", nil, "only events that these `RULES` decided")
	f.StringVar(&o.command, "command", "", "only events of the command with this `ID`")
	f.DurationVar(&o.since, "since", 0, "only events of the last `DURATION`")
	return cmd
}

// check refuses filters that can never match.
func (o *eventOptions) check() error {
	for _, t := range o.types {
		if !slices.Contains(eventTypes, t) {
			return failure.New(failure.Usage, fmt.Errorf("--type %s: no such events", t), "the types are "+strings.Join(eventTypes, ", "))
		}
	}
	var words []string
	for e := policy.Deny; e <= policy.Absorb; e++ {
		words = append(words, e.String())
	}
	for _, d := range o.decisions {
		if !slices.Contains(words, d) {
			return failure.New(failure.Usage, fmt.Errorf("--decision %s: no such decision", d), "the decisions are "+strings.Join(words, ", "))
		}
	}
	if o.since < 0 {
		return failure.New(failure.Usage, fmt.Errorf("--since %s: in the future", o.since), "")
	}
	return nil
}

func (o *eventOptions) run(ctx context.Context, path string, w io.Writer) error {
	r, err := audit.OpenReader(path)
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	defer func() { _ = r.Close() }() // opened for reading
	err = o.printer(w).all(ctx, r)
	if err == nil || errors.Is(err, context.Canceled) && o.follow {
		return nil
	}
	return failure.New(failure.Ours, fmt.Errorf("%s: %w", path, err), "")
}

func (o *eventOptions) printer(w io.Writer) *eventPrinter {
	p := &eventPrinter{eventOptions: o, out: bufio.NewWriter(w), terminal: terminal(w), from: time.Now().Add(-o.since)}
	p.color = p.terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return p
}

// eventPrinter prints the events that its options ask for.
type eventPrinter struct {
	*eventOptions
	out      *bufio.Writer
	terminal bool
	color    bool
	from     time.Time
	sessions audit.Unended
}

// all prints events to the end of the log, or while it grows until ctx ends.
func (p *eventPrinter) all(ctx context.Context, r *audit.Reader) error {
	for {
		e, err := r.Next()
		switch {
		case err == nil:
			p.sessions.Add(e)
			if p.wanted(e) {
				p.print(e, r.Line())
			}
			if err := ctx.Err(); err != nil {
				return errors.Join(err, p.out.Flush())
			}
			continue
		case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			return errors.Join(err, p.out.Flush())
		}
		if err := p.out.Flush(); err != nil {
			return err
		}
		if !p.follow && errors.Is(err, io.EOF) {
			return p.killed(r)
		}
		if !p.follow {
			return errors.New("its last line is unfinished")
		}
		if err := r.Wait(ctx); err != nil {
			return err
		}
	}
}

// killed names the sessions that have no end, unless only some events are wanted.
func (p *eventPrinter) killed(r *audit.Reader) error {
	if p.json || len(p.types) > 0 || len(p.rules) > 0 || len(p.decisions) > 0 || p.command != "" {
		return nil
	}
	_, err := p.out.WriteString(killedLines(p.sessions.Killed(r)))
	return errors.Join(err, p.out.Flush())
}

func (p *eventPrinter) wanted(e wire.Event) bool {
	return (len(p.types) == 0 || slices.Contains(p.types, e.Type)) &&
		(len(p.decisions) == 0 || slices.Contains(p.decisions, e.Decision)) &&
		(p.command == "" || e.Command == p.command) &&
		(len(p.rules) == 0 || e.Rule != nil && slices.Contains(p.rules, e.Rule.Name)) &&
		(p.since == 0 || !e.Time.Before(p.from))
}

// print prints one event. A failed write shows when the buffer is
// flushed.
func (p *eventPrinter) print(e wire.Event, line []byte) {
	if p.json {
		if p.terminal {
			line = plainJSON(line)
		}
		fmt.Fprintf(p.out, "%s\n", line)
		return
	}
	fmt.Fprintln(p.out, p.line(e))
}

// shown is how many characters of one text of an event are shown.
const shown = 400

// line is an event for a person: when, what, how it was decided and by which
// rule.
func (p *eventPrinter) line(e wire.Event) string {
	parts := []string{e.Time.Local().Format("15:04:05.000"), fmt.Sprintf("%-7s", text.Short(e.Type, 20)), p.decision(e)}
	add := func(s string) {
		if s != "" {
			parts = append(parts, s)
		}
	}
	add(text.Short(e.Phase, 20))
	add(text.Args(e.Argv, shown))
	if len(e.Argv) == 0 {
		add(text.Short(e.Op, shown))
		add(text.Short(e.Path, shown))
		add(text.Short(e.Target, shown))
	}
	if e.Exit != nil {
		add(exitText(*e.Exit))
	}
	if e.Count > 1 {
		add(fmt.Sprintf("(%d times)", e.Count))
	}
	if e.Rule != nil {
		add(text.Short(fmt.Sprintf("(rule %s, %s)", e.Rule.Name, orDefault(e.Rule.Position(), "the policy's default")), shown))
	}
	if e.Cause != "" {
		add("(" + text.Short(string(e.Cause), 40) + ")")
	}
	if e.Message != "" {
		add("- " + text.Short(e.Message, shown))
	}
	if e.Command != "" {
		add("[" + text.Short(e.Command, 80) + "]")
	}
	return strings.Join(parts, " ")
}

// Colours of a terminal. See console_codes(4).
const (
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	plain  = "\x1b[0m"
)

func (p *eventPrinter) decision(e wire.Event) string {
	word := fmt.Sprintf("%-5s", text.Short(orDefault(e.Decision, "-"), 20))
	switch {
	case !p.color || e.Decision == "" || e.Decision == policy.Allow.String():
		return word
	case e.Decision == policy.Deny.String():
		return red + word + plain
	}
	return yellow + word + plain
}

func exitText(e wire.Exit) string {
	switch e.Kind {
	case wire.ExitExited:
		return fmt.Sprintf("exit %d", e.Code)
	case wire.ExitSignaled, wire.ExitOOM:
		return fmt.Sprintf("%s %d", text.Short(e.Kind, 20), e.Signal)
	}
	return text.Short(strings.TrimSpace(e.Kind+" "+e.Message), shown)
}

// terminal reports whether w is one.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// plainJSON writes every character of a JSON text beyond ASCII, and DEL, as an
// escape: a terminal obeys some of them.
func plainJSON(line []byte) []byte {
	var b bytes.Buffer
	for len(line) > 0 {
		r, size := utf8.DecodeRune(line)
		switch {
		case r < 0x7f:
			b.WriteByte(byte(r))
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		line = line[size:]
	}
	return b.Bytes()
}
