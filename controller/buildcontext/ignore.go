package buildcontext

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"
)

// The bounds of a .dockerignore file.
const (
	maxIgnore   = 256 << 10 // bytes
	maxPatterns = 1000
)

// ignoreName is the name of the file in a directory.
const ignoreName = ".dockerignore"

// ignore has the patterns of a .dockerignore file. The last pattern that matches a path, or a directory above it, decides.
type ignore struct {
	own        []string // names of such files: they are not sent
	patterns   []pattern
	exceptions bool
}

type pattern struct {
	exception bool
	literal   string // if the pattern has no wildcards
	match     *regexp.Regexp
}

// readIgnore reads the file of a Dockerfile (NAME.dockerignore), or else that of the directory.
func readIgnore(root *os.Root, dockerfile string) (ignore, error) {
	names := []string{dockerfile + ignoreName, ignoreName}
	for _, name := range names {
		data, err := readSmall(root, name, maxIgnore)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return ignore{}, err
		}
		out, err := parseIgnore(string(data))
		if err != nil {
			return ignore{}, fmt.Errorf("%s:%w", name, err)
		}
		out.own = names
		return out, nil
	}
	out, err := parseIgnore("")
	out.own = names
	return out, err
}

// readSmall reads a regular file.
func readSmall(root *os.Root, name string, most int64) ([]byte, error) {
	info, err := root.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("%s: no file of at most %d KiB", name, most>>10)
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

// gitAway excludes Git's directory, whose configuration may have credentials. '!.git' takes it back.
const gitAway = "**/.git\n"

// parseIgnore reads patterns. An error begins with the number of the line.
func parseIgnore(data string) (ignore, error) {
	var out ignore
	n := -1 // the first line is gitAway
	for line := range strings.SplitSeq(gitAway+strings.TrimPrefix(data, "\ufeff"), "\n") {
		n++
		if strings.HasPrefix(line, "#") {
			continue
		}
		line = strings.TrimSpace(line)
		rest, exception := strings.CutPrefix(line, "!")
		if rest = strings.TrimSpace(rest); rest == "" {
			if exception {
				return out, fmt.Errorf("%d: an exclamation mark without a pattern", n)
			}
			continue
		}
		rest = strings.TrimPrefix(path.Clean(rest), "/")
		p := pattern{exception: exception}
		if rest == "." || rest == "" {
			continue // Docker ignores it
		}
		source, err := translate(rest)
		if err == nil {
			p.match, err = regexp.Compile(source)
		}
		if err != nil {
			return out, fmt.Errorf("%d: %q is no pattern", n, line)
		}
		if !strings.ContainsAny(rest, `*?[\`) {
			p.literal = rest
		}
		out.exceptions = out.exceptions || exception
		if out.patterns = append(out.patterns, p); len(out.patterns) > maxPatterns {
			return out, fmt.Errorf("%d: more than %d patterns", n, maxPatterns)
		}
	}
	return out, nil
}

// translate makes a regular expression of a pattern.
func translate(p string) (string, error) {
	if !utf8.ValidString(p) {
		return "", errors.New("not UTF-8")
	}
	var out strings.Builder
	out.WriteString(`(?s)\A`)
	for i := 0; i < len(p); i++ {
		switch c := p[i]; {
		case strings.HasPrefix(p[i:], "**"):
			for i+1 < len(p) && p[i+1] == '*' {
				i++
			}
			if i+1 < len(p) && p[i+1] == '/' {
				i++
				out.WriteString(`(.*/)?`)
			} else {
				out.WriteString(`.*`)
			}
		case c == '*':
			out.WriteString(`[^/]*`)
		case c == '?':
			out.WriteString(`[^/]`)
		case c == '\\':
			if i++; i == len(p) {
				return "", errors.New("nothing after the backslash")
			}
			out.WriteString(regexp.QuoteMeta(p[i : i+1]))
		case c == '[':
			end := strings.IndexByte(p[i:], ']')
			if end < 2 {
				return "", errors.New("no end of [")
			}
			out.WriteString(strings.ReplaceAll(p[i:i+end+1], "[!", "[^"))
			i += end
		case c < utf8.RuneSelf:
			out.WriteString(regexp.QuoteMeta(string(rune(c))))
		default:
			out.WriteByte(c)
		}
	}
	return out.String() + `\z`, nil
}

// excluded reports whether a path is left out, and whether an exception names exactly this path.
func (g ignore) excluded(name string) (excluded, agreed bool) {
	for _, p := range g.patterns {
		if p.exception != excluded && (!p.exception || p.literal != name) {
			continue
		}
		if p.matches(name) {
			excluded = !p.exception
			agreed = p.exception && p.literal == name
		}
	}
	return excluded, agreed
}

// matches reports whether a path matches, or a directory above it.
func (p pattern) matches(name string) bool {
	for {
		if p.match.MatchString(name) {
			return true
		}
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			return false
		}
		name = name[:i]
	}
}

// isOwn reports whether a file has patterns.
func (g ignore) isOwn(name string) bool { return name == g.own[0] || name == g.own[1] }
