package policytest

import (
	"regexp/syntax"
	"strings"
)

// regexTexts returns texts that a regular expression matches. It returns none
// for an invalid expression.
func regexTexts(expression string) []string {
	re, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return nil
	}
	return bounded(nodeTexts(re.Simplify(), 0), 32)
}

func nodeTexts(re *syntax.Regexp, depth int) []string {
	if depth > 50 {
		return []string{""}
	}
	switch re.Op {
	case syntax.OpLiteral:
		return []string{string(re.Rune)}
	case syntax.OpCharClass:
		return classTexts(re.Rune)
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return []string{"x"}
	case syntax.OpWordBoundary:
		return []string{"", " "}
	case syntax.OpCapture, syntax.OpPlus:
		return nodeTexts(re.Sub[0], depth+1)
	case syntax.OpStar, syntax.OpQuest:
		return append([]string{""}, nodeTexts(re.Sub[0], depth+1)...)
	case syntax.OpRepeat:
		one := nodeTexts(re.Sub[0], depth+1)
		return []string{strings.Repeat(one[0], max(re.Min, 1))}
	case syntax.OpAlternate:
		var out []string
		for _, sub := range re.Sub {
			out = append(out, nodeTexts(sub, depth+1)...)
		}
		return out
	case syntax.OpConcat:
		out := []string{""}
		for _, sub := range re.Sub {
			out = bounded(product(out, nodeTexts(sub, depth+1), ""), 32)
		}
		return out
	}
	return []string{""}
}

// classTexts returns members of a class: the bounds of its first ranges,
// printable ones if there are any.
func classTexts(ranges []rune) []string {
	var out []string
	for i := 0; i+1 < len(ranges) && len(out) < 4; i += 2 {
		for _, low := range []rune{'a', ' '} {
			first, last := max(ranges[i], low), min(ranges[i+1], '~')
			if first <= last {
				out = append(out, string(first), string(last))
				break
			}
		}
	}
	if len(out) == 0 && len(ranges) > 0 {
		return []string{string(ranges[0])}
	}
	return out
}
