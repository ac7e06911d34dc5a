package wire

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Name is the name or path of a file: any bytes but NUL. In memory it is those
// bytes. In JSON it is [EncodeName] of them, because a JSON string holds UTF-8 only.
// A struct that goes through JSON declares every file name as Name or [Names].
type Name string

// MarshalText implements [encoding.TextMarshaler] by [EncodeName].
func (n Name) MarshalText() ([]byte, error) { return []byte(EncodeName(string(n))), nil }

// UnmarshalText implements [encoding.TextUnmarshaler] by [DecodeName].
func (n *Name) UnmarshalText(text []byte) error {
	*n = Name(DecodeName(string(text)))
	return nil
}

// Names is a list of names, or an argument vector, that may hold any bytes. Its JSON
// is a list of strings in the encoding of [Name].
type Names []string

// MarshalJSON writes a list of encoded names; nil is null.
func (n Names) MarshalJSON() ([]byte, error) {
	if n == nil {
		return []byte("null"), nil
	}
	encoded := make([]string, len(n))
	for i, name := range n {
		encoded[i] = EncodeName(name)
	}
	return json.Marshal(encoded)
}

// UnmarshalJSON reads a list of encoded names.
func (n *Names) UnmarshalJSON(data []byte) error {
	var encoded []string
	if err := json.Unmarshal(data, &encoded); err != nil {
		return err
	}
	for i := range encoded {
		encoded[i] = DecodeName(encoded[i])
	}
	*n = encoded
	return nil
}

// MarshalJSON encodes the names in an event as [Name] does.
func (e Event) MarshalJSON() ([]byte, error) {
	type fields Event
	e.Path, e.Called, e.Target = EncodeName(e.Path), EncodeName(e.Called), EncodeName(e.Target)
	return json.Marshal(fields(e))
}

// UnmarshalJSON is the reverse of [Event.MarshalJSON].
func (e *Event) UnmarshalJSON(data []byte) error {
	type fields Event
	if err := json.Unmarshal(data, (*fields)(e)); err != nil {
		return err
	}
	e.Path, e.Called, e.Target = DecodeName(e.Path), DecodeName(e.Called), DecodeName(e.Target)
	return nil
}

// MarshalJSON encodes the names in a process as [Name] does.
func (p Process) MarshalJSON() ([]byte, error) {
	type fields Process
	p.Exe, p.Cwd = EncodeName(p.Exe), EncodeName(p.Cwd)
	return json.Marshal(fields(p))
}

// UnmarshalJSON is the reverse of [Process.MarshalJSON].
func (p *Process) UnmarshalJSON(data []byte) error {
	type fields Process
	if err := json.Unmarshal(data, (*fields)(p)); err != nil {
		return err
	}
	p.Exe, p.Cwd = DecodeName(p.Exe), DecodeName(p.Cwd)
	return nil
}

// execFields are the fields of a request.
type execFields ExecRequest

// encodedExec is a request in JSON. Encoded is set if its words are in the encoding of [Name].
type encodedExec struct {
	execFields
	Encoded bool `json:"encoded,omitempty"`
}

// IsText reports whether all words of a request are UTF-8.
func (r ExecRequest) IsText() bool {
	for _, list := range [][]string{r.Argv, r.Env, {r.Program, r.Cwd}, slices.Collect(maps.Values(r.Run))} {
		if slices.ContainsFunc(list, func(word string) bool { return !utf8.ValidString(word) }) {
			return false
		}
	}
	return true
}

// MarshalJSON encodes the words as [Name] does, if one is not UTF-8.
func (r ExecRequest) MarshalJSON() ([]byte, error) {
	out := encodedExec{execFields: execFields(r), Encoded: !r.IsText()}
	if out.Encoded {
		out.convert(EncodeName)
	}
	return json.Marshal(out)
}

// UnmarshalJSON is the reverse of [ExecRequest.MarshalJSON].
func (r *ExecRequest) UnmarshalJSON(data []byte) error {
	in := encodedExec{execFields: execFields(*r)}
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	if in.Encoded {
		in.convert(DecodeName)
	}
	*r = ExecRequest(in.execFields)
	return nil
}

// convert converts all words, in lists of its own.
func (f *execFields) convert(word func(string) string) {
	words := func(list []string) []string {
		list = slices.Clone(list)
		for i := range list {
			list[i] = word(list[i])
		}
		return list
	}
	f.Argv, f.Env, f.Program, f.Cwd, f.Run = words(f.Argv), words(f.Env), word(f.Program), word(f.Cwd), maps.Clone(f.Run)
	for name, value := range f.Run {
		f.Run[name] = word(value)
	}
}

// EncodeName returns a name as UTF-8 text from which [DecodeName] gets the same
// bytes back:
//
//   - A byte that is not part of UTF-8 text becomes \xNN, with two lower-case
//     hexadecimal digits.
//   - A backslash that begins such a sequence in the name itself becomes \x5c.
//   - Everything else stays. A name in UTF-8 changes only if it has a \xNN in it.
//
// Control characters stay: encode a name for a record, use package text to print it.
func EncodeName(name string) string {
	if utf8.ValidString(name) && !strings.Contains(name, `\x`) {
		return name
	}
	var b strings.Builder
	for i := 0; i < len(name); {
		r, size := utf8.DecodeRuneInString(name[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, name[i])
		case r == '\\' && isEscape(name[i:]):
			b.WriteString(`\x5c`)
		default:
			b.WriteString(name[i : i+size])
		}
		i += size
	}
	return b.String()
}

// DecodeName is the reverse of [EncodeName]. It accepts any text: what is no \xNN
// stays as it is.
func DecodeName(text string) string {
	if !strings.Contains(text, `\x`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if isEscape(text[i:]) {
			b.WriteByte(hexValue(text[i+2])<<4 | hexValue(text[i+3]))
			i += 3
			continue
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// isEscape reports whether s begins with \x and two lower-case hexadecimal digits.
func isEscape(s string) bool {
	return len(s) >= 4 && s[0] == '\\' && s[1] == 'x' && isHex(s[2]) && isHex(s[3])
}

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' }

func hexValue(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c - 'a' + 10
}

// IsNamePath reports whether name is a clean relative path: components of any bytes
// but NUL and slash, none of them empty, "." or "..". "." alone is a path too. It is
// [io/fs.ValidPath] for names that need not be UTF-8.
func IsNamePath(name string) bool {
	if name == "." {
		return true
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || strings.IndexByte(part, 0) >= 0 {
			return false
		}
	}
	return true
}
