package strictyaml

import (
	"bytes"
	"strings"

	"agentsh/internal/lazy"
)

// item matches what may begin a value in a line, and the value without quotation
// marks.
var item = lazy.Regexp(`(^\s*(?:-\s+)+|[\[{,]\s*|:\s+)` +
	`([^\s\[\]{},"'#:]*\$\{[^}\s]*\}[^\s,\]]*|[^\s\[\]{},"'#-](?:[^\s,\[\]{}:]|:[^\s,\]])*)`)

// unquoted returns the value near a line that YAML does not read as text, although
// it looks like text, and its position. The line that the library names is at most
// one away from the value.
// Without a line, of an alias without its anchor, every line is looked at.
func unquoted(data []byte, line int, alias string) (string, *Node) {
	lines := bytes.Split(data, []byte("\n"))
	numbers := []int{line, line + 1, line - 1}
	for i := 0; alias != "" && i < len(lines); i++ {
		numbers = append(numbers, i+1)
	}
	for _, number := range numbers {
		if number < 1 || number > len(lines) {
			continue
		}
		text := string(lines[number-1])
		if strings.HasPrefix(strings.TrimSpace(text), "#") {
			continue
		}
		for _, m := range item().FindAllStringSubmatchIndex(text, -1) {
			value := text[m[4]:m[5]] // at least one character: see item
			if alias != "" && !strings.HasPrefix(value, "*"+alias) {
				continue
			}
			flow := strings.ContainsAny(text[:m[4]], "[{")
			if strings.ContainsRune("*&@`%!|>", rune(value[0])) || flow && strings.Contains(value, "${") {
				return value, &Node{Line: number, Column: len([]rune(text[:m[4]])) + 1}
			}
		}
	}
	return "", nil
}

// mark says what the first character of a value means in YAML.
func mark(value string) string {
	switch value[0] {
	case '*':
		return "* begins an alias"
	case '&':
		return "& begins an anchor"
	case '!':
		return "! begins a tag"
	case '|', '>':
		return value[:1] + " begins a block of text"
	case '@', '`', '%':
		return "no text begins with " + value[:1]
	}
	return "{ in a list begins a mapping"
}
