package hook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"
)

// maxCall limits one call, in bytes. Agent programs send far less.
const maxCall = 64 << 20

// call is the report of an agent program about one use of a tool.
type call struct {
	Event    string `json:"hook_event_name"`
	Tool     string `json:"tool_name"`
	Input    any    `json:"tool_input"`
	Response any    `json:"tool_response"`
}

// readCall reads exactly one call.
func readCall(in io.Reader) (call, error) {
	data, err := io.ReadAll(io.LimitReader(in, maxCall+1))
	if err != nil {
		return call{}, fmt.Errorf("read the call: %w", err)
	}
	if len(data) > maxCall {
		return call{}, fmt.Errorf("the call has more than %d bytes", maxCall)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var c call
	if err := d.Decode(&c); err != nil {
		return call{}, fmt.Errorf("read the call: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return call{}, errors.New("read the call: more than one value")
	}
	return c, nil
}

// check refuses a call of another event and a call of an unknown tool, because
// the arguments of such a tool are unknown too.
func (c call) check(p program, after bool) error {
	events := []string{p.before}
	if after {
		events = p.after
	}
	if !slices.Contains(events, c.Event) {
		return fmt.Errorf("the event is %.60q, this hook is for %s", c.Event, strings.Join(events, ", "))
	}
	if !p.knows(c.Tool) {
		return fmt.Errorf("the tool %.60q is not known", c.Tool)
	}
	if _, ok := c.Input.(map[string]any); !ok {
		return fmt.Errorf("the input of %s is no object", c.Tool)
	}
	return nil
}

// texts calls each for every string of a value, keys included, in a stable
// order. name is the key above the string.
func texts(v any, name string, each func(name, text string)) {
	switch v := v.(type) {
	case string:
		each(name, v)
	case []any:
		for _, x := range v {
			texts(x, name, each)
		}
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		for _, k := range keys {
			each("", k)
			texts(v[k], k, each)
		}
	}
}

// replaced returns a value of the same shape with other strings; changed
// reports whether one differs. It removes the name of a file that holds a long
// answer, because the agent program would show that file's content.
func replaced(v any, with func(string) string) (out any, changed bool) {
	switch v := v.(type) {
	case string:
		s := with(v)
		return s, s != v
	case []any:
		list := make([]any, len(v))
		for i, x := range v {
			y, c := replaced(x, with)
			list[i], changed = y, changed || c
		}
		return list, changed
	case map[string]any:
		m := make(map[string]any, len(v))
		for k, x := range v {
			y, c := replaced(x, with)
			m[k], changed = y, changed || c
		}
		if changed {
			delete(m, "persistedOutputPath")
			delete(m, "persistedOutputSize")
		}
		return m, changed
	}
	return v, false
}
