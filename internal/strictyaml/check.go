package strictyaml

import (
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"agentsh/internal/mistake"
)

// checkBytes refuses what no file contains and what would cost the library too
// much: it counts the marks that make nodes before the library sees the file.
func (r *Reader) checkBytes(data []byte) bool {
	d, top := r.dialect, &Node{Line: 1, Column: 1}
	if d.MaxBytes > 0 && len(data) > d.MaxBytes {
		r.failText(top, d.Texts.TooLarge.or(DefaultTexts.TooLarge), len(data), d.MaxBytes)
		return false
	}
	marks, line, column := 0, 1, 1
	for i := 0; i < len(data); {
		c, n := utf8.DecodeRune(data[i:])
		i += n
		switch {
		case c == utf8.RuneError && n == 1:
			r.failText(&Node{Line: line, Column: column}, d.Texts.NotUTF8.or(DefaultTexts.NotUTF8), data[i-1])
			return false
		case c == '\r' && i < len(data) && data[i] == '\n':
		case c == 0, !d.Controls && invisible(c):
			r.failText(&Node{Line: line, Column: column}, d.Texts.Control.or(DefaultTexts.Control), c)
			return false
		case c == '\n' || c == ',' || c == ':' || c == '-' || c == '[' || c == '{' || c == '?':
			marks++
		}
		column++
		if c == '\n' {
			line, column = line+1, 1
		}
	}
	if d.MaxMarks > 0 && marks > d.MaxMarks {
		r.failText(top, d.Texts.TooMany.or(DefaultTexts.TooMany), d.MaxMarks)
		return false
	}
	return true
}

// invisible reports characters that make a file look other than it reads:
// controls, line ends of YAML that editors do not show, and marks that change
// the direction of writing.
func invisible(c rune) bool {
	switch {
	case c == '\n' || c == '\t':
		return false
	case c < ' ' || c >= 0x7f && c < 0xa0:
		return true
	}
	return c >= 0x2028 && c <= 0x202e || c >= 0x2066 && c <= 0x2069 || c == 0xfeff
}

// coreTags are the tags of the core schema.
var coreTags = map[string]bool{
	"": true, "!!str": true, "!!int": true, "!!bool": true, "!!float": true, "!!null": true, "!!map": true, "!!seq": true,
}

// checkNode refuses what a dialect does without: anchors, aliases and merge keys,
// which make small files big, tags, deep nesting, long values. It reports each.
func (r *Reader) checkNode(n *Node, depth int) bool {
	d, ok := r.dialect, true
	switch {
	case d.MaxDepth > 0 && depth > d.MaxDepth:
		r.failText(n, d.Texts.TooDeep.or(DefaultTexts.TooDeep), d.MaxDepth)
		return false
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		r.failText(n, d.Texts.Anchor.or(DefaultTexts.Anchor))
		return false
	case n.Tag == "!!merge":
		r.failText(n, d.Texts.Merge.or(DefaultTexts.Merge))
		return false
	case n.Style&yaml.TaggedStyle != 0 && (!d.CoreTags || !coreTags[n.ShortTag()]):
		r.failText(n, d.Texts.Tag.or(DefaultTexts.Tag), n.Tag)
		ok = false
	case !d.Quotes && n.Kind == Scalar && n.Style == 0 && mistake.Wrapped(n.Value):
		f := mistake.Around(n.Value)
		r.Fail(n, f.Hint, "%s", f.Message)
		ok = false
	case d.MaxText > 0 && len(n.Value) > d.MaxText:
		r.failText(n, d.Texts.TooLong.or(DefaultTexts.TooLong), len(n.Value), d.MaxText)
		return false
	}
	for _, child := range n.Content {
		ok = r.checkNode(child, depth+1) && ok
	}
	return ok
}
