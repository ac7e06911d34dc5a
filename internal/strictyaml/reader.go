package strictyaml

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Reader reads the nodes of one file. Each of its methods reports a problem with
// the node it is given, and then returns false.
type Reader struct {
	File    string
	dialect *Dialect
	report  func(Problem)
}

// NewReader returns a reader for nodes of a file. report gets each problem.
func NewReader(file string, d *Dialect, report func(Problem)) Reader {
	return Reader{File: file, dialect: d, report: report}
}

// Fail reports a problem at n. The hint may be empty.
func (r *Reader) Fail(n *Node, hint, format string, args ...any) {
	r.report(Problem{File: r.File, Line: n.Line, Column: n.Column, Message: fmt.Sprintf(format, args...), Hint: hint})
}

func (r *Reader) failText(n *Node, t Text, args ...any) {
	message := t.Message
	if strings.Contains(message, "%") {
		message = fmt.Sprintf(message, args...)
	}
	r.report(Problem{File: r.File, Line: n.Line, Column: n.Column, Message: message, Hint: t.Hint})
}

// Pairs returns the keys and values of a mapping.
func Pairs(n *Node) iter.Seq2[*Node, *Node] {
	return func(yield func(*Node, *Node) bool) {
		for i := 0; n.Kind == Mapping && i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// Value returns the value of a key of a mapping; nil when it is absent or n is no
// mapping.
func Value(n *Node, key string) *Node {
	if n == nil {
		return nil
	}
	for k, v := range Pairs(n) {
		if k.Value == key {
			return v
		}
	}
	return nil
}

// Keys reads a mapping. read returns how the value of a key is read, or nil for a
// key that is not known. names returns the known ones for the hint; it may be nil.
// Unknown and repeated keys are problems. what names the mapping in messages.
func (r *Reader) Keys(n *Node, what string, names func() []string, read func(key *Node) func(value *Node)) bool {
	texts := &r.dialect.Texts
	if n.Kind != Mapping {
		r.failText(n, texts.NotMapping.or(DefaultTexts.NotMapping), what)
		return false
	}
	seen := make(map[string]int, len(n.Content)/2)
	for key, value := range Pairs(n) {
		first, twice := seen[key.Value]
		var known func(*Node)
		if key.Kind == Scalar {
			known = read(key)
		}
		switch {
		case known == nil:
			text := texts.UnknownKey.or(DefaultTexts.UnknownKey)
			if text.Hint == "" && names != nil {
				text.Hint = DidYouMean(key.Value, names())
			}
			r.failText(key, text, what, Shorten(key.Value))
		case twice:
			r.failText(key, texts.TwiceKey.or(DefaultTexts.TwiceKey), what, Shorten(key.Value), first)
		default:
			known(value)
		}
		if !twice {
			seen[key.Value] = key.Line
		}
	}
	return true
}

// Fields is [Reader.Keys] with a reader for each known key.
func (r *Reader) Fields(n *Node, what string, readers map[string]func(*Node)) bool {
	names := func() []string { return slices.Sorted(maps.Keys(readers)) }
	return r.Keys(n, what, names, func(key *Node) func(*Node) { return readers[key.Value] })
}

// Shorten cuts a text of a file that a message repeats.
func Shorten(s string) string {
	if len(s) > 80 {
		return s[:77] + "..."
	}
	return s
}

// Text reads a scalar as it is written: 123 and true are texts here.
func (r *Reader) Text(n *Node) (string, bool) {
	if n.Kind != Scalar || TypeOf(n) == Null {
		r.failText(n, r.dialect.Texts.NotText.or(DefaultTexts.NotText))
		return "", false
	}
	if strings.IndexByte(n.Value, 0) >= 0 {
		r.Fail(n, "", "text holds a NUL byte")
		return "", false
	}
	return n.Value, true
}

// Word reads one of a fixed set of words and returns its index.
func (r *Reader) Word(n *Node, what string, words []string) (int, bool) {
	s, ok := r.Text(n)
	if !ok {
		return 0, false
	}
	if i := slices.Index(words, s); i >= 0 {
		return i, true
	}
	r.Fail(n, DidYouMean(s, words), "unknown %s %q", what, Shorten(s))
	return 0, false
}

// Int reads a decimal whole number from low to high.
func (r *Reader) Int(n *Node, low, high int64) (int64, bool) {
	if n.Kind != Scalar || TypeOf(n) != Int {
		r.failText(n, r.dialect.Texts.NotInt.or(DefaultTexts.NotInt))
		return 0, false
	}
	v, err := strconv.ParseInt(n.Value, 10, 64)
	if err != nil {
		r.Fail(n, "write it in decimal", "%q is not a whole number that fits", Shorten(n.Value))
		return 0, false
	}
	if v < low || v > high {
		r.Fail(n, "", "%d is out of range, %d to %d", v, low, high)
		return 0, false
	}
	return v, true
}

// Bool reads true or false.
func (r *Reader) Bool(n *Node) (value, ok bool) {
	if n.Kind == Scalar && TypeOf(n) == Bool {
		switch n.Value {
		case "true":
			return true, true
		case "false":
			return false, true
		}
	}
	r.failText(n, r.dialect.Texts.NotBool.or(DefaultTexts.NotBool))
	return false, false
}

// Duration reads a time above zero as "90s", "5m" or "1h30m".
func (r *Reader) Duration(n *Node) (time.Duration, bool) {
	s, ok := r.Text(n)
	if !ok {
		return 0, false
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		r.Fail(n, "write it as 90s, 5m or 1h30m", "%q is not a length of time above zero", Shorten(s))
		return 0, false
	}
	return d, true
}

// Items calls each for every item of a list.
func (r *Reader) Items(n *Node, each func(item *Node)) bool {
	if n.Kind != List {
		text := r.dialect.Texts.NotList.or(DefaultTexts.NotList)
		if n.Kind == Scalar && TypeOf(n) != Null && !strings.Contains(n.Value, "\n") {
			text.Hint = "write [" + Shorten(n.Value) + "]"
		}
		r.failText(n, text)
		return false
	}
	for _, item := range n.Content {
		each(item)
	}
	return true
}
