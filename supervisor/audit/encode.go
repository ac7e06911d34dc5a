package audit

import (
	"encoding/json"
	"strconv"
	"time"

	"agentsh/internal/wire"
)

// appendEvent appends an event exactly as json.Marshal does. It is much faster: every new
// program waits for an event.
func appendEvent(b []byte, e *wire.Event) ([]byte, error) {
	if y := e.Time.Year(); y < 0 || y > 9999 {
		_, err := json.Marshal(e.Time)
		return nil, err
	}
	b = strconv.AppendUint(append(b, `{"seq":`...), e.Seq, 10)
	b = e.Time.AppendFormat(append(b, `,"time":"`...), time.RFC3339Nano)
	b = strconv.AppendInt(append(b, `","mono_ns":`...), e.MonoNanos, 10)
	b = appendText(b, "session", e.Session)
	b = appendText(b, "command", e.Command)
	b = appendString(append(b, `,"type":`...), e.Type)
	b = appendText(b, "phase", e.Phase)
	if e.Process != nil {
		b = appendProcess(append(b, `,"process":`...), e.Process)
	}
	b = appendNames(b, "argv", e.Argv)
	for _, t := range [...]struct{ name, value string }{
		{"path", wire.EncodeName(e.Path)},
		{"called", wire.EncodeName(e.Called)},
	} {
		b = appendText(b, t.name, t.value)
	}
	b = appendNames(b, "chain", e.Chain)
	for _, t := range [...]struct{ name, value string }{
		{"target", wire.EncodeName(e.Target)},
		{"op", e.Op},
		{"decision", e.Decision},
		{"by", e.By},
		{"mechanism", e.Mechanism},
	} {
		b = appendText(b, t.name, t.value)
	}
	var err error
	if len(e.HeldBy) > 0 {
		if b, err = appendPart(b, "held_by", &e.HeldBy); err != nil {
			return nil, err
		}
	}
	if e.GitGuard {
		b = append(b, `,"git_guard":true`...)
	}
	if b, err = appendPart(b, "rule", e.Rule); err != nil {
		return nil, err
	}
	b = appendText(b, "cause", string(e.Cause))
	b = appendText(b, "message", e.Message)
	b = appendText(b, "hint", e.Hint)
	if e.Count != 0 {
		b = strconv.AppendInt(append(b, `,"count":`...), int64(e.Count), 10)
	}
	if b, err = appendPart(b, "exit", e.Exit); err != nil {
		return nil, err
	}
	if b, err = appendPart(b, "output", e.Output); err != nil {
		return nil, err
	}
	if b, err = appendPart(b, "net", e.Net); err != nil {
		return nil, err
	}
	b = appendTexts(b, "env", e.Env)
	b = appendText(b, "prev", e.Prev)
	b = appendText(b, "hash", e.Hash)
	return append(b, '}'), nil
}

func appendProcess(b []byte, p *wire.Process) []byte {
	b = strconv.AppendInt(append(b, `{"pid":`...), int64(p.PID), 10)
	if p.Inside != 0 {
		b = strconv.AppendInt(append(b, `,"pid_inside":`...), int64(p.Inside), 10)
	}
	b = strconv.AppendUint(append(b, `,"start_time":`...), p.StartTime, 10)
	b = appendText(b, "exe", wire.EncodeName(p.Exe))
	b = appendText(b, "cwd", wire.EncodeName(p.Cwd))
	if p.Mark != 0 {
		b = strconv.AppendUint(append(b, `,"mark":`...), p.Mark, 10)
	}
	return append(b, '}')
}

// appendPart appends a member that is an object, unless it is nil.
func appendPart[T any](b []byte, name string, part *T) ([]byte, error) {
	if part == nil {
		return b, nil
	}
	text, err := json.Marshal(part)
	return append(appendName(b, name), text...), err
}

// appendText appends a member, unless it is empty.
func appendText(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return appendString(appendName(b, name), value)
}

func appendTexts(b []byte, name string, values []string) []byte {
	if len(values) == 0 {
		return b
	}
	b = append(appendName(b, name), '[')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, v)
	}
	return append(b, ']')
}

func appendNames(b []byte, name string, values wire.Names) []byte {
	if len(values) == 0 {
		return b
	}
	b = append(appendName(b, name), '[')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, wire.EncodeName(v))
	}
	return append(b, ']')
}

func appendName(b []byte, name string) []byte {
	return append(append(append(b, `,"`...), name...), `":`...)
}

// appendString appends s as a JSON string. Strings that need escapes are encoded by
// encoding/json.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			text, _ := json.Marshal(s) // never fails for a string
			return append(b, text...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}
