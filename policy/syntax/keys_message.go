package syntax

import (
	"errors"
	"fmt"
	"strings"

	"agentsh/internal/strictyaml"
	"agentsh/policy"
)

// parseMessage splits "... {{.Path}} ..." at its fields.
func parseMessage(text string) (policy.Template, error) {
	var m policy.Template
	for {
		before, rest, found := strings.Cut(text, "{{")
		m = append(m, before)
		if !found {
			return m, nil
		}
		field, after, closed := strings.Cut(rest, "}}")
		if !closed {
			return nil, errors.New("{{ without its }}")
		}
		name := strings.TrimPrefix(strings.TrimSpace(field), ".")
		known := false
		for _, f := range policy.TemplateFields {
			known = known || f == name
		}
		if !known {
			return nil, fmt.Errorf("unknown field {{%s}} (%s)", strictyaml.Shorten(field), strictyaml.DidYouMean(name, policy.TemplateFields))
		}
		m = append(m, name)
		text = after
	}
}
