// Package strictyaml reads the YAML files of both programs.
//
// A file is one document of plain values. [Parse] checks bytes, size, depth and
// what a [Dialect] does not accept. Where the dialect has anchors, the values
// stand in place of their aliases. A [Reader] reads the values and reports each
// problem with file, line and column. Unknown keys come with the nearest known
// one. Reading goes on after a problem, so that people see all of them at once.
//
// Scalars have the types of the core schema of YAML 1.2: yes, on and 0o17 of YAML
// 1.1 are no booleans and no octal numbers.
//
// strictyaml.go calls anchors.go and check.go. reader.go calls scalar.go and nearest.go.
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"agentsh/internal/lazy"

	"gopkg.in/yaml.v3"
)

// Node is one value of a file with its line and column, both from 1. It is the
// type of the YAML library, since a copy of a large file costs as much memory
// again.
type Node = yaml.Node

// The kinds of a [Node].
const (
	Scalar  = yaml.ScalarNode
	List    = yaml.SequenceNode
	Mapping = yaml.MappingNode // Content is key, value, key, value
)

// Flow reports whether a list or mapping is written in brackets or braces.
func Flow(n *Node) bool { return n.Style&yaml.FlowStyle != 0 }

// Problem is one thing wrong with a file.
type Problem struct {
	File         string
	Line, Column int // from 1
	Message      string
	Hint         string // what to write instead, may be empty
}

// String returns "file:line:column: message (hint)".
func (p Problem) String() string {
	text := fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Message)
	if p.Hint != "" {
		text += " (" + p.Hint + ")"
	}
	return text
}

// Dialect is what the files of one kind may contain, and what messages about
// them say. A limit of 0 is no limit.
type Dialect struct {
	MaxBytes int // of the file
	MaxMarks int // line ends and : , - [ { ? of the file, which bound its nodes
	MaxDepth int // levels of nesting
	MaxText  int // bytes of one scalar

	Controls bool // control characters other than tab and line ends are accepted
	CoreTags bool // the tags of the core schema, as !!str, may be written out
	Empty    bool // a file without a document is accepted
	Quotes   bool // plain texts may stand in typographic quotation marks
	Anchors  bool // anchors, aliases and merge keys are accepted, and replaced by their values

	Texts Texts // empty texts are those of DefaultTexts
}

// Text is a message and a hint for one kind of problem. The message is a format
// of package fmt for the arguments that [Texts] lists.
type Text struct{ Message, Hint string }

// Texts are the messages about what a [Dialect] does not accept.
type Texts struct {
	TooLarge Text // bytes, limit
	TooMany  Text // limit
	NotUTF8  Text // byte
	Control  Text // character
	NotYAML  Text // the library's message
	Tab      Text // the library's message; a line is indented with a tab
	None     Text // the file has no document
	Second   Text // a second document
	TooDeep  Text // limit
	Anchor   Text // an anchor or alias
	Merge    Text // a merge key
	Bomb     Text // limit; aliases make the file too large
	Circle   Text // name; an alias within its own anchor

	MergeValue Text // the value of a merge key is no mapping
	Tag        Text // tag
	TooLong    Text // bytes, limit

	NotMapping Text // what
	UnknownKey Text // what, key
	TwiceKey   Text // what, key, line of the first
	NotList    Text
	NotText    Text
	NotInt     Text
	NotBool    Text
}

// DefaultTexts are used where a dialect has no text of its own.
var DefaultTexts = Texts{
	TooLarge:   Text{Message: "the file is %d bytes long, the most is %d"},
	TooMany:    Text{Message: "the file has more than %d entries"},
	NotUTF8:    Text{"byte 0x%02x is not UTF-8", "save the file as UTF-8"},
	Control:    Text{"control character %U: the file would not read as it looks", "remove it"},
	NotYAML:    Text{Message: "not YAML: %s"},
	Tab:        Text{"a tab is not indentation", "indent with spaces"},
	None:       Text{Message: "the file is empty"},
	Second:     Text{Message: "not YAML: the file holds a second document"},
	TooDeep:    Text{Message: "nested more than %d levels deep"},
	Anchor:     Text{"anchors and aliases are not accepted", "write the value out"},
	Merge:      Text{Message: "merge keys are not accepted"},
	Bomb:       Text{"aliases make the file larger than %d entries", "write fewer of them"},
	Circle:     Text{"the alias %s stands within its own anchor", "write the value out"},
	MergeValue: Text{Message: "a merge key names a mapping, or a list of mappings"},
	Tag:        Text{Message: "the tag %s is not accepted"},
	TooLong:    Text{Message: "value is %d bytes long, the most is %d"},
	NotMapping: Text{Message: "%s must be a mapping of keys to values"},
	UnknownKey: Text{Message: "%s has no key %q"},
	TwiceKey:   Text{"key %[2]q is given twice", "merge the two"},
	NotList:    Text{"must be a list", "write it as [one, two]"},
	NotText:    Text{Message: "must be text"},
	NotInt:     Text{Message: "must be a whole number"},
	NotBool:    Text{Message: "must be true or false"},
}

// or returns t, or the default where it is empty.
func (t Text) or(other Text) Text {
	if t.Message == "" {
		return other
	}
	return t
}

// Parse returns the root value of a file. It is nil when the file has problems,
// which go to report, or, where the dialect accepts it, no document.
func Parse(file string, data []byte, d *Dialect, report func(Problem)) *Node {
	r := NewReader(file, d, report)
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if !r.checkBytes(data) {
		return nil
	}
	document, second, err := decode(data)
	switch {
	case err != nil:
		r.notYAML(data, err)
	case document == nil && !d.Empty:
		r.failText(&Node{Line: 1, Column: 1}, d.Texts.None.or(DefaultTexts.None))
	case document == nil:
	case second != nil:
		r.failText(second, d.Texts.Second.or(DefaultTexts.Second))
	case d.Anchors:
		if document = r.withoutAliases(document); document != nil && r.checkNode(document, 0) {
			return document
		}
	case r.checkNode(document, 0):
		return document
	}
	return nil
}

// decode returns the first document and, if there is one, the second. A panic of
// the library is an error: a malformed file must not end the program.
func decode(data []byte) (document, second *Node, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("yaml: not readable: %v", p)
		}
	}()
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var first, next Node
	if err := decoder.Decode(&first); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil, nil
		}
		return nil, nil, err
	}
	if len(first.Content) == 0 {
		return nil, nil, nil
	}
	switch err := decoder.Decode(&next); {
	case err == nil:
		return first.Content[0], &next, nil
	case !errors.Is(err, io.EOF):
		return nil, nil, err
	}
	return first.Content[0], nil, nil
}

var unknownAlias = lazy.Regexp(`^unknown anchor '(.*)' referenced$`)

var libraryLine = lazy.Regexp(`line (\d+): `)

// notYAML reports an error of the library, which gives a line and no column.
func (r *Reader) notYAML(data []byte, err error) {
	at := &Node{Line: 1, Column: 1}
	if m := libraryLine().FindStringSubmatch(err.Error()); m != nil {
		at.Line, _ = strconv.Atoi(m[1]) // digits, by the expression
	}
	text := libraryLine().ReplaceAllString(strings.TrimPrefix(err.Error(), "yaml: "), "")
	if tab := indentedByTab(data); tab != nil && (tab.Line == at.Line || tab.Line == at.Line+1) {
		r.failText(tab, r.dialect.Texts.Tab.or(DefaultTexts.Tab), text)
		return
	}
	message := r.dialect.Texts.NotYAML.or(DefaultTexts.NotYAML)
	alias := ""
	if m := unknownAlias().FindStringSubmatch(text); m != nil {
		alias = m[1]
	}
	if value, near := unquoted(data, at.Line, alias); near != nil {
		message.Hint, at = "in YAML "+mark(value)+": write "+strconv.Quote(value), near
	}
	r.failText(at, message, text)
}

// indentedByTab returns the position of the first line that is indented with a
// tab, or nil. YAML does not accept it, and it looks right.
func indentedByTab(data []byte) *Node {
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if blank := len(line) - len(bytes.TrimLeft(line, " ")); blank < len(line) && line[blank] == '\t' {
			return &Node{Line: number, Column: blank + 1}
		}
	}
	return nil
}

// Marshal returns v as YAML, indented by two spaces. Fields are named by their
// yaml tags. A [Node] becomes what it was read from, without its layout.
func Marshal(v any) ([]byte, error) {
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	err := encoder.Encode(v)
	return text.Bytes(), err
}
