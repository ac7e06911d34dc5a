package syntax

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"agentsh/policy"
)

// The bounds of one policy. What exceeds them is refused before it costs
// memory: a file is scanned once for its size and for the marks that make
// nodes before the YAML parser sees it.
const (
	MaxSource     = 4 << 20   // bytes of one file
	maxMarks      = 400_000   // line ends and : , - [ { of one file, which bound its nodes
	maxDepth      = 12        // levels of nesting
	maxSources    = 64        // files reached by extends
	maxRules      = 50_000    // rules of a whole policy
	maxTotalBytes = 16 << 20  // bytes of all files together
	maxText       = 64 * 1024 // bytes of one value
)

// parseYAML returns the root mapping of a file, nil when there is none to
// read. Problems go to r.
func parseYAML(r *reader, data []byte) *yaml.Node {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if !checkBytes(r, data) {
		return nil
	}
	var document yaml.Node
	if err := unmarshal(data, &document); err != nil {
		pos := yamlPosition(r.file, err)
		if tab, found := indentedByTab(r.file, data); found && (tab.Line == pos.Line || tab.Line == pos.Line+1) {
			r.failAt(tab, "indent with spaces", "a tab is not indentation")
			return nil
		}
		r.failAt(pos, "", yamlMessage(err))
		return nil
	}
	if document.Kind == 0 || len(document.Content) == 0 {
		r.failAt(policy.Position{File: r.file, Line: 1, Column: 1}, "a policy begins with version: 1", "the file is empty")
		return nil
	}
	if !checkNode(r, document.Content[0], 0) {
		return nil
	}
	return document.Content[0]
}

// checkBytes refuses what no policy file holds and what would cost the parser
// too much.
func checkBytes(r *reader, data []byte) bool {
	if len(data) > MaxSource {
		r.failAt(
			policy.Position{File: r.file, Line: 1, Column: 1},
			"split it with extends",
			fmt.Sprintf("the file is %d bytes long, the most is %d", len(data), MaxSource),
		)
		return false
	}
	marks, line, column := 0, 1, 1
	for i := 0; i < len(data); {
		c, n := utf8.DecodeRune(data[i:])
		i += n
		switch {
		case c == utf8.RuneError && n == 1:
			r.failAt(
				policy.Position{File: r.file, Line: line, Column: column},
				"save the file as UTF-8",
				fmt.Sprintf("byte 0x%02x is not UTF-8", data[i-1]),
			)
			return false
		case c == '\r' && i < len(data) && data[i] == '\n':
		case unseen(c):
			r.failAt(
				policy.Position{File: r.file, Line: line, Column: column},
				"remove it",
				fmt.Sprintf("control character %U: the file would not read as it looks", c),
			)
			return false
		case c == '\n' || c == ',' || c == ':' || c == '-' || c == '[' || c == '{' || c == '?':
			marks++
		}
		column++
		if c == '\n' {
			line, column = line+1, 1
		}
	}
	if marks > maxMarks {
		r.failAt(
			policy.Position{File: r.file, Line: 1, Column: 1},
			"split it with extends",
			fmt.Sprintf("the file has more than %d entries", maxMarks),
		)
		return false
	}
	return true
}

// unseen reports characters that make a file look other than it reads: controls,
// line ends of YAML that editors do not show as such, and the marks that turn
// the direction of writing.
func unseen(c rune) bool {
	switch {
	case c == '\n' || c == '\t':
		return false
	case c < ' ' || c >= 0x7f && c < 0xa0:
		return true
	}
	return c >= 0x2028 && c <= 0x202e || c >= 0x2066 && c <= 0x2069 || c == 0xfeff
}

// indentedByTab finds the first line indented with a tab, which is why YAML
// that looks right is not.
func indentedByTab(file string, data []byte) (policy.Position, bool) {
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if blank := len(line) - len(bytes.TrimLeft(line, " ")); blank < len(line) && line[blank] == '\t' {
			return policy.Position{File: file, Line: number, Column: blank + 1}, true
		}
	}
	return policy.Position{}, false
}

// unmarshal turns a panic of the parser into an error: a malformed file must
// not end the program that reads it.
func unmarshal(data []byte, into *yaml.Node) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("yaml: not readable: %v", p)
		}
	}()
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(into); err != nil {
		if err.Error() == "EOF" {
			return nil
		}
		return err
	}
	var second yaml.Node
	if err := decoder.Decode(&second); err == nil {
		return fmt.Errorf("yaml: line %d: the file holds a second document", second.Line)
	} else if err.Error() != "EOF" {
		return err
	}
	return nil
}

var yamlLine = regexp.MustCompile(`line (\d+): `)

// yamlPosition finds the line in a parser error; the parser tells no column.
func yamlPosition(file string, err error) policy.Position {
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		if line, err := strconv.Atoi(m[1]); err == nil {
			return policy.Position{File: file, Line: line, Column: 1}
		}
	}
	return policy.Position{File: file, Line: 1, Column: 1}
}

func yamlMessage(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	return "not YAML: " + yamlLine.ReplaceAllString(text, "")
}

// checkNode refuses the parts of YAML the language does without: anchors,
// aliases and merges, which make small files big, tags, and deep nesting.
func checkNode(r *reader, n *yaml.Node, depth int) bool {
	switch {
	case depth > maxDepth:
		r.fail(n, "", "nested more than %d levels deep", maxDepth)
		return false
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		r.fail(n, "write the value out, or put it in a file named by extends", "anchors and aliases are not part of the policy language")
		return false
	case n.Tag == "!!merge":
		r.fail(n, "use extends", "merge keys are not part of the policy language")
		return false
	case n.Style&yaml.TaggedStyle != 0:
		r.fail(n, "", "tags are not part of the policy language")
		return false
	case len(n.Value) > maxText:
		r.fail(n, "", "value is %d bytes long, the most is %d", len(n.Value), maxText)
		return false
	}
	for _, c := range n.Content {
		if !checkNode(r, c, depth+1) {
			return false
		}
	}
	return true
}
