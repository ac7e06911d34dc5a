package telemetry

import (
	"net"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"

	"agentsh/controller"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// Values of attributes of metrics. Others are counted as "other": a supervisor that lies makes no
// further series.
var (
	types = []string{
		wire.EventSession, wire.EventCommand, wire.EventExec, wire.EventFile, wire.EventNet, wire.EventSignal, wire.EventCall, wire.EventEnv,
		wire.EventHost, wire.EventFault, wire.EventApproval,
	}
	decisions = []string{"", "allow", "deny", "approve", "audit", "redirect", "soft_delete", "absorb", "degraded"}
)

// known is a value, if it is one of a list.
func known(value string, list []string) string {
	if slices.Contains(list, value) {
		return value
	}
	return "other"
}

// clip is a valid text of bounded length.
func clip(s string) string { return text.Short(clean(s), maxAttribute) }

// ofRun describes a run at its start.
func ofRun(r controller.Result, m controller.Member) []attribute.KeyValue {
	out := append(ofLogs(r, m), attribute.String("agentsh.harness", clip(r.Harness)), attribute.String("agentsh.repo", clip(r.Repo)))
	for name, value := range m.Labels {
		out = append(out, attribute.String("agentsh.label."+clip(name), clip(value)))
	}
	return out
}

// ofLogs are the attributes of each event of a run.
func ofLogs(r controller.Result, m controller.Member) []attribute.KeyValue {
	out := []attribute.KeyValue{attribute.String("agentsh.run.id", clip(r.RunID)), attribute.String("agentsh.backend", clip(r.Backend))}
	if m.Batch != "" {
		out = append(out, attribute.String("agentsh.batch.id", clip(m.Batch)), attribute.String("agentsh.batch.run", clip(m.Name)))
	}
	return out
}

// ofEnd describes a run at its end. Names of tokens are those of OpenTelemetry's conventions for
// generative AI.
func ofEnd(r controller.Result) []attribute.KeyValue {
	out := []attribute.KeyValue{
		attribute.String("agentsh.status", clip(r.Status)), attribute.Int("agentsh.exit_code", r.ExitCode),
		attribute.Int("agentsh.commands", r.Commands), attribute.Int("agentsh.refusals", r.Refusals),
		attribute.Int("agentsh.commits", len(r.Commits)), attribute.Int("agentsh.changed", len(r.Changed)),
		attribute.Int("agentsh.findings", len(r.Findings)), attribute.String("agentsh.agent", clip(r.Agent)),
		attribute.String("agentsh.runtime", clip(r.Runtime)), attribute.String("agentsh.branch", clip(r.Branch)),
	}
	if u := r.Usage; u != nil {
		out = append(out, attribute.String("gen_ai.response.model", clip(u.Model)),
			attribute.Int64("gen_ai.usage.input_tokens", u.Input), attribute.Int64("gen_ai.usage.output_tokens", u.Output),
			attribute.Float64("agentsh.cost_usd", u.CostUSD))
	}
	return out
}

// severityOf is how bad an event is.
func severityOf(e wire.Event) (log.Severity, string) {
	switch {
	case e.Type == wire.EventFault:
		return log.SeverityError, "ERROR"
	case e.Decision == "deny", e.Decision == "degraded":
		return log.SeverityWarn, "WARN"
	}
	return log.SeverityInfo, "INFO"
}

// bodyOf is an event in one sentence.
func bodyOf(e wire.Event) string {
	if e.Message != "" {
		return clip(e.Message)
	}
	var words []string
	for _, w := range []string{e.Type, e.Phase, e.Decision, e.Op, e.Path, e.Target} {
		if w != "" {
			words = append(words, text.Visible(clean(w)))
		}
	}
	if len(e.Argv) > 0 {
		words = append(words, text.Args(e.Argv, maxAttribute))
	}
	return clip(strings.Join(words, " "))
}

// pairs collects attributes that have a value.
type pairs []attribute.KeyValue

func (p *pairs) text(name, value string) {
	if value != "" {
		*p = append(*p, attribute.String(name, clip(value)))
	}
}

func (p *pairs) number(name string, n int64) {
	*p = append(*p, attribute.Int64(name, n))
}

// own are the attributes that only agentsh has.
func own(e wire.Event) []attribute.KeyValue {
	var p pairs
	p.number("agentsh.seq", int64(min(e.Seq, 1<<62)))
	p.text("agentsh.type", e.Type)
	p.text("agentsh.phase", e.Phase)
	p.text("agentsh.decision", e.Decision)
	p.text("agentsh.op", e.Op)
	p.text("agentsh.session", e.Session)
	p.text("agentsh.command", e.Command)
	p.text("agentsh.mechanism", e.Mechanism)
	p.text("agentsh.by", e.By)
	p.text("agentsh.hint", e.Hint)
	p.text("agentsh.cause", string(e.Cause))
	if e.Rule != nil {
		p.text("agentsh.rule.at", e.Rule.Position())
	}
	if e.Count > 1 {
		p.number("agentsh.count", int64(e.Count))
	}
	return p
}

// class is a class of OCSF events with an activity.
type class struct{ category, class, activity int64 }

// Classes and activities of https://schema.ocsf.io, version 1.
const (
	activityOther = 99

	categorySystem, categoryNetwork, categoryApplication = 1, 4, 6

	classFile, classKernel, classProcess = 1001, 1003, 1007
	classNetwork, classDNS               = 4001, 4003
	classLifecycle                       = 6002
)

// fileActivities are the activities of operations on files; others are "other".
var fileActivities = map[string]int64{
	"create": 1, "mkdir": 1, "mknod": 1, "link": 1, "symlink": 1, "read": 2, "list": 2, "stat": 2, "write": 3, "delete": 4, "rmdir": 4,
	"rename": 5, "chmod": 7, "chown": 7, "xattr": 6, "utime": 6,
}

// classOf is the class of an event. The base class (0) is for what OCSF has no class for.
func classOf(e wire.Event) class {
	switch e.Type {
	case wire.EventSession:
		return class{categoryApplication, classLifecycle, byPhase(e, 3, 4)} // start, stop
	case wire.EventCommand:
		return class{categorySystem, classProcess, byPhase(e, 1, 2)} // launch, terminate
	case wire.EventExec:
		return class{categorySystem, classProcess, 1}
	case wire.EventSignal:
		return class{categorySystem, classProcess, activityOther}
	case wire.EventFile, wire.EventHost:
		activity, has := fileActivities[e.Op]
		if !has {
			activity = activityOther
		}
		return class{categorySystem, classFile, activity}
	case wire.EventCall:
		return class{categorySystem, classKernel, 4} // invoke
	case wire.EventNet:
		switch {
		case e.Net != nil && e.Net.Via == "dns":
			return class{categoryNetwork, classDNS, 1} // query
		case e.Decision == "deny":
			return class{categoryNetwork, classNetwork, 5} // refuse
		}
		return class{categoryNetwork, classNetwork, byPhase(e, 1, 2)} // open, close
	}
	return class{0, 0, activityOther}
}

func byPhase(e wire.Event, begin, end int64) int64 {
	if e.Phase == "end" {
		return end
	}
	return begin
}

// ocsf are the attributes of an event by the names of OCSF, below "ocsf.".
func ocsf(e wire.Event) []attribute.KeyValue {
	c := classOf(e)
	var p pairs
	p.number("ocsf.category_uid", c.category)
	p.number("ocsf.class_uid", c.class)
	p.number("ocsf.activity_id", c.activity)
	p.number("ocsf.type_uid", c.class*100+c.activity)
	p.number("ocsf.severity_id", map[log.Severity]int64{log.SeverityInfo: 1, log.SeverityWarn: 3, log.SeverityError: 4}[first(severityOf(e))])
	switch e.Decision {
	case "deny":
		p.number("ocsf.action_id", 2)
		p.number("ocsf.disposition_id", 2) // blocked
	case "allow", "audit":
		p.number("ocsf.action_id", 1)
		p.number("ocsf.disposition_id", 1)
	case "redirect", "soft_delete":
		p.number("ocsf.action_id", 4) // modified
	}
	p.text("ocsf.message", e.Message)
	if e.Rule != nil {
		p.text("ocsf.policy.name", e.Rule.Name)
	}
	if e.Process != nil {
		p.number("ocsf.actor.process.pid", int64(e.Process.PID))
		p.text("ocsf.actor.process.file.path", e.Process.Exe)
	}
	switch c.class {
	case classProcess:
		p.text("ocsf.process.file.path", e.Path)
		if len(e.Argv) > 0 {
			p.text("ocsf.process.cmd_line", text.Args(e.Argv, maxAttribute))
		}
		if e.Exit != nil {
			p.number("ocsf.exit_code", int64(e.Exit.ExitCode()))
		}
	case classFile:
		p.text("ocsf.file.path", e.Path)
		p.text("ocsf.file_result.path", e.Target)
	case classDNS:
		p.text("ocsf.query.hostname", hostOf(e.Target))
	case classNetwork:
		p.destination(e)
	}
	return p
}

func first[A, B any](a A, _ B) A { return a }

// destination describes where a connection leads.
func (p *pairs) destination(e wire.Event) {
	p.text("ocsf.dst_endpoint.hostname", hostOf(e.Target))
	if _, port, err := net.SplitHostPort(e.Target); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			p.number("ocsf.dst_endpoint.port", int64(n))
		}
	}
	if e.Net == nil {
		return
	}
	if host, _, err := net.SplitHostPort(e.Net.Address); err == nil {
		p.text("ocsf.dst_endpoint.ip", host)
	}
	if e.Phase == "end" {
		p.number("ocsf.traffic.bytes_out", e.Net.Sent)
		p.number("ocsf.traffic.bytes_in", e.Net.Received)
	}
}

// hostOf is the host of "host:port", or all of it.
func hostOf(target string) string {
	if host, _, err := net.SplitHostPort(target); err == nil {
		return host
	}
	return target
}
