package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/harness"
	"agentsh/controller/outside"
	"agentsh/controller/sandbox/host"
	"agentsh/controller/scan"
	"agentsh/internal/wire"
	"agentsh/supervisor/egress"
)

// Defaults of a model-based scanner.
const (
	DefaultThreshold = 0.92
	DefaultMatch     = harness.MatchSentence
)

// Bounds of a model-based scanner.
const (
	modelAnswerTime = 60 * time.Second // for one answer; the program may load its model before the first one
	modelEndTime    = 5 * time.Second  // for its exit after the last question
)

var (
	errModelTimeout = errors.New("no answer in time")
	errModelEnded   = errors.New("it ended before its answer")
	errModelDone    = errors.New("it is no longer needed")
)

// ModelProgram is a program of the operator that scores how likely a text is an
// injection, see [scan.NewModel]. It runs from [StartModel] to
// [ModelProgram.Close]. Not safe for concurrent use.
type ModelProgram struct {
	program   string
	lines     *scan.LineModel
	questions *os.File
	answers   *io.PipeReader
	limit     time.Duration
	cancel    context.CancelCauseFunc
	ended     chan struct{}
	cause     error // reason of its end; read only after ended is closed
	failed    error // the first failure; further calls of Score return it
}

// StartModel starts a program, given by its absolute path, in the directory /.
// It ends with ctx.
func StartModel(ctx context.Context, program string, environ []string) (*ModelProgram, error) {
	if err := checkProgram(program); err != nil {
		return nil, err
	}
	// A kernel pipe needs no goroutine that copies, which could outlive the
	// program.
	stdin, questions, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start scanner %s: %w", program, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	r, w := io.Pipe()
	m := &ModelProgram{program: program, questions: questions, answers: r, limit: modelAnswerTime, cancel: cancel, ended: make(chan struct{})}
	m.lines = scan.NewModel(r, questions)
	go func() {
		defer close(m.ended)
		res, err := host.Run(
			ctx,
			host.Command{Argv: []string{program}, Env: environ, Stdin: stdin, Stdout: w, MaxOutput: 4 << 10, Timeout: scriptTimeout},
		)
		if err == nil {
			err = res.Err()
		}
		if errors.Is(err, context.Canceled) { // cancelled before the start
			err = context.Cause(ctx)
		}
		if m.cause = err; err == nil {
			m.cause = errModelEnded
		}
		_ = stdin.Close()             // a later write gets EPIPE
		_ = w.CloseWithError(m.cause) // never fails
	}()
	return m, nil
}

// checkProgram reports a program that cannot be started.
func checkProgram(program string) error {
	if !filepath.IsAbs(program) {
		return fmt.Errorf("scanner %s is not an absolute path", program)
	}
	info, err := os.Stat(program)
	if err != nil {
		return fmt.Errorf("scanner: %w", err)
	}
	if !info.Mode().IsRegular() || unix.Access(program, unix.X_OK) != nil {
		return fmt.Errorf("scanner %s is not an executable file", program)
	}
	return nil
}

// Score requests the score of a text from the program. After an error the
// program has ended, and every further call returns the same error.
func (m *ModelProgram) Score(ctx context.Context, text string) (float64, error) {
	if m.failed != nil {
		return 0, m.failed
	}
	late := time.AfterFunc(m.limit, func() { m.cancel(fmt.Errorf("%w (%s)", errModelTimeout, m.limit)) })
	score, err := m.lines.Score(ctx, text)
	late.Stop()
	if err == nil {
		return score, nil
	}
	m.stop()
	if errors.Is(err, syscall.EPIPE) && !errors.Is(m.cause, errModelDone) {
		err = m.cause // the cause has more details
	}
	m.failed = fmt.Errorf("scanner %s: %w", m.program, err)
	return 0, m.failed
}

// Close closes the program's input and waits for its exit. It kills a program
// that does not exit. The error is that of a question, or reports more answers
// than questions: then no answer is reliable.
func (m *ModelProgram) Close() error {
	_ = m.questions.Close() // nothing is buffered
	late := time.AfterFunc(modelEndTime, func() { m.cancel(errModelDone) })
	defer late.Stop()
	if m.failed == nil {
		if err := m.lines.End(); err != nil {
			m.failed = fmt.Errorf("scanner %s: %w", m.program, err)
		}
	}
	m.stop()
	return m.failed
}

// stop kills the program if it still runs, waits for its end and discards its
// output.
func (m *ModelProgram) stop() {
	m.cancel(errModelDone)
	_ = m.answers.Close() // never fails
	<-m.ended
}

// ModelOptions say how a run reaches the model of llm_guard.
type ModelOptions struct {
	Program string // absolute path of the program that scores texts; empty: none
	Config  string // configuration file of the supervisor, for an endpoint; empty: that of this machine
}

// modelCommand is the model of a run: the operator's program, or the endpoint of
// the harness.
type modelCommand struct {
	program  string // absolute path; empty: none
	environ  []string
	endpoint *scan.Endpoint  // nil: none
	outside  outside.Options // how the endpoint is reached
}

// wantsModel reports whether the harness enables a model-based scanner.
func wantsModel(s harness.Security) bool {
	return s.Enabled.Or(true) && s.HostScanners.LLMGuard.On()
}

// checkModel rejects a model-based scanner without a program or an endpoint.
func checkModel(p plan, program string, to progress) error {
	g := p.harness.Security.HostScanners.LLMGuard
	if !wantsModel(p.harness.Security) {
		if program != "" {
			to.warn("the scanner %s is not started: the harness does not say security: {host_scanners: {llm_guard: {enabled: true}}}", program)
		}
		return nil
	}
	endpoint, err := modelEndpoint(p)
	switch {
	case err != nil:
		return err
	case endpoint != nil && program != "":
		return badConfig("leave out --scanner, or llm_guard.url",
			"%s: security.host_scanners.llm_guard.url and --scanner both name a model", g.URL.At)
	case endpoint != nil:
		return nil
	case program == "":
		return badConfig("name one with --scanner, write url and model, or write llm_guard: {enabled: false}",
			"%s: security.host_scanners.llm_guard needs a program that scores texts", g.At())
	}
	if err := checkProgram(program); err != nil {
		return badConfig("name the file of a program with --scanner", "%w", err)
	}
	return nil
}

// modelEndpoint is the model endpoint of the harness; nil: it names none.
func modelEndpoint(p plan) (*scan.Endpoint, error) {
	const guard = "security.host_scanners.llm_guard."
	g := p.harness.Security.HostScanners.LLMGuard
	if g.URL.V == "" {
		for key, at := range map[string]harness.Origin{"model": g.Model.At, "credential": g.Credential.At, "timeout_seconds": g.Timeout.At} {
			if !at.IsZero() {
				return nil, badConfig("write url: https://...", "%s: "+guard+"%s has no effect without "+guard+"url", at, key)
			}
		}
		return nil, nil
	}
	to, err := url.Parse(g.URL.V)
	if err != nil || to.Hostname() == "" || to.User != nil || to.RawQuery != "" || to.Fragment != "" {
		return nil, badConfig("write it as https://api.example.com/v1", "%s: "+guard+"url is not the URL of an API", g.URL.At)
	}
	if local := loopback(to.Hostname()); to.Scheme != "https" && (to.Scheme != "http" || !local) {
		return nil, badConfig("write https, or the address of this machine", "%s: "+guard+"url is not encrypted", g.URL.At)
	}
	if g.Model.V == "" {
		return nil, badConfig("write model: NAME", "%s: "+guard+"url needs "+guard+"model", g.URL.At)
	}
	e := &scan.Endpoint{URL: to, Model: g.Model.V, Timeout: modelAnswerTime}
	if g.Timeout.V > 0 {
		e.Timeout = time.Duration(g.Timeout.V) * time.Second
	}
	if g.Credential.V == "" {
		return e, nil
	}
	i := slices.IndexFunc(p.credentials, func(c wire.Credential) bool { return c.Name == g.Credential.V })
	if i < 0 {
		return nil, badConfig("write PROVIDER.NAME, with the provider in providers",
			"%s: "+guard+"credential: no provider of the harness has %q", g.Credential.At, g.Credential.V)
	}
	c := p.credentials[i]
	if to.Scheme != "https" {
		return nil, badConfig("write https, or leave credential out", "%s: "+guard+"credential: %s goes over TLS only", g.Credential.At, c.Name)
	}
	if c.Path || !egress.Credential(c).May(to.Host) {
		return nil, badConfig("add the host to the endpoints of the provider, with header or query",
			"%s: "+guard+"credential: %s may not be used at %s", g.Credential.At, c.Name, to.Host)
	}
	e.Authorize = func(r *http.Request) { authorize(r, c) }
	return e, nil
}

// loopback reports whether a host is this machine.
func loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// authorize puts the placeholder of a credential into a request. The proxy
// replaces it.
func authorize(r *http.Request, c wire.Credential) {
	switch {
	case c.Query != "":
		q := r.URL.Query()
		q.Set(c.Query, c.Placeholder)
		r.URL.RawQuery = q.Encode()
	case strings.EqualFold(c.Header, "Authorization") && !strings.Contains(c.Value, " "):
		r.Header.Set(c.Header, "Bearer "+c.Placeholder)
	default:
		r.Header.Set(c.Header, c.Placeholder)
	}
}

// withModel calls do with the model-based scanner of the harness, or nil. If the
// scanner fails, the scan fails: unscored text does not pass. Only with an endpoint
// and fail_mode: open the rest passes unscored, with a warning.
func (s scanners) withModel(ctx context.Context, to progress, do func(scan.Model) error) error {
	if !wantsModel(s.security) {
		return do(nil)
	}
	if s.model.endpoint != nil {
		return s.withEndpoint(ctx, to, do)
	}
	m, err := StartModel(ctx, s.model.program, s.model.environ)
	if err != nil {
		return err
	}
	err = do(m)
	if closeErr := m.Close(); err == nil {
		err = closeErr
	}
	if m.failed != nil && ctx.Err() == nil {
		return fail(ExitScan,
			"run the program by hand: it reads {\"text\": \"...\"} and answers {\"score\": 0.5}, a line each; see doc/scan.md", err)
	}
	return err
}

// withEndpoint is withModel for an endpoint.
func (s scanners) withEndpoint(ctx context.Context, to progress, do func(scan.Model) error) error {
	client, err := outside.Open(s.model.outside)
	if errors.Is(err, outside.ErrConfig) {
		return badConfig("try it with 'agentsh detect'", "%w", err)
	}
	if err != nil {
		return err
	}
	s.model.endpoint.Transport = client
	defer func() {
		if err := client.Close(); err != nil {
			to.warn("%v", err)
		}
	}()
	m := &guarded{model: s.model.endpoint, open: s.security.FailMode.V == harness.FailOpen, end: time.Now().Add(scriptTimeout)}
	err = do(m)
	var denied *outside.Denied
	switch {
	case m.failed == nil || ctx.Err() != nil:
		return err
	case errors.As(m.failed, &denied):
		return badConfig("allow it in network_rules of the policy, as for the agent; binaries: [agentctl] allows it to the scan alone",
			"%s: security.host_scanners.llm_guard.url: %w", s.security.HostScanners.LLMGuard.URL.At, m.failed)
	case m.open:
		to.warn("scan: fail_mode is open: the rest of the texts has no score: %v", m.failed)
		return err
	}
	return fail(ExitScan, "see doc/scan.md; with security: {fail_mode: open} texts pass without a score", m.failed)
}

// guarded is a model that is not asked again after a failure.
type guarded struct {
	model  scan.Model
	open   bool      // text without a score passes
	end    time.Time // of all questions
	failed error
}

// Score asks the model.
func (g *guarded) Score(ctx context.Context, text string) (score float64, err error) {
	if g.failed == nil {
		ctx, cancel := context.WithDeadlineCause(ctx, g.end, fmt.Errorf("more than %s for all texts", scriptTimeout))
		defer cancel()
		if score, err = g.model.Score(ctx, text); err == nil {
			return score, nil
		}
		g.failed = err
	}
	if g.open {
		return 0, nil
	}
	return 0, g.failed
}

// addModel sets the model in a scanner's options; m may be nil.
func (s scanners) addModel(o *scan.Options, m scan.Model) {
	g := s.security.HostScanners.LLMGuard
	o.Model, o.Threshold, o.Sentences = m, g.Threshold.Or(DefaultThreshold), g.MatchType.Or(DefaultMatch) == harness.MatchSentence
}
