package harness

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Render writes the merged harness as YAML that loads to the same harness. Each
// value is on one line, followed by the position where it is set.
func (h *Harness) Render(w io.Writer) error { return render(w, h.merged, nil) }

// Render writes the merged harness with the references of env and host_files
// replaced. The text contains values of the host's environment.
func (x *Expanded) Render(w io.Writer) error {
	sources := map[string]string{}
	for _, f := range x.Sources {
		sources[f.Dest.V] = f.Src.V
	}
	return render(w, x.merged, func(where, key string, t *tree) (string, bool) {
		switch where {
		case "env.runner":
			return escapeDollars(x.Runner[key].V), true
		case "env.sandbox":
			return escapeDollars(x.Sandbox[key].V), true
		case "host_files":
			v, ok := sources[key]
			return escapeDollars(v), ok
		}
		return t.text, true
	})
}

// escapeDollars escapes a value, so that expanding it gives the value again.
func escapeDollars(v string) string { return strings.ReplaceAll(v, "$", "$$") }

// replaceFunc returns the text of a map entry or, by its destination, of the
// source of a host file. If not ok, the entry is left out.
type replaceFunc func(where, key string, t *tree) (string, bool)

// renderer writes lines and stores the first error.
type renderer struct {
	w       io.Writer
	err     error
	replace replaceFunc
}

func render(w io.Writer, t *tree, replace replaceFunc) error {
	if replace == nil {
		replace = func(_, _ string, t *tree) (string, bool) { return t.text, true }
	}
	r := &renderer{w: w, replace: replace}
	r.dict(fields, t, "", "")
	return r.err
}

// line writes one line, with the position of its value if it has one.
func (r *renderer) line(text string, at Origin) {
	if r.err != nil {
		return
	}
	note := ""
	if !at.IsZero() {
		note = fmt.Sprintf(" # %s:%d", comment(at.File), at.Line)
		if at.Layer != "" {
			note += " " + at.Layer
		}
	}
	_, r.err = fmt.Fprintln(r.w, text+note)
}

// comment escapes a file name for a comment.
func comment(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || c == utf8.RuneError || c == '\u2028' || c == '\u2029' || c == '\u0085' {
			return '?'
		}
		return c
	}, s)
}

// dict writes the fields of a mapping in the order of the schema.
func (r *renderer) dict(schema []field, t *tree, indent, where string) {
	for i := range schema {
		f := &schema[i]
		v := t.dict[f.name]
		if v == nil {
			continue
		}
		r.field(f, v, indent, join(where, f.name))
	}
}

func (r *renderer) field(f *field, v *tree, indent, where string) {
	key := indent + f.name + ":"
	switch {
	case v.shape == shapeDict && len(v.dict) == 0:
		r.line(key+" {}", v.at)
	case v.shape == shapeDict && f.kind == kindMap:
		r.line(key, Origin{})
		for _, k := range sortedKeys(v.dict) {
			text, ok := r.replace(where, k, v.dict[k])
			switch {
			case v.dict[k].shape == shapeNull:
				r.line(indent+"  "+scalarYAML(k)+": ~", v.dict[k].at)
			case ok:
				r.line(indent+"  "+scalarYAML(k)+": "+scalarYAML(text), v.dict[k].at)
			}
		}
	case v.shape == shapeDict:
		r.line(key, Origin{})
		r.dict(f.fields, v, indent+"  ", where)
	case v.shape == shapeList && len(v.items) == 0:
		r.line(key+" []", v.at)
	case v.shape == shapeList:
		r.line(key, Origin{})
		for _, item := range v.items {
			r.item(f, item, indent+"  ", where)
		}
	case f.kind == kindText:
		r.line(key+" "+scalarYAML(v.text), v.at)
	default:
		r.line(key+" "+v.text, v.at)
	}
}

// item writes one entry of a list.
func (r *renderer) item(f *field, t *tree, indent, where string) {
	if t.shape == shapeScalar {
		r.line(indent+"- "+scalarYAML(t.text), t.at)
		return
	}
	if f.kind == kindRefs && len(t.dict) == 1 {
		r.line(indent+"- "+scalarYAML(t.get("path").text), t.get("path").at)
		return
	}
	if f.name == "host_files" {
		text, ok := r.replace(where, t.get("dest").text, t.get("src"))
		if !ok {
			return
		}
		changed := newDict(t.at)
		changed.put("src", &tree{text: text, at: t.get("src").at})
		for _, k := range t.keys {
			if k != "src" {
				changed.put(k, t.dict[k])
			}
		}
		t = changed
	}
	var lines strings.Builder
	sub := &renderer{w: &lines, replace: r.replace}
	sub.dict(f.fields, t, indent+"  ", where)
	first := strings.TrimSuffix(lines.String(), "\n")
	r.line(indent+"- "+strings.TrimPrefix(first, indent+"  "), Origin{})
}

// scalarYAML formats a text so that the core schema reads it back as text. It
// has no quotes if it is unambiguous, otherwise double quotes on one line.
func scalarYAML(s string) string {
	if s != "" && bare(s) {
		return s
	}
	var out strings.Builder
	out.WriteByte('"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			out.WriteByte('\\')
			out.WriteRune(c)
		case c == '\n':
			out.WriteString(`\n`)
		case c == '\t':
			out.WriteString(`\t`)
		case c < 0x20 || c == 0x7f:
			fmt.Fprintf(&out, `\x%02x`, c)
		case c > 0xffff:
			fmt.Fprintf(&out, `\U%08x`, c)
		case c >= 0x80 && !unicode.IsPrint(c):
			fmt.Fprintf(&out, `\u%04x`, c)
		default:
			out.WriteRune(c)
		}
	}
	out.WriteByte('"')
	return out.String()
}

// bare reports whether a text can be written without quotes.
func bare(s string) bool {
	for i := range len(s) {
		c := s[i]
		word := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '/' || c == '$'
		inner := word || c >= '0' && c <= '9' || strings.IndexByte(".-@+=~", c) >= 0
		if i == 0 && !word || !inner {
			return false
		}
	}
	if _, err := strconv.ParseBool(strings.ToLower(s)); err == nil {
		return false
	}
	switch strings.ToLower(s) {
	case "null", "yes", "no", "on", "off", "y", "n":
		return false
	}
	return true
}
