package openshell

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"agentsh/controller/sandbox"
	"agentsh/internal/lazy"
	pb "agentsh/internal/openshellpb"
	"agentsh/internal/text"
)

// Bounds of the log of a sandbox. A gateway has at most 2000 lines.
const (
	maxLogLine = 600 // characters of a message
	maxLogWord = 60  // characters of another part of a line
	maxDenied  = 20  // denials that a result lists
)

// log returns what OpenShell says about the sandbox. It is nil if the gateway was never asked for the sandbox.
func (p *place) log(ctx context.Context) (*sandbox.PlaceLog, error) {
	p.mu.Lock()
	made := p.asked
	p.mu.Unlock()
	if !made {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	g := p.b.gateway
	r, err := g.client.GetSandboxLogs(ctx, &pb.GetSandboxLogsRequest{Sandbox: p.name(), WorkspaceScope: g.scope()})
	if err != nil {
		return nil, explain("get the log of the sandbox", err)
	}
	return written(r.GetLogs(), sandbox.MaxPlaceLog), nil
}

// written is a log as the record has it, of at most limit bytes. Denials are the last lines to be left out, and of two lines the older one
// is the first.
func written(logs []*pb.SandboxLogLine, limit int) *sandbox.PlaceLog {
	out := &sandbox.PlaceLog{By: who}
	lines := make([]string, len(logs))
	denials := make([]bool, len(logs))
	size := 0
	for i, l := range logs {
		lines[i] = line(l)
		size += len(lines[i]) + 1
		if denials[i] = denied(l); denials[i] {
			out.Denials++
			if len(out.Denied) < maxDenied {
				out.Denied = append(out.Denied, text.Short(l.GetMessage(), maxLogLine))
			}
		}
	}
	for _, last := range []bool{false, true} {
		for i := range lines {
			if size > limit && denials[i] == last {
				size -= len(lines[i]) + 1
				lines[i] = ""
				out.LeftOut++
			}
		}
	}
	lines = slices.DeleteFunc(lines, func(s string) bool { return s == "" })
	out.Lines = len(lines)
	if len(lines) > 0 {
		out.Text = []byte(strings.Join(lines, "\n") + "\n")
	}
	return out
}

// line is one line of a log: its time, who said it, its level, its part of the program, the message and its fields. Text of the sandbox is
// in the message and in fields: characters that end a line are escaped.
func line(l *pb.SandboxLogLine) string {
	when := "-"
	if t := l.GetEventTime(); t.IsValid() {
		when = t.AsTime().Format("2006-01-02T15:04:05.000Z")
	}
	parts := []string{when}
	for _, word := range []string{source(l), l.GetLevel(), l.GetTarget()} {
		parts = append(parts, quoted(word, maxLogWord))
	}
	parts = append(parts, text.Short(l.GetMessage(), maxLogLine))
	names := make([]string, 0, len(l.GetFields()))
	for name := range l.GetFields() {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		parts = append(parts, quoted(name, maxLogWord)+"="+quoted(l.GetFields()[name], maxLogLine))
	}
	return text.Short(strings.Join(parts, " "), 4*maxLogLine)
}

func source(l *pb.SandboxLogLine) string {
	if l.GetSource() == "" {
		return "gateway"
	}
	return l.GetSource()
}

// quoted is a word as it is, or in quotes if it is empty or could be taken for several.
func quoted(word string, limit int) string {
	if word == "" || strings.ContainsAny(word, " \"=\\") {
		return strconv.Quote(text.Short(word, limit))
	}
	return text.Short(word, limit)
}

// denial matches the beginning of an event which says that something was denied: its class and activity, its severity, and
// what was decided. The sandbox has influence on what follows, and on the activity of HTTP, which is the method. OpenShell's page
// on its log describes the form (docs/observability/logging.mdx at 2f7fb655).
var denial = lazy.Regexp(`^(?:(?:NET|HTTP|SSH):[^\s\[\]]{1,64} \[[A-Z]{1,8}\] (?:DENIED|BLOCKED)|` +
	`FINDING:(?:DENIED|BLOCKED) \[[A-Z]{1,8}\])(?: |$)`)

// denied reports whether a line says that OpenShell denied something.
func denied(l *pb.SandboxLogLine) bool {
	return l.GetLevel() == "OCSF" && l.GetTarget() == "ocsf" && denial().MatchString(l.GetMessage())
}
