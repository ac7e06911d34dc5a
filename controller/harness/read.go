package harness

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// maxFile is the largest harness, provider or .env file read, in bytes.
const maxFile = 1 << 20

// maxDepth is how deep mappings and lists of a file may nest.
const maxDepth = 32

// ReadFile reads a regular file of at most maxFile bytes. It does not wait for
// a writer when the file is a pipe.
func ReadFile(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, plainError(err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, plainError(err)
	case info.IsDir():
		return nil, errors.New("is a directory, not a file")
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, plainError(err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("is larger than %d bytes", maxFile)
	}
	return data, nil
}

// plainError is err without the operation and path, which the place already tells.
func plainError(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// parse reads the one YAML document of a file as nodes.
func parse(name string, data []byte) (*yaml.Node, Problems) {
	var ps Problems
	if at, what := badByte(name, data); what != "" {
		ps.errorf(at, RuleSyntax, "%s", what)
		return nil, ps
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		ps.errorf(Origin{File: name, Line: 1, Column: 1}, RuleSyntax, "the file is empty")
		return nil, ps
	case err != nil:
		return nil, append(ps, syntaxProblem(name, err))
	}
	switch err := dec.Decode(&next); {
	case errors.Is(err, io.EOF):
	case err != nil:
		return nil, append(ps, syntaxProblem(name, err))
	default:
		ps.errorf(Origin{File: name, Line: next.Line, Column: next.Column}, RuleSyntax, "a second document: one file describes one agent")
		return nil, ps
	}
	return doc.Content[0], ps
}

// badByte finds the first byte that no text file has.
func badByte(name string, data []byte) (Origin, string) {
	bad, what := -1, ""
	if i := bytes.IndexByte(data, 0); i >= 0 {
		bad, what = i, "a NUL byte"
	}
	for i := 0; i < len(data) && (bad < 0 || i < bad); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			bad, what = i, "not UTF-8"
			break
		}
		i += n
	}
	if bad < 0 {
		return Origin{}, ""
	}
	before := data[:bad]
	line := bytes.Count(before, []byte("\n")) + 1
	column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
	return Origin{File: name, Line: line, Column: column}, what
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// syntaxProblem is a parser's error with the line it names.
func syntaxProblem(name string, err error) Problem {
	at, text := Origin{File: name, Line: 1, Column: 1}, err.Error()
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		text = m[2]
		if n, err := strconv.Atoi(m[1]); err == nil {
			at.Line = n
		}
	}
	return Problem{At: at, Severity: Error, Rule: RuleSyntax, Message: text}
}

// scalarKind is the type of a plain scalar in the core schema of YAML 1.2.
type scalarKind uint8

const (
	scalarText scalarKind = iota
	scalarNull
	scalarBool
	scalarInt
	scalarNumber
)

// See YAML 1.2.2, 10.3.2 (core schema): the words of YAML 1.1 (yes, no, on,
// off), its octal 017, its 1_000 and its dates are text or decimal numbers.
var (
	coreInt    = regexp.MustCompile(`^([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$`)
	coreNumber = regexp.MustCompile(`^([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$`)
)

// scalarOf is the core schema type of a scalar node.
func scalarOf(n *yaml.Node) scalarKind {
	if n.Style&yaml.TaggedStyle != 0 {
		switch n.ShortTag() {
		case "!!null":
			return scalarNull
		case "!!bool":
			return scalarBool
		case "!!int":
			return scalarInt
		case "!!float":
			return scalarNumber
		}
		return scalarText
	}
	if n.Style&^yaml.FlowStyle != 0 {
		return scalarText
	}
	switch n.Value {
	case "", "~", "null", "Null", "NULL":
		return scalarNull
	case "true", "True", "TRUE", "false", "False", "FALSE":
		return scalarBool
	}
	switch {
	case coreInt.MatchString(n.Value):
		return scalarInt
	case coreNumber.MatchString(n.Value):
		return scalarNumber
	}
	return scalarText
}

// coreTags are the tags that may be written out.
var coreTags = map[string]bool{
	"":        true,
	"!!str":   true,
	"!!int":   true,
	"!!bool":  true,
	"!!float": true,
	"!!null":  true,
	"!!map":   true,
	"!!seq":   true,
}

// parseInt is the value of a whole number of the core schema.
func parseInt(s string) (int, error) {
	base := 10
	switch {
	case strings.HasPrefix(s, "0o"):
		s, base = s[2:], 8
	case strings.HasPrefix(s, "0x"):
		s, base = s[2:], 16
	}
	n, err := strconv.ParseInt(s, base, 32)
	return int(n), err
}
