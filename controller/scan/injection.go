package scan

import (
	"bytes"
	"strings"
)

// injection finds instructions that are hidden for the agent.
func (s *span) injection() {
	l := words()
	f := fold(s.raw)
	l.anchors.find(f.text, func(anchor int32, end int) {
		a := l.owners[anchor]
		p := &l.phrases[a.phrase]
		if n, ok := p.rest(f.text[end:]); ok {
			s.phrase(p, f, end-a.length, end+n)
		}
	})
	s.markers()
}

// phrase reports a phrase at bytes [start, end) of the folded text.
func (s *span) phrase(p *phrase, f folded, start, end int) {
	if p.rule == RuleInjection && negated(f.text[:start]) {
		return
	}
	for end < len(f.text)-1 && f.text[end] != ' ' && f.text[end] < 0x80 {
		end++
	}
	from, to := int(f.at[start]), int(f.at[min(end, len(f.at)-1)])
	g := Finding{Rule: p.rule, Severity: s.grade(p.rule), Message: injectionText[p.rule], Hint: injectionHint}
	if g.Severity == Critical && !s.hidden() && s.discussed(from, to) {
		g.Severity, g.Message = High, g.Message+", as it seems quoted"
	}
	s.report(from, max(to, from), g)
}

const injectionHint = "remove it, or if it is meant, word it so that it does not address the agent"

var injectionText = map[string]string{
	RuleInjection:  "tells the agent to drop its instructions",
	RuleConceal:    "tells the agent to keep something from the user",
	RuleExfiltrate: "tells the agent to give away secrets",
	RuleRole:       "tells the agent to be something else",
	RuleMarker:     "poses as a message of the system",
}

// grade returns the severity of a rule in a text of this kind.
func (s *span) grade(rule string) Severity {
	weight := map[string]Severity{RuleInjection: High, RuleExfiltrate: Medium, RuleConceal: Medium, RuleRole: Medium, RuleMarker: Low}[rule]
	if s.hidden() {
		if rule == RuleMarker {
			return High
		}
		if s.how == inComment && rule == RuleConceal {
			return High // editors leave such notes to each other
		}
		return Critical
	}
	if s.job.kind == Instructions {
		weight++
	}
	return weight
}

// negated reports whether the preceding words negate a phrase.
func negated(before []byte) bool {
	for _, word := range []string{" not ", " never ", " dont ", " cannot ", " cant ", " nicht ", " nie ", " ne ", " не ", " nunca ",
		" never just ", " not simply "} {
		if bytes.HasSuffix(before, foldNegation(word)) {
			return true
		}
	}
	return false
}

func foldNegation(word string) []byte { return append([]byte(" "), foldWord(word[1:])...) }

// discussed reports whether a phrase is quoted in a sentence that warns of it.
// An attacker can write so too, so the finding stays at a lower severity.
func (s *span) discussed(from, to int) bool {
	around := s.raw[max(0, from-240):min(len(s.raw), to+160)]
	before := bytes.TrimRight(s.raw[max(0, from-12):from], " ")
	quoted := len(before) > 0 && strings.ContainsAny(string(before), "\"'`“‘«„")
	if !quoted {
		return false
	}
	low := strings.ToLower(string(around))
	for _, word := range []string{"injection", "untrusted", "malicious", "attack", "treat ", "never follow", "not follow", "refuse",
		"suspicious", "do not obey", "as data"} {
		if strings.Contains(low, word) {
			return true
		}
	}
	return false
}

// markerTexts mark the speaker in chat formats.
var markerTexts = []string{
	"<|im_start|>", "<|im_end|>", "<|system|>", "<|start_header_id|>", "<|eot_id|>", "<|endoftext|>", "[INST]", "[/INST]", "<<SYS>>",
	"<system-reminder>", "</system>", "[system](#", "\n\nHuman:", "\n\nAssistant:", "BEGIN SYSTEM PROMPT",
}

// markers finds text that claims to be another speaker's.
func (s *span) markers() {
	for _, m := range markerTexts {
		if i := bytes.Index(s.raw, []byte(m)); i >= 0 {
			s.report(i, i+len(m), Finding{Rule: RuleMarker, Severity: s.grade(RuleMarker), Message: injectionText[RuleMarker], Hint: injectionHint})
		}
	}
}

// together is the greatest distance, in lines, at which two kinds of
// instructions count as one attack.
const together = 20

// escalate raises findings to critical where two kinds of instructions stand
// close together in a text that an agent obeys.
func (j *job) escalate() {
	if j.kind != Instructions {
		return
	}
	bad := map[string]bool{RuleInjection: true, RuleConceal: true, RuleExfiltrate: true, RuleRole: true}
	for i := range j.found {
		for k := range j.found {
			a, b := &j.found[i], &j.found[k]
			apart := a.Line - b.Line
			if bad[a.Rule] && bad[b.Rule] && a.Rule != b.Rule && a.Severity == High && b.Severity >= High && apart <= together &&
				-apart <= together &&
				!strings.Contains(a.Message, "quoted") &&
				!strings.Contains(b.Message, "quoted") {
				a.Severity = Critical
				b.Severity = Critical
			}
		}
	}
}
