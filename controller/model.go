package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/harness"
	"agentsh/controller/sandbox/host"
	"agentsh/controller/scan"
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

// modelCommand is the operator's program that scores texts.
type modelCommand struct {
	program string // absolute path; empty: none
	environ []string
}

// wantsModel reports whether the harness enables a model-based scanner.
func wantsModel(s harness.Security) bool {
	return s.Enabled.Or(true) && s.HostScanners.LLMGuard.On()
}

// checkModel rejects a model-based scanner without a program.
func checkModel(p plan, program string, to progress) error {
	g := p.harness.Security.HostScanners.LLMGuard
	switch {
	case !wantsModel(p.harness.Security):
		if program != "" {
			to.warn("the scanner %s is not started: the harness does not say security: {host_scanners: {llm_guard: {enabled: true}}}", program)
		}
		return nil
	case program == "":
		return badConfig("name one with --scanner, or write llm_guard: {enabled: false}",
			"%s: security.host_scanners.llm_guard needs a program that scores texts", g.At())
	}
	if err := checkProgram(program); err != nil {
		return badConfig("name the file of a program with --scanner", "%w", err)
	}
	return nil
}

// withModel calls do with the model-based scanner of the harness, or nil. If the
// scanner fails, the scan fails: unscored text does not pass.
func (s scanners) withModel(ctx context.Context, do func(scan.Model) error) error {
	if !wantsModel(s.security) {
		return do(nil)
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

// addModel sets the model in a scanner's options; m may be nil.
func (s scanners) addModel(o *scan.Options, m scan.Model) {
	g := s.security.HostScanners.LLMGuard
	o.Model, o.Threshold, o.Sentences = m, g.Threshold.Or(DefaultThreshold), g.MatchType.Or(DefaultMatch) == harness.MatchSentence
}
