package syntax

import (
	"fmt"
	"strings"

	"agentsh/internal/strictyaml"
)

// expand replaces ${NAME} and ${NAME:-default} in text. quote escapes a value
// for the language of the text. The error text is a sentence.
func expand(text string, vars map[string]string, quote func(string) string) (string, error) {
	if !strings.Contains(text, "${") {
		return text, nil
	}
	var b strings.Builder
	for {
		start := strings.Index(text, "${")
		if start < 0 {
			b.WriteString(text)
			return b.String(), nil
		}
		end := strings.IndexByte(text[start:], '}')
		if end < 0 {
			return "", fmt.Errorf("${ without its }")
		}
		value, err := lookup(text[start+2:start+end], vars)
		if err != nil {
			return "", err
		}
		b.WriteString(text[:start])
		b.WriteString(quote(value))
		text = text[start+end+1:]
	}
}

// lookup returns the value of NAME or NAME:-default.
func lookup(reference string, vars map[string]string) (string, error) {
	name, fallback, hasFallback := strings.Cut(reference, ":-")
	if !validName(name) {
		return "", fmt.Errorf("${%s} is not a variable: write ${NAME} or ${NAME:-default}", strictyaml.Shorten(reference))
	}
	if v := vars[name]; v != "" {
		return v, nil
	}
	if hasFallback {
		return fallback, nil
	}
	if _, defined := vars[name]; defined {
		return "", fmt.Errorf("variable %s is empty", name)
	}
	if near := strictyaml.Nearest(name, mapKeys(vars)); near != "" {
		return "", fmt.Errorf("variable %s is not defined, did you mean %s?", name, near)
	}
	return "", fmt.Errorf("variable %s is not defined", name)
}

// validName reports whether name is a valid name of a shell variable.
func validName(name string) bool {
	for i := 0; i < len(name); i++ {
		c := name[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}
