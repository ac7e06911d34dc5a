package harness

import (
	"bytes"
	"fmt"
	"strings"

	"agentsh/internal/strictyaml"
)

// Migrate rewrites the text of a harness file: runner_env becomes env.runner,
// at the top level and in forge and overlay blocks. Comments and spelling stay.
// Keys that env.runner also sets are dropped, because env.runner had precedence
// there. Migrate checks that the meaning is the same. A text that cannot be
// rewritten line by line is an error. changed is false if the text has no
// runner_env.
func Migrate(name string, data []byte) (out []byte, changed bool, err error) {
	before, err := meaning(name, data)
	if err != nil {
		return nil, false, err
	}
	for range len(data) {
		n, ps := parse(name, data)
		if ps.HasErrors() {
			return nil, false, ps
		}
		block := deprecatedBlock(n)
		if block == nil {
			break
		}
		if data, err = moveRunnerEnv(name, data, block); err != nil {
			return nil, false, err
		}
		changed = true
	}
	after, err := meaning(name, data)
	if err != nil || !equal(before, after) {
		return nil, false, fmt.Errorf("%s cannot be rewritten line by line: move runner_env to env.runner by hand", name)
	}
	return data, changed, nil
}

// meaning is the checked content of a file, with the short forms of every block
// folded.
func meaning(name string, data []byte) (*tree, error) {
	l := NewLoader(Options{})
	f := &file{name: name, forges: map[string]*tree{}}
	n, ps := parse(name, data)
	if n == nil {
		return nil, ps
	}
	f.problems = ps
	l.build(n, f, anyForge(n))
	if f.problems.HasErrors() {
		return nil, f.problems.Errors()
	}
	out := newDict(Origin{})
	out.put("top", f.top)
	for name, t := range f.forges {
		out.put("forge."+name, t)
	}
	for i, o := range f.overlays {
		out.put(fmt.Sprintf("overlays.%d", i), o.block)
	}
	return out, nil
}

// anyForge are the names of the forge blocks of a file. Migrate accepts unknown
// forges.
func anyForge(n *strictyaml.Node) []string {
	var names []string
	if forge := strictyaml.Value(n, "forge"); forge != nil {
		for i := 0; i+1 < len(forge.Content); i += 2 {
			names = append(names, forge.Content[i].Value)
		}
	}
	return names
}

// deprecatedBlock is the first mapping with the key runner_env, or nil.
func deprecatedBlock(n *strictyaml.Node) *strictyaml.Node {
	blocks := []*strictyaml.Node{n}
	if forge := strictyaml.Value(n, "forge"); forge != nil && forge.Kind == strictyaml.Mapping {
		for i := 1; i < len(forge.Content); i += 2 {
			blocks = append(blocks, forge.Content[i])
		}
	}
	if overlays := strictyaml.Value(n, "overlays"); overlays != nil {
		blocks = append(blocks, overlays.Content...)
	}
	for _, b := range blocks {
		if strictyaml.Value(b, "runner_env") != nil {
			return b
		}
	}
	return nil
}

// lines is a text split into lines, each with its line end.
type lines [][]byte

// moveRunnerEnv rewrites one block.
func moveRunnerEnv(name string, data []byte, block *strictyaml.Node) ([]byte, error) {
	if strictyaml.Flow(block) {
		return nil, byHand(name, block, "the block is written in braces")
	}
	text := lines(bytes.SplitAfter(data, []byte("\n")))
	key := keyNode(block, "runner_env")
	from, to := text.extent(key)
	old := strictyaml.Value(block, "runner_env")
	env := strictyaml.Value(block, "env")
	if env == nil {
		return text.nest(key, from, to), nil
	}
	if strictyaml.Flow(old) || strictyaml.Flow(env) || env.Kind != strictyaml.Mapping {
		return nil, byHand(name, block, "env or runner_env is written in braces")
	}
	moved := append(lines(nil), text[from+1:to]...)
	into := keyNode(env, "runner")
	runner := strictyaml.Value(env, "runner")
	step := "  "
	indent := strings.Repeat(" ", env.Content[0].Column-1)
	at := 0
	switch {
	case strictyaml.IsNull(old) || len(old.Content) == 0:
		moved = nil
	case runner == nil:
		_, at = text.extent(keyNode(block, "env"))
		moved = append(lines{[]byte(indent + "runner:\n")}, moved.shift(old.Content[0].Column-1, indent+step)...)
	case runner.Kind != strictyaml.Mapping || strictyaml.Flow(runner) || len(runner.Content) == 0:
		return nil, byHand(name, block, "env.runner is written in braces")
	default:
		_, at = text.extent(into)
		moved = text.without(old, runner, from+1, to).shift(old.Content[0].Column-1, strings.Repeat(" ", runner.Content[0].Column-1))
	}
	return text.move(from, to, at, moved), nil
}

func byHand(name string, n *strictyaml.Node, why string) error {
	return fmt.Errorf("%s:%d:%d: %s: move runner_env to env.runner by hand", name, n.Line, n.Column, why)
}

func keyNode(n *strictyaml.Node, key string) *strictyaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i]
		}
	}
	return nil
}

// extent is the range of lines of a key and its value. These are the following
// lines with a deeper indentation, without the blank lines and comments at
// their end.
func (l lines) extent(key *strictyaml.Node) (from, to int) {
	from = key.Line - 1
	to = from + 1
	for i := to; i < len(l); i++ {
		trimmed := bytes.TrimLeft(l[i], " ")
		if len(bytes.TrimSpace(trimmed)) == 0 {
			continue
		}
		if len(l[i])-len(trimmed) < key.Column {
			break
		}
		to = i + 1
	}
	return from, to
}

// nest replaces runner_env by env with the key runner in it, and indents its
// lines once more.
func (l lines) nest(key *strictyaml.Node, from, to int) []byte {
	indent := strings.Repeat(" ", key.Column-1)
	head := l[from]
	rest := head[key.Column-1+len("runner_env"):]
	out := append(lines(nil), l[:from]...)
	out = append(out, append(append([]byte(nil), head[:key.Column-1]...), "env:\n"...), append([]byte(indent+"  runner"), rest...))
	for _, line := range l[from+1 : to] {
		out = append(out, indented(line, "  "))
	}
	return bytes.Join(append(out, l[to:]...), nil)
}

// indented adds the indentation by to a line that is not blank.
func indented(line []byte, by string) []byte {
	if len(bytes.TrimSpace(line)) == 0 {
		return line
	}
	return append([]byte(by), line...)
}

// shift replaces the first from spaces of each line by to.
func (l lines) shift(from int, to string) lines {
	var out lines
	for _, line := range l {
		have := len(line) - len(bytes.TrimLeft(line, " "))
		if len(bytes.TrimSpace(line)) > 0 {
			line = append([]byte(to), line[min(have, from):]...)
		}
		if !bytes.HasSuffix(line, []byte("\n")) {
			line = append(line, '\n')
		}
		out = append(out, line)
	}
	return out
}

// without are the lines of old without the keys that runner sets.
func (l lines) without(old, runner *strictyaml.Node, from, to int) lines {
	drop := map[int]bool{}
	for i := 0; i+1 < len(old.Content); i += 2 {
		if strictyaml.Value(runner, old.Content[i].Value) == nil {
			continue
		}
		first, last := l.extent(old.Content[i])
		for n := first; n < last; n++ {
			drop[n] = true
		}
	}
	var out lines
	for n := from; n < to; n++ {
		if !drop[n] {
			out = append(out, l[n])
		}
	}
	return out
}

// move removes the lines from-to and inserts others before line at.
func (l lines) move(from, to, at int, moved lines) []byte {
	var out lines
	put := func() {
		if n := len(out); n > 0 && len(moved) > 0 && !bytes.HasSuffix(out[n-1], []byte("\n")) {
			out[n-1] = append(append([]byte(nil), out[n-1]...), '\n')
		}
		out = append(out, moved...)
	}
	for n := range l {
		if n == at && len(moved) > 0 {
			put()
		}
		if n < from || n >= to {
			out = append(out, l[n])
		}
	}
	if at >= len(l) && len(moved) > 0 {
		put()
	}
	return bytes.Join(out, nil)
}
