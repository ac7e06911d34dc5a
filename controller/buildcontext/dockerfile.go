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

// heredoc is the beginning of text that follows an instruction, as in RUN <<END.
var heredoc = lazy.Regexp(`<<-?["']?([A-Za-z_][A-Za-z0-9_]*)["']?`)

// escapeDirective changes the character that continues a line.
var escapeDirective = lazy.Regexp("(?i)^#\\s*escape\\s*=\\s*([\\\\`])\\s*$")

// ParseDockerfile reads a Dockerfile. name stands in errors.
func ParseDockerfile(name, data string) (Dockerfile, error) {
	d := Dockerfile{Text: data}
	escape, began, from := `\`, 0, false
	var joined string
	until := "" // the end of text that follows an instruction
	var left []string
	for i, line := range strings.Split(strings.TrimPrefix(data, "\ufeff"), "\n") {
		line = strings.TrimSuffix(line, "\r")
		trimmed := strings.TrimSpace(line)
		if until != "" {
			if strings.TrimLeft(line, "\t") == until {
				if until = ""; len(left) > 0 {
					until, left = left[0], left[1:]
				}
			}
			continue
		}
		if m := escapeDirective().FindStringSubmatch(trimmed); m != nil && len(d.Last) == 0 && joined == "" {
			escape = m[1]
		}
		if trimmed == "" || strings.HasPrefix(trimmed, "#") {
			continue // between continued lines too
		}
		if joined == "" {
			began = i + 1
		}
		if rest, ok := strings.CutSuffix(strings.TrimRight(line, " \t"), escape); ok {
			joined += rest + " "
			continue
		}
		word, args, _ := strings.Cut(strings.TrimSpace(joined+line), " ")
		joined = ""
		in := Instruction{Name: strings.ToUpper(word), Args: strings.TrimSpace(args), Line: began}
		if in.Name == "FROM" {
			d.Last, from = nil, true
		}
		if in.Name == "RUN" || in.Name == "COPY" || in.Name == "ADD" {
			for _, m := range heredoc().FindAllStringSubmatch(in.Args, -1) {
				left = append(left, m[1])
			}
			if len(left) > 0 {
				until, left = left[0], left[1:]
			}
		}
		d.Last = append(d.Last, in)
	}
	switch {
	case until != "" || joined != "":
		return d, fmt.Errorf("%s:%d: the last instruction has no end", name, began)
	case !from:
		return d, fmt.Errorf("%s: no FROM", name)
	}
	return d, nil
}
