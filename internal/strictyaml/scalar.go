package strictyaml

import (
	"agentsh/internal/lazy"

	"gopkg.in/yaml.v3"
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

// See YAML 1.2.2, 10.3.2 (core schema): the words of YAML 1.1 (yes, no, on, off),
// its octal 017, its 1_000 and its dates are text or decimal numbers.
var (
	coreInt   = lazy.Regexp(`^([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$`)
	coreFloat = lazy.Regexp(`^([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$`)
)

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
	case coreInt().MatchString(n.Value):
		return Int
	case coreFloat().MatchString(n.Value):
		return Float
	}
	return String
}

// IsNull reports whether a node is written as null, or has no value.
func IsNull(n *Node) bool { return n.Kind == Scalar && TypeOf(n) == Null }
