package strictyaml

import (
	"strings"

	"gopkg.in/yaml.v3"

	"agentsh/internal/lazy"
)

// Type is the type of a scalar in the core schema of YAML 1.2.
type Type uint8

// The types of scalars.
const (
	String Type = iota
	Null
	Bool
	Int
	Float
)

// coreFloat is a number that is no integer. See YAML 1.2.2, 10.3.2 (core schema): the words of
// YAML 1.1 (yes, no, on, off), its octal 017, its 1_000 and its dates are text or decimal numbers.
var coreFloat = lazy.Regexp(`^([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$`)

const (
	octalDigits   = "01234567"
	decimalDigits = octalDigits + "89"
	hexDigits     = decimalDigits + "abcdefABCDEF"
)

// isInt reports whether a text is an integer of the core schema.
func isInt(s string) bool {
	digits := decimalDigits
	switch {
	case strings.HasPrefix(s, "0o"):
		s, digits = s[2:], octalDigits
	case strings.HasPrefix(s, "0x"):
		s, digits = s[2:], hexDigits
	case s != "" && (s[0] == '+' || s[0] == '-'):
		s = s[1:]
	}
	return s != "" && strings.Trim(s, digits) == ""
}

// isFloat reports whether a text that is no integer is a number. Most texts are not by their
// first character.
func isFloat(s string) bool {
	return s != "" && strings.IndexByte("+-."+decimalDigits, s[0]) >= 0 && coreFloat().MatchString(s)
}

// TypeOf returns the type of a scalar.
func TypeOf(n *Node) Type {
	if n.Style&yaml.TaggedStyle != 0 {
		switch n.ShortTag() {
		case "!!null":
			return Null
		case "!!bool":
			return Bool
		case "!!int":
			return Int
		case "!!float":
			return Float
		}
		return String
	}
	if n.Style&^yaml.FlowStyle != 0 {
		return String
	}
	switch n.Value {
	case "", "~", "null", "Null", "NULL":
		return Null
	case "true", "True", "TRUE", "false", "False", "FALSE":
		return Bool
	}
	switch {
	case isInt(n.Value):
		return Int
	case isFloat(n.Value):
		return Float
	}
	return String
}

// IsNull reports whether a node is written as null, or has no value.
func IsNull(n *Node) bool { return n.Kind == Scalar && TypeOf(n) == Null }
