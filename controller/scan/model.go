package scan

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// Model scores a text from 0 (harmless) to 1 (injection).
type Model interface {
	Score(ctx context.Context, text string) (float64, error)
}

// LineModel is a model in another process. Create one with [NewModel].
type LineModel struct {
	out io.Writer
	in  *bufio.Reader
}

// maxAnswer limits one answer of a model, in bytes.
const maxAnswer = 64 << 10

// NewModel returns a model that runs in another process. That process reads one
// JSON object a line, {"text": "..."}, and answers {"score": 0.5} on one line.
// The caller owns the process and ends it with ctx. It is not safe for
// concurrent use.
func NewModel(in io.Reader, out io.Writer) *LineModel {
	return &LineModel{out: out, in: bufio.NewReaderSize(in, maxAnswer)}
}

// Score asks the process.
func (m *LineModel) Score(_ context.Context, text string) (float64, error) {
	question, err := json.Marshal(map[string]string{"text": text})
	if err != nil {
		return 0, err
	}
	if _, err := m.out.Write(append(question, '\n')); err != nil {
		return 0, fmt.Errorf("ask the model: %w", err)
	}
	line, err := m.in.ReadSlice('\n')
	if err != nil {
		return 0, fmt.Errorf("read the model's answer: %w", err)
	}
	var answer struct {
		Score *float64 `json:"score"`
	}
	if err := json.Unmarshal(line, &answer); err != nil || answer.Score == nil || *answer.Score < 0 || *answer.Score > 1 {
		return 0, fmt.Errorf("read the model's answer: %.100q has no score from 0 to 1", line)
	}
	return *answer.Score, nil
}

// End reads to the end of the answers. More answers than questions are an
// error, because no answer can then be matched to its question.
func (m *LineModel) End() error {
	if b, err := m.in.ReadByte(); err == nil {
		return fmt.Errorf("the model answered more than it was asked, with %q first", b)
	}
	return nil
}

// model asks the model about a block. An error stops the scan.
func (s *span) model() error {
	if s.job.kind != Instructions && bytes.IndexByte(s.raw, 0) >= 0 {
		return nil // no text
	}
	for at, rest := 0, s.raw; len(rest) > 0; {
		n := len(rest)
		if s.job.scanner.options.Sentences {
			n = sentence(rest)
		}
		part := bytes.TrimSpace(rest[:n])
		if len(part) > 0 {
			score, err := s.job.scanner.options.Model.Score(s.job.ctx, string(part))
			if err != nil {
				return err
			}
			if score >= s.job.scanner.options.Threshold {
				f := Finding{Rule: RuleModel, Severity: High, Message: fmt.Sprintf("the model gives it %.2f", score), Hint: injectionHint}
				if s.job.kind == Instructions {
					f.Severity = Critical
				}
				s.report(at, at+n, f)
			}
		}
		at, rest = at+n, rest[n:]
	}
	return nil
}

// maxSentence is the longest text scored as one sentence, in bytes.
const maxSentence = 2 << 10

// sentence returns the length of the first sentence or paragraph.
func sentence(b []byte) int {
	for i := range min(len(b), maxSentence) {
		end := b[i] == '.' || b[i] == '!' || b[i] == '?'
		if i+1 < len(b) && (end && (b[i+1] == ' ' || b[i+1] == '\n') || b[i] == '\n' && b[i+1] == '\n') {
			return i + 1
		}
	}
	return min(len(b), maxSentence)
}
