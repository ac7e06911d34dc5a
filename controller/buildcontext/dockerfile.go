package buildcontext

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"agentsh/internal/lazy"
)

// Instruction is one instruction of a Dockerfile.
type Instruction struct {
	Name string // in capitals
	Args string
	Line int
}

// List is the list of an instruction in JSON form, as in ENTRYPOINT ["a", "b"]; false: it has the form of a shell command.
func (i Instruction) List() (list []string, ok bool) {
	return list, json.Unmarshal([]byte(i.Args), &list) == nil
}

// Dockerfile is the text of a Dockerfile.
type Dockerfile struct {
	Text string
	Last []Instruction // of its last stage, with FROM first
}

// ReadDockerfile reads a Dockerfile of a directory. Errors name its line.
func ReadDockerfile(dir, name string) (Dockerfile, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Dockerfile{}, err
	}
	data, err := readSmall(root, name, maxDockerfile)
	if err := errors.Join(err, root.Close()); err != nil {
		return Dockerfile{}, err
	}
	return ParseDockerfile(name, string(data))
}

// directive is a line at the beginning of a Dockerfile that is for its parser. The first line of another kind ends them.
var directive = lazy.Regexp(`^#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(.+?)\s*$`)

// blanks separate the words of an instruction.
const blanks = " \t\v\f\r"

// ParseDockerfile reads a Dockerfile. name stands in errors.
// It divides the text into instructions as BuildKit does.
func ParseDockerfile(name, data string) (Dockerfile, error) {
	p := parser{lines: strings.Split(strings.TrimPrefix(data, "\ufeff"), "\n"), escape: `\`}
	p.directives()
	d, from := Dockerfile{Text: data}, false
	for p.next < len(p.lines) {
		in, whole := p.instruction()
		if !whole {
			return d, fmt.Errorf("%s:%d: the last instruction has no end", name, in.Line)
		}
		if in.Name == "" {
			continue
		}
		if in.Name == "FROM" {
			d.Last, from = nil, true
		}
		d.Last = append(d.Last, in)
	}
	if !from {
		return d, fmt.Errorf("%s: no FROM", name)
	}
	return d, nil
}

// parser reads a Dockerfile.
type parser struct {
	lines  []string
	next   int    // index of the line that is read next
	escape string // continues a line
}

// line is the next line, without the end of lines of Windows.
func (p *parser) line() string {
	p.next++
	return strings.TrimSuffix(p.lines[p.next-1], "\r")
}

// directives reads the lines at the beginning that are for the parser.
func (p *parser) directives() {
	for _, line := range p.lines {
		m := directive().FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			return
		}
		if strings.EqualFold(m[1], "escape") && (m[2] == "`" || m[2] == `\`) {
			p.escape = m[2]
		}
		p.next++
	}
}

// instruction reads an instruction and the text that follows it. Without a name there was an empty line or a comment. whole is false
// if the Dockerfile ends in it.
func (p *parser) instruction() (in Instruction, whole bool) {
	in.Line = p.next + 1
	var joined strings.Builder
	for first := true; ; first = false {
		if p.next == len(p.lines) {
			return in, false
		}
		line := p.line()
		trimmed := strings.Trim(line, blanks)
		if trimmed == "" || trimmed[0] == '#' {
			if first {
				return in, true
			}
			continue // between continued lines
		}
		rest, more := p.continued(line)
		joined.WriteString(rest)
		if !more {
			break
		}
	}
	text := strings.Trim(joined.String(), blanks)
	word, args := text, ""
	if i := strings.IndexAny(text, blanks); i >= 0 {
		word, args = text[:i], strings.TrimLeft(text[i:], blanks)
	}
	in.Name, in.Args = strings.ToUpper(word), args
	return in, p.skip(in.heredocs())
}

// continued removes the character that continues a line. Twice, it is an ordinary one.
func (p *parser) continued(line string) (rest string, more bool) {
	rest, more = strings.CutSuffix(strings.TrimRight(line, " \t"), p.escape)
	if !more || strings.HasSuffix(rest, p.escape) {
		return line, false
	}
	return rest, true
}

// skip reads the texts that follow an instruction. It returns false if one has no end.
func (p *parser) skip(texts []heredoc) bool {
	for _, h := range texts {
		for {
			if p.next == len(p.lines) {
				return false
			}
			line := p.line()
			if h.tabs {
				line = strings.TrimLeft(line, "\t")
			}
			if line == h.end {
				break
			}
		}
	}
	return true
}

// heredoc is text that follows an instruction, as in RUN <<END.
type heredoc struct {
	end  string // the line behind it
	tabs bool   // before that line do not count
}

// heredocWord is the word that announces such text: '1<<END' and '<<-"END"', and neither '<<<x' nor '$((1<<x))'.
var heredocWord = lazy.Regexp(`^\d*<<(-?)([^<]+)$`)

// heredocs are the texts that follow an instruction.
func (i Instruction) heredocs() (out []heredoc) {
	name, args := i.Name, i.Args
	if name == "ONBUILD" {
		name, args, _ = strings.Cut(args, " ")
		name = strings.ToUpper(name)
	}
	if _, json := (Instruction{Args: args}).List(); json || name != "RUN" && name != "COPY" && name != "ADD" {
		return nil
	}
	for _, w := range words(args) {
		if m := heredocWord().FindStringSubmatch(w); m != nil {
			out = append(out, heredoc{end: unquoted(m[2]), tabs: m[1] != ""})
		}
	}
	return out
}

// words divides a text at blanks outside of quotes. Quotes and backslashes stay.
func words(text string) (out []string) {
	quote, begin := byte(0), -1
	for i := 0; i < len(text); i++ {
		c := text[i]
		blank := quote == 0 && strings.IndexByte(blanks, c) >= 0
		switch {
		case blank && begin >= 0:
			out, begin = append(out, text[begin:i]), -1
		case !blank && begin < 0:
			begin = i
		}
		switch {
		case c == '\\' && quote != '\'':
			i++ // the next one is ordinary
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case c == quote:
			quote = 0
		}
	}
	if begin >= 0 {
		out = append(out, text[begin:])
	}
	return out
}

// unquoted is a word without its quotes and backslashes.
func unquoted(word string) string {
	var out strings.Builder
	quote := byte(0)
	for i := 0; i < len(word); i++ {
		switch c := word[i]; {
		case c == '\\' && quote != '\'' && i+1 < len(word):
			i++
			out.WriteByte(word[i])
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case c == quote:
			quote = 0
		default:
			out.WriteByte(c)
		}
	}
	return out.String()
}
