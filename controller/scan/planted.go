package scan

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"net/url"
)

// planted is a value that is looked for in several spellings.
type planted struct {
	rule      string
	spellings [][]byte
}

// minPlanted is the least length, in bytes, of a value that is looked for.
const minPlanted = 8

// plant adds values to look for.
func (s *Scanner) plant(values []string, rule string) {
	for _, v := range values {
		if len(v) < minPlanted {
			continue
		}
		reversed := []byte(v)
		for i, k := 0, len(reversed)-1; i < k; i, k = i+1, k-1 {
			reversed[i], reversed[k] = reversed[k], reversed[i]
		}
		p := planted{rule: rule, spellings: [][]byte{[]byte(v), reversed, []byte(hex.EncodeToString([]byte(v)))}}
		if q := url.QueryEscape(v); q != v {
			p.spellings = append(p.spellings, []byte(q))
		}
		// In base64 a value looks different at each of three offsets; what its
		// neighbours leave untouched of it is looked for.
		for skip := range 3 {
			text := base64.StdEncoding.EncodeToString(append(make([]byte, skip), v...))
			p.spellings = append(p.spellings, []byte(text[(skip*8+5)/6:(skip+len(v))*8/6]))
		}
		s.planted = append(s.planted, p)
	}
}

// findPlanted looks for canaries and secrets of the run.
func (s *Scanner) findPlanted(in *span) {
	for _, p := range s.planted {
		for i, spelling := range p.spellings {
			at := bytes.Index(in.raw, spelling)
			if at < 0 {
				continue
			}
			f := Finding{Rule: p.rule, Severity: Critical, Excerpt: "(not shown)", Hint: "somebody read what the agent has no reason to pass on: look at the audit log"}
			f.Message = "a canary"
			if p.rule == RuleSecret {
				f.Message, f.Hint = "a secret of this run", "change the secret, and keep it out of what the agent sees"
			}
			if i > 0 {
				f.Message += ", encoded"
			}
			in.report(at, at+len(spelling), f)
			break
		}
	}
}

// Redact replaces canaries, secrets of the run and known kinds of secrets in a
// text. It reports how many.
func (s *Scanner) Redact(b []byte) ([]byte, int) {
	n := 0
	for _, p := range s.planted {
		for _, spelling := range p.spellings {
			if c := bytes.Count(b, spelling); c > 0 {
				n += c
				b = bytes.ReplaceAll(b, spelling, []byte("[redacted "+p.rule+"]"))
			}
		}
	}
	out := make([]byte, 0, len(b))
	at := 0
	for _, hit := range findSecrets(b) {
		if hit.from < at {
			continue
		}
		out = append(append(out, b[at:hit.from]...), "[redacted "+hit.what+"]"...)
		at = hit.to
		n++
	}
	return append(out, b[at:]...), n
}
