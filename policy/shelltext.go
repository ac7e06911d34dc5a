package policy

import (
	"errors"
	"fmt"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// MaxShellText is the longest text [ShellCommands] parses, in bytes.
const MaxShellText = 16 << 10

// ShellCommand is one simple command of a shell script.
type ShellCommand struct {
	Argv  []string // words; a word that the shell would expand is kept as written
	Known []bool   // whether the word of that index is a literal
	Line  int      // from 1
}

// ShellCommands returns the commands that a shell script names, for
// explanations and tests. It makes no decision, because a script can compute
// program names. Each program that a shell starts is evaluated at its exec. The
// error has the position of a syntax error.
func ShellCommands(text string) ([]ShellCommand, error) {
	if len(text) > MaxShellText {
		return nil, fmt.Errorf("text is %d bytes long, the most is %d", len(text), MaxShellText)
	}
	if nesting(text) > 200 {
		return nil, errors.New("text nests too deep")
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		return nil, fmt.Errorf("shell text: %w", err)
	}
	var out []ShellCommand
	syntax.Walk(file, func(n syntax.Node) bool {
		call, ok := n.(*syntax.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		c := ShellCommand{Line: int(call.Pos().Line())}
		for _, w := range call.Args {
			word, known := literalWord(w)
			if !known {
				word = text[w.Pos().Offset():w.End().Offset()]
			}
			c.Argv, c.Known = append(c.Argv, word), append(c.Known, known)
		}
		out = append(out, c)
		return true
	})
	return out, nil
}

// nesting returns an upper bound of the nesting depth of the text.
func nesting(text string) int {
	depth, most := 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '(', '{', '[', '`':
			depth++
			most = max(most, depth)
		case ')', '}', ']':
			depth = max(depth-1, 0)
		}
	}
	return most
}

// literalWord returns the text of a word that the shell would not expand.
func literalWord(w *syntax.Word) (string, bool) {
	var b strings.Builder
	for i, part := range w.Parts {
		switch part := part.(type) {
		case *syntax.Lit:
			text, ok := unescape(part.Value, i == 0)
			if !ok {
				return "", false
			}
			b.WriteString(text)
		case *syntax.SglQuoted:
			if part.Dollar {
				return "", false
			}
			b.WriteString(part.Value)
		case *syntax.DblQuoted:
			for _, inner := range part.Parts {
				lit, ok := inner.(*syntax.Lit)
				if !ok || part.Dollar {
					return "", false
				}
				b.WriteString(unescapeQuoted(lit.Value))
			}
		default:
			return "", false
		}
	}
	return b.String(), true
}

// unescape removes the backslashes from an unquoted literal. It returns false
// if the literal contains something that the shell would expand.
func unescape(text string, first bool) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text):
			i++
			if text[i] != '\n' {
				b.WriteByte(text[i])
			}
		case strings.IndexByte("*?[{", c) >= 0 || c == '~' && first && i == 0:
			return "", false
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), true
}

// unescapeQuoted removes the backslashes that are escapes within double quotes.
func unescapeQuoted(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) && strings.IndexByte("$`\"\\\n", text[i+1]) >= 0 {
			i++
			if text[i] == '\n' {
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}
