// Package text prints text from commands, files and messages safely: the text
// cannot move the cursor, hide a part of itself or look like other text.
package text

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Visible returns s with unprintable characters escaped. Control characters,
// line ends, invisible and direction-changing characters become \x1b or \u202e.
// Bytes that are not UTF-8 become \xff.
func Visible(s string) string {
	clean := true
	for _, r := range s {
		clean = clean && r != utf8.RuneError && visible(r)
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case visible(r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		i += size
	}
	return b.String()
}

// visible reports whether a character shows something. Some letters and marks do not.
func visible(r rune) bool {
	return unicode.IsPrint(r) && !unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) &&
		r != '\u2800' && r != '\U0001d159' // a pattern without dots, a note without a head
}

// Line is [Visible] except that tabs stay unchanged.
func Line(s string) string {
	parts := strings.Split(s, "\t")
	for i := range parts {
		parts[i] = Visible(parts[i])
	}
	return strings.Join(parts, "\t")
}

// DeniedPrefix begins each line of [Denied].
const DeniedPrefix = "agentsh: denied: "

// Denied describes a refusal in one line: what was refused, by which rule (empty: none),
// where the rule is (empty: nowhere), and a message (may be empty).
func Denied(what, rule, at, message string) string {
	line := DeniedPrefix + Visible(what)
	if rule != "" {
		if at == "" {
			at = "the policy's default"
		}
		line += " (rule " + Visible(rule) + ", " + Visible(at) + ")"
	}
	if message != "" {
		line += ": " + Visible(message)
	}
	return line
}

// Unreachable describes in one line a destination that is allowed and could not be reached.
func Unreachable(what, message string) string {
	return "agentsh: not reached: " + Visible(what) + ": " + Visible(message)
}

// Short returns [Visible] of at most limit characters of s. Longer text is cut,
// and its length in bytes is appended.
func Short(s string, limit int) string {
	seen := 0
	for i := range s {
		if seen == limit {
			return fmt.Sprintf("%s... (%d bytes)", Visible(s[:i]), len(s))
		}
		seen++
	}
	return Visible(s)
}

// Args returns an argument vector on one line of about limit characters. An
// ambiguous argument is quoted as in Go. If arguments are left out, their
// number is appended.
func Args(argv []string, limit int) string {
	var b strings.Builder
	for i, arg := range argv {
		if i > 0 {
			b.WriteByte(' ')
		}
		if b.Len() >= limit {
			fmt.Fprintf(&b, "... (%d more arguments)", len(argv)-i)
			break
		}
		b.WriteString(argument(arg, limit-b.Len()))
	}
	return b.String()
}

func argument(s string, limit int) string {
	short, rest := s, ""
	if len(s) > limit {
		cut := limit
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		short, rest = s[:cut], fmt.Sprintf("... (%d bytes)", len(s))
	}
	quoted := Visible(strconv.Quote(short))
	if short == "" || strings.ContainsAny(short, " \"'`\\") || quoted != `"`+short+`"` {
		return quoted + rest
	}
	return short + rest
}

// Count returns a number with its noun: "1 file", "2 files", "3 entries", "4 sandboxes".
func Count[N int | int64 | uint64](n N, noun string) string {
	if n != 1 {
		noun = plural(noun)
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// plural is the plural of a noun, by the rules of its ending.
func plural(noun string) string {
	stem, y := strings.CutSuffix(noun, "y")
	switch {
	case y && !strings.ContainsRune("aeou", rune(noun[max(len(stem)-1, 0)])):
		return stem + "ies"
	case strings.HasSuffix(noun, "s"), strings.HasSuffix(noun, "x"), strings.HasSuffix(noun, "ch"), strings.HasSuffix(noun, "sh"):
		return noun + "es"
	}
	return noun + "s"
}
