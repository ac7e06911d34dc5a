package harness

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"agentsh/internal/strictyaml"
)

// maxFile is the largest harness, provider or .env file read, in bytes.
const maxFile = 1 << 20

// ReadFile reads a regular file of at most maxFile bytes. It does not block on
// a named pipe.
func ReadFile(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, withoutPath(err)
	case info.IsDir():
		return nil, errors.New("is a directory, not a file")
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, withoutPath(err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("is larger than %d bytes", maxFile)
	}
	return data, nil
}

// withoutPath is err without the operation and path, because the position of
// the problem has the path.
func withoutPath(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// maxDepth is how deep mappings and lists of a file, and guards, may nest.
const maxDepth = 32

// dialect is the subset of YAML that harness and provider files may use.
var dialect = strictyaml.Dialect{
	MaxDepth: maxDepth, Controls: true, CoreTags: true, Anchors: true,
	Texts: strictyaml.Texts{
		NotUTF8: strictyaml.Text{Message: "not UTF-8"},
		Control: strictyaml.Text{Message: "a NUL byte"},
		NotYAML: strictyaml.Text{Message: "%s"},
		Tab:     strictyaml.Text{Message: "%s", Hint: "indent with spaces"},
		Second:  strictyaml.Text{Message: "a second document: one file describes one agent"},
		TooDeep: strictyaml.Text{Message: "nested deeper than %d levels"},
	},
}

// parse reads the one YAML document of a file. The node is nil when there are
// problems.
func parse(name string, data []byte) (*strictyaml.Node, Problems) {
	var ps Problems
	n := strictyaml.Parse(name, data, &dialect, func(p strictyaml.Problem) {
		ps.errorf(Origin{File: p.File, Line: p.Line, Column: p.Column}, RuleSyntax, "%s", p.Message)
		if p.Hint != "" {
			ps.hint("%s", p.Hint)
		}
	})
	return n, ps
}

// parseInt is the value of a whole number of the core schema.
func parseInt(s string) (int, error) {
	base := 10
	switch {
	case strings.HasPrefix(s, "0o"):
		s, base = s[2:], 8
	case strings.HasPrefix(s, "0x"):
		s, base = s[2:], 16
	}
	n, err := strconv.ParseInt(s, base, 32)
	return int(n), err
}
