package egress

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"agentsh/internal/text"
	"agentsh/internal/wire"
	"agentsh/policy"
)

// How a connection reached the proxy, as events name it.
const (
	viaConnect     = "connect"
	viaHTTP        = "http"
	viaSOCKS       = "socks"
	viaTransparent = "transparent"
	viaDNS         = "dns"
)

// refusal is why a connection or request does not go ahead. The client reads it; a
// denial is recorded.
type refusal struct {
	failure bool   // the destination failed; nothing was denied
	unclear bool   // servers may read the request in different ways
	absent  string // the decision on a name that is permitted and has no address
	what    string // was refused, as its event has it
	diag    policy.Diagnostic
}

// failed is a refusal that nobody decided: something failed.
func failed(format string, args ...any) *refusal {
	return &refusal{failure: true, diag: policy.Diagnostic{Message: fmt.Sprintf(format, args...)}}
}

// unresolved is a failure to look up a name that a decision permits.
func unresolved(d policy.HostDecision, name string, err error) *refusal {
	r := failed("look up %s: %v", name, err)
	r.absent = d.Effect.String()
	r.diag.Rule, r.diag.Pos = d.Diagnostic.Rule, d.Diagnostic.Pos
	return r
}

// against is a refusal by one of the proxy's own rules, whatever the policy says.
func against(rule, message, hint string) *refusal {
	return &refusal{diag: policy.Diagnostic{Rule: rule, Message: message, Hint: hint}}
}

// malformed is a refusal of a request that servers may read in different ways.
func malformed(message, hint string) *refusal {
	r := against("request", message, hint)
	r.unclear = true
	return r
}

// denied is a refusal by the policy.
func denied(diag policy.Diagnostic) *refusal { return &refusal{diag: diag} }

// status is the HTTP status of the refusal.
func (r *refusal) status() int {
	switch {
	case r.failure:
		return http.StatusBadGateway
	case r.unclear:
		return http.StatusBadRequest
	}
	return http.StatusForbidden
}

// text is the refusal as the client reads it: what was refused, by which rule, and
// what would be allowed. agentsh prints the same lines where the client does not.
func (r *refusal) text() string {
	var b strings.Builder
	if r.failure {
		fmt.Fprintf(&b, "agentsh: %s\n", r.diag.Message)
		return b.String()
	}
	b.WriteString(text.Denied(r.what, r.diag.Rule, r.diag.At().Position(), r.diag.Message) + "\n")
	if r.diag.Hint != "" {
		b.WriteString("agentsh: hint: " + text.Visible(r.diag.Hint) + "\n")
	}
	return b.String()
}

// respond answers a request that is refused.
func (r *refusal) respond(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(r.status())
	_, _ = io.WriteString(w, r.text()) // the client may be gone
}

// maxPhrase bounds the reason in a status line, in characters.
const maxPhrase = 300

// phrase is the text of the status line of CONNECT: of a failure with its reason, as most
// clients print no more of the answer.
func (r *refusal) phrase() string {
	name := http.StatusText(r.status())
	if !r.failure {
		return name
	}
	return name + ": " + strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, text.Short(r.diag.Message, maxPhrase))
}

// write answers a CONNECT that is refused and announces the end of the connection.
func (r *refusal) write(w io.Writer) {
	body := r.text()
	status := r.status()
	_, _ = fmt.Fprintf(
		w,
		"HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nCache-Control: no-store\r\nConnection: "+
			"close\r\n\r\n%s",
		status,
		r.phrase(),
		len(body),
		body,
	) // the client may be gone
}

// refuse records a denial, or a permitted name without an address, and returns it. It
// stays a denial if it cannot be recorded.
func (p *Proxy) refuse(from origin, target string, r *refusal) *refusal {
	if r.failure && r.absent == "" {
		return r
	}
	r.what = target
	e := from.event(target)
	e.Decision, e.Message, e.Hint, e.Rule = policy.Deny.String(), r.diag.Message, r.diag.Hint, ruleOf(r.diag)
	if r.failure {
		e.Phase, e.Op, e.Decision = "end", wire.OpUnreachable, r.absent
	}
	if err := p.opts.Emit(e); err != nil {
		p.opts.Log.Error("a refusal could not be recorded", "error", err)
	}
	return r
}

// ruleOf returns the position of the rule that decided; nil where none did.
func ruleOf(d policy.Diagnostic) *wire.RuleAt {
	if d.Rule == "" {
		return nil
	}
	return d.At()
}
