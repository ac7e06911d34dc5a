package report

import (
	_ "embed" // for the page template and the style sheet
	"fmt"
	"html/template"
	"io"

	"agentsh/controller/runtime"
	"agentsh/internal/text"
	"agentsh/internal/wire"
	auditreport "agentsh/supervisor/audit/report"
)

//go:embed page.html
var pageText string

//go:embed page.css
var pageStyle string

var page = template.Must(template.New("run").Funcs(template.FuncMap{
	"clock": auditreport.Clock, "stamp": auditreport.Stamp, "span": auditreport.Span, "tone": auditreport.Tone,
	"timeline": func(t auditreport.Timeline) template.HTML { return template.HTML(t.HTML()) },
	"commands": func(c []*auditreport.Command) template.HTML { return template.HTML(auditreport.CommandsHTML(c)) },
	"refusals": func(r []*auditreport.Refusal) template.HTML { return template.HTML(auditreport.RefusalsHTML(r)) },
	"rows":     func(r []*auditreport.Row) template.HTML { return template.HTML(auditreport.RowsHTML(r)) },
	"size":     size, "count": count, "level": level, "kind": kindText, "exit": ExitText,
	"short":   func(s string) string { return text.Short(s, 1000) },
	"several": func(s string) string { return lines(s, textShown) },
}).Parse(pageText))

// HTML writes the report as one self-contained page: it has no script and loads
// nothing. Its content security policy allows only its own style.
func (r *Report) HTML(w io.Writer) error {
	style := auditreport.Style() + pageStyle
	err := page.Execute(w, struct {
		*Report
		Style  template.CSS
		Policy string
	}{r, template.CSS(style), auditreport.ContentPolicy(style)})
	if err != nil {
		return fmt.Errorf("report page: %w", err)
	}
	return nil
}

// level is the class of a finding's severity.
func level(severity fmt.Stringer) string {
	switch s := severity.String(); s {
	case "critical", "high", "medium":
		return s
	}
	return "low"
}

// kindText describes the kind of an agent's event.
func kindText(kind string) string {
	switch kind {
	case runtime.EventSaid:
		return "says"
	case runtime.EventToolResult:
		return "is answered"
	case runtime.EventError:
		return "error"
	case runtime.EventResult:
		return "result"
	}
	return text.Short(kind, 40)
}

// ExitText describes how the agent ended.
func ExitText(e wire.Exit) string {
	switch e.Kind {
	case wire.ExitExited:
		return fmt.Sprintf("exit %d", e.Code)
	case wire.ExitSignaled, wire.ExitOOM:
		return fmt.Sprintf("%s, signal %d", e.Kind, e.Signal)
	}
	if e.Message != "" {
		return text.Short(e.Kind+": "+e.Message, 1000)
	}
	return text.Short(e.Kind, 40)
}
