package provider

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// shortest is the length in bytes from which a value is replaced within a text.
// A text with a shorter value is withheld as a whole, because replaced single
// letters would show the value.
const shortest = 4

// Scrub returns err without the values and their common encodings. The result
// wraps nothing, so no value can be unwrapped, but errors.Is still finds the
// errors in keep.
func Scrub(err error, values []string, keep ...error) error {
	if err == nil {
		return nil
	}
	if !containsValue(err, values) {
		return err
	}
	out := scrubbed{text: scrubText(err.Error(), values)}
	for _, k := range keep {
		if errors.Is(err, k) {
			out.causes = append(out.causes, k)
		}
	}
	return out
}

// containsValue reports whether the text of an error, or of a wrapped error, contains a
// value.
func containsValue(err error, values []string) bool {
	if err == nil {
		return false
	}
	if text := err.Error(); scrubText(text, values) != text {
		return true
	}
	switch e := err.(type) { //nolint:errorlint // every error of the tree is looked at
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), func(err error) bool { return containsValue(err, values) })
	case interface{ Unwrap() error }:
		return containsValue(e.Unwrap(), values)
	}
	return false
}

type scrubbed struct {
	text   string
	causes []error
}

func (s scrubbed) Error() string   { return s.text }
func (s scrubbed) Unwrap() []error { return s.causes }

// scrubText replaces every value in a text.
func scrubText(text string, values []string) string {
	var forms []string
	for _, v := range values {
		forms = append(forms, encodings(v)...)
	}
	sort.Slice(forms, func(i, j int) bool { return len(forms[i]) > len(forms[j]) })
	for _, f := range forms {
		if !strings.Contains(text, f) {
			continue
		}
		if len(f) < shortest {
			return "(text withheld: it holds the value of a credential)"
		}
		text = strings.ReplaceAll(text, f, "***")
	}
	return text
}

// encodings returns the usual spellings of a value in texts. Each line of a
// value counts by itself.
func encodings(v string) []string {
	if v == "" {
		return nil
	}
	quoted := strconv.Quote(v)
	out := []string{v, quoted[1 : len(quoted)-1], url.QueryEscape(v), url.PathEscape(v),
		base64.StdEncoding.EncodeToString([]byte(v)), base64.RawStdEncoding.EncodeToString([]byte(v)),
		base64.URLEncoding.EncodeToString([]byte(v)), base64.RawURLEncoding.EncodeToString([]byte(v))}
	if j, err := json.Marshal(v); err == nil {
		out = append(out, string(j[1:len(j)-1]))
	}
	if lines := strings.Split(v, "\n"); len(lines) > 1 {
		for _, line := range lines {
			if line = strings.TrimSpace(line); len(line) >= shortest {
				out = append(out, line)
			}
		}
	}
	return out
}
