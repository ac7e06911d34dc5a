package scan

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strings"
	"sync"
)

// token is a kind of credential with a recognisable form.
type token struct {
	what   string
	prefix string
	chars  string // what follows the prefix
	min    int    // characters after the prefix
	max    int    // 0: no limit
	weak   bool   // looks like other things too
}

const (
	alnum   = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	upper   = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	wordish = alnum + "_-"
)

const privateKey = "private key"

// tokens are the kinds of credentials, as their issuers document them.
var tokens = []token{
	{"AWS access key", "AKIA", upper + "0189", 16, 16, false},
	{"AWS temporary key", "ASIA", upper + "0189", 16, 16, false},
	{"GitHub token", "ghp_", alnum, 36, 255, false},
	{"GitHub token", "gho_", alnum, 36, 255, false},
	{"GitHub token", "ghu_", alnum, 36, 255, false},
	{"GitHub token", "ghs_", alnum, 36, 255, false},
	{"GitHub token", "ghr_", alnum, 36, 255, false},
	{"GitHub token", "github_pat_", alnum + "_", 60, 255, false},
	{"GitLab token", "glpat-", wordish, 20, 64, false},
	{"Anthropic key", "sk-ant-", wordish, 32, 0, false},
	{"OpenAI key", "sk-proj-", wordish, 32, 0, false},
	{"OpenAI key", "sk-svcacct-", wordish, 32, 0, false},
	{"Slack token", "xoxb-", wordish, 24, 0, false},
	{"Slack token", "xoxp-", wordish, 24, 0, false},
	{"Slack token", "xapp-", wordish, 24, 0, false},
	{"Slack webhook", "hooks.slack.com/services/T", alnum + "/", 30, 0, false},
	{"Google API key", "AIza", wordish, 35, 35, false},
	{"Google token", "ya29.", wordish, 40, 0, false},
	{"npm token", "npm_", alnum, 36, 36, false},
	{"PyPI token", "pypi-AgEI", wordish, 50, 0, false},
	{"Stripe key", "sk_live_", alnum, 20, 0, false},
	{"Stripe key", "rk_live_", alnum, 20, 0, false},
	{"SendGrid key", "SG.", wordish + ".", 60, 70, false},
	{"Hugging Face token", "hf_", alnum, 34, 40, false},
	{"DigitalOcean token", "dop_v1_", alnum, 64, 64, false},
	{"Vault token", "hvs.", wordish, 24, 0, false},
	{"age key", "AGE-SECRET-KEY-1", upper + "0189", 58, 58, false},
	{privateKey, "-----BEGIN PRIVATE KEY-----", "", 0, 0, true},
	{privateKey, "-----BEGIN RSA PRIVATE KEY-----", "", 0, 0, true},
	{privateKey, "-----BEGIN EC PRIVATE KEY-----", "", 0, 0, true},
	{privateKey, "-----BEGIN OPENSSH PRIVATE KEY-----", "", 0, 0, true},
	{"JSON web token", "eyJ", wordish + ".", 60, 0, true},
}

// tokenPrefixes finds possible starts of tokens; it is built at first use.
var tokenPrefixes = sync.OnceValue(func() *automaton {
	var list [][]byte
	for _, t := range tokens {
		list = append(list, []byte(t.prefix))
	}
	return newAutomaton(list)
})

// secretHit is a credential at bytes [from, to).
type secretHit struct {
	from, to int
	what     string
	weak     bool
}

// findSecrets lists credentials by position.
func findSecrets(b []byte) []secretHit {
	var hits []secretHit
	tokenPrefixes().find(b, func(i int32, end int) {
		if hit, ok := tokens[i].at(b, end); ok {
			hits = append(hits, hit)
		}
	})
	slices.SortFunc(hits, func(a, b secretHit) int { return a.from - b.from })
	return append(hits, urlPasswords(b)...)
}

// at judges a token whose prefix ends at end.
func (t *token) at(b []byte, end int) (secretHit, bool) {
	from, to := end-len(t.prefix), end
	if from > 0 && strings.IndexByte(alnum, b[from-1]) >= 0 {
		return secretHit{}, false
	}
	for to < len(b) && strings.IndexByte(t.chars, b[to]) >= 0 {
		to++
	}
	n := to - end
	if n < t.min || t.max > 0 && n > t.max || t.max == t.min && t.min > 0 && n != t.min {
		return secretHit{}, false
	}
	if t.min > 0 && isExample(b[end:to]) {
		return secretHit{}, false
	}
	if t.prefix == "eyJ" && bytes.Count(b[from:to], []byte(".")) != 2 {
		return secretHit{}, false
	}
	weak := t.weak
	if strings.HasPrefix(t.prefix, "gh") && len(t.prefix) == 4 && n == 36 {
		weak = !githubChecksum(b[from:to])
	}
	return secretHit{from, to, t.what, weak}, true
}

// githubChecksum reports whether the last six digits of a token are the
// checksum of the rest, as GitHub makes them.
func githubChecksum(token []byte) bool {
	body, tail := token[4:34], token[34:]
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	sum := crc32.ChecksumIEEE(body)
	want := make([]byte, 6)
	for i := range want {
		want[5-i] = digits[sum%62]
		sum /= 62
	}
	return bytes.Equal(tail, want)
}

// isExample reports whether a value is an example from documentation: few different
// characters, words that say so, or characters in sequence.
func isExample(b []byte) bool {
	low := strings.ToLower(string(b))
	for _, word := range []string{"example", "xxxx", "your", "placeholder", "redacted", "dummy", "fake", "1234567", "abcdef", "0000",
		"sample", "testtest", "changeme"} {
		if strings.Contains(low, word) {
			return true
		}
	}
	return entropy(b) < 3
}

// entropy is the Shannon entropy in bits per character.
func entropy(b []byte) float64 {
	var count [256]int
	for _, c := range b {
		count[c]++
	}
	sum := 0.0
	for _, n := range count {
		if n > 0 {
			p := float64(n) / float64(len(b))
			sum -= p * math.Log2(p)
		}
	}
	return sum
}

const urlPassword = "password in a URL"

// urlPasswords finds https://user:password@host.
func urlPasswords(b []byte) []secretHit {
	var hits []secretHit
	for at := 0; ; {
		i := bytes.Index(b[at:], []byte("://"))
		if i < 0 {
			return hits
		}
		start := at + i + 3
		end := start
		for end < len(b) && end-start < 300 && b[end] > ' ' && !strings.ContainsRune("/\"'<>`", rune(b[end])) {
			end++
		}
		at = start
		user, _, ok := bytes.Cut(b[start:end], []byte("@"))
		_, password, has := bytes.Cut(user, []byte(":"))
		if !ok || !has || len(password) < 8 || bytes.ContainsAny(password, "${}[]*%") || isExample(password) {
			continue
		}
		hits = append(hits, secretHit{start + len(user) - len(password), start + len(user), urlPassword, true})
	}
}

// secrets reports credentials. They are critical in what leaves a sandbox.
func (s *span) secrets() {
	for _, h := range findSecrets(s.raw) {
		f := Finding{Rule: RuleSecret, Severity: High, Message: h.what, Hint: "remove it, and change it where it was issued"}
		switch {
		case s.job.kind == Output && !h.weak:
			f.Severity = Critical
		case h.weak && s.job.kind != Output:
			f.Severity = Medium
		}
		f.Excerpt = "(not shown)"
		if h.what != urlPassword {
			f.Excerpt = fmt.Sprintf("%s... (%d characters)", excerpt(s.raw[h.from:min(h.to, h.from+6)]), h.to-h.from)
		}
		s.report(h.from, h.to, f)
	}
}
