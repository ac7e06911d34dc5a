package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"agentsh/internal/text"
	"agentsh/policy/glob"
)

// Scripts that look at directories. Names end with a NUL, so they may have any bytes. find of
// busybox has no -printf: stat then describes each entry.
const (
	listScript = thereScript + `if [ ! -d "$1" ]; then exit 42; fi
if find / -maxdepth 0 -printf '' 2>/dev/null; then exec find "$1/" -mindepth 1 -maxdepth 1 -printf '%f\0%y %m %s %T@\n'; fi
cd -- "$1" && exec find . -mindepth 1 -maxdepth 1 -print0 -exec stat -c '%F %a %s %Y' {} \;`
	globScript = thereScript + `if [ ! -d "$1" ]; then exit 42; fi
find "$1" -name .git -prune -o ! -type d -print0 2>/dev/null || true`
	grepScript = thereScript + `if [ ! -f "$1" ] && [ ! -d "$1" ]; then exit 42; fi
p=$1; e=$2; shift 2
grep -E -q -e "$e" /dev/null; [ $? -le 1 ] || exit 2
grep -Z -q x /dev/null 2>/dev/null; [ $? -gt 1 ] || set -- -Z --exclude-dir=.git "$@"
grep -rnHIsE "$@" -e "$e" -- "$p"; exit 0`
)

// Limits of searches.
const (
	maxListed  = 2000    // entries of one result
	maxScanned = 8 << 20 // bytes of the output of a script
	maxMatches = 1000    // of one result of grep
	maxLine    = 500     // characters of a line in a result of grep
)

type listInput struct {
	Path string `json:"path,omitempty" jsonschema:"directory; default: the one in which commands start"`
}

type entry struct {
	Name string `json:"name"`
	Type string `json:"type" jsonschema:"file, dir, symlink or other"`
	Mode string `json:"mode" jsonschema:"permission bits in octal"`
	Size int64  `json:"size" jsonschema:"in bytes"`
}

type listOutput struct {
	Path      string  `json:"path"`
	Entries   []entry `json:"entries"`
	Truncated bool    `json:"truncated,omitempty" jsonschema:"there are more entries"`
}

type globInput struct {
	Pattern string `json:"pattern" jsonschema:"relative path with *, ?, [a-z], {a,b} and ** for any number of directories, as in src/**/*.go"`
	Path    string `json:"path,omitempty" jsonschema:"directory to search; default: the one in which commands start"`
}

type globOutput struct {
	Path      string   `json:"path"`
	Files     []string `json:"files" jsonschema:"relative to path, sorted"`
	Truncated bool     `json:"truncated,omitempty" jsonschema:"there are more files"`
}

type grepInput struct {
	Pattern    string `json:"pattern" jsonschema:"extended regular expression, as of grep -E"`
	Path       string `json:"path,omitempty" jsonschema:"file or directory; default: the directory in which commands start"`
	Include    string `json:"include,omitempty" jsonschema:"only files whose name matches, as in *.go"`
	IgnoreCase bool   `json:"ignore_case,omitempty"`
}

type match struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Text string `json:"text" jsonschema:"the line, at most 500 characters of it"`
}

type grepOutput struct {
	Matches   []match `json:"matches"`
	Truncated bool    `json:"truncated,omitempty" jsonschema:"there are more matches: narrow the search"`
}

// addSearch adds the tools that look at directories.
func (t *Toolbox) addSearch() {
	add(t, tool{name: "list", title: "List a directory", reads: true,
		description: "List the entries of a directory with type, mode and size."}, t.list)
	add(t, tool{name: "glob", title: "Find files by name", reads: true,
		description: "Find files below a directory by a pattern of their path. Directories named .git are left out."}, t.glob)
	add(t, tool{name: "grep", title: "Search in files", reads: true,
		description: "Search text files for a regular expression. Directories named .git and binary files are left out."}, t.grep)
}

// place describes the failure of a script for a path.
func (t *Toolbox) place(name string, err error, other string) error {
	switch status(err) {
	case statusMissing:
		return fmt.Errorf("%s does not exist", text.Visible(name))
	case statusOther:
		return fmt.Errorf("%s is %s", text.Visible(name), other)
	}
	return fmt.Errorf("%s: %w", text.Visible(name), err)
}

func (t *Toolbox) list(ctx context.Context, _ call, in listInput) (string, listOutput, error) {
	out := listOutput{Path: t.path(in.Path), Entries: []entry{}}
	said, err := t.script(ctx, listScript, nil, maxScanned, out.Path)
	if err != nil {
		return "", out, t.place(out.Path, err, "no directory: read shows a file")
	}
	out.Entries, err = entries(said.Bytes())
	if err != nil {
		return "", out, err
	}
	slices.SortFunc(out.Entries, func(a, b entry) int { return strings.Compare(a.Name, b.Name) })
	out.Truncated = said.cut || len(out.Entries) > maxListed
	out.Entries = out.Entries[:min(len(out.Entries), maxListed)]
	var b strings.Builder
	for _, e := range out.Entries {
		mark := map[string]string{"dir": "/", "symlink": "@"}[e.Type]
		fmt.Fprintf(&b, "%4s %10d  %s%s\n", e.Mode, e.Size, text.Visible(e.Name), mark)
	}
	if out.Truncated {
		b.WriteString("[there are more entries: use glob]\n")
	}
	return b.String(), out, nil
}

// entries reads what listScript prints: a name with a NUL, and a line about it.
func entries(data []byte) ([]entry, error) {
	out := []entry{}
	for len(data) > 0 {
		name, rest, ok := bytes.Cut(data, []byte{0})
		about, rest, ended := bytes.Cut(rest, []byte("\n"))
		if !ok || !ended {
			break // cut off
		}
		data = rest
		fields := strings.Fields(string(about))
		if len(fields) < 4 {
			return nil, fmt.Errorf("find says of %q: %.100q", name, about)
		}
		size, err := strconv.ParseInt(fields[len(fields)-2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("find says of %q: %.100q", name, about)
		}
		kind := "other"
		switch fields[0] {
		case "f", "regular":
			kind = "file"
		case "d", "directory":
			kind = "dir"
		case "l", "symbolic":
			kind = "symlink"
		}
		out = append(out, entry{Name: strings.TrimPrefix(string(name), "./"), Type: kind, Mode: fields[len(fields)-3], Size: size})
	}
	return out, nil
}

func (t *Toolbox) glob(ctx context.Context, _ call, in globInput) (string, globOutput, error) {
	out := globOutput{Path: t.path(in.Path), Files: []string{}}
	if in.Pattern == "" || path.IsAbs(in.Pattern) || slices.Contains(strings.Split(in.Pattern, "/"), "..") {
		return "", out, errors.New("pattern: write a path relative to path, as in **/*.go")
	}
	pattern, err := glob.Compile(glob.Path, path.Join(glob.Quote(out.Path), in.Pattern))
	if err != nil {
		return "", out, fmt.Errorf("pattern %.200q: %w", in.Pattern, err)
	}
	said, err := t.script(ctx, globScript, nil, maxScanned, out.Path)
	if err != nil {
		return "", out, t.place(out.Path, err, "no directory")
	}
	names := strings.Split(said.String(), "\x00")
	for _, name := range names[:len(names)-1] { // the last is empty, or cut off
		if pattern.Match(name) {
			out.Files = append(out.Files, strings.TrimPrefix(strings.TrimPrefix(name, out.Path), "/"))
		}
	}
	slices.Sort(out.Files)
	out.Truncated = said.cut || len(out.Files) > maxListed
	out.Files = out.Files[:min(len(out.Files), maxListed)]
	var b strings.Builder
	for _, name := range out.Files {
		b.WriteString(text.Visible(name) + "\n")
	}
	switch {
	case out.Truncated:
		b.WriteString("[there are more files: narrow the pattern or the path]\n")
	case len(out.Files) == 0:
		b.WriteString("[no file matches]\n")
	}
	return b.String(), out, nil
}

func (t *Toolbox) grep(ctx context.Context, _ call, in grepInput) (string, grepOutput, error) {
	out := grepOutput{Matches: []match{}}
	if in.Pattern == "" {
		return "", out, errors.New("pattern is empty")
	}
	root := t.path(in.Path)
	var flags []string
	if in.IgnoreCase {
		flags = append(flags, "-i")
	}
	if in.Include != "" {
		flags = append(flags, "--include="+in.Include)
	}
	said, err := t.script(ctx, grepScript, nil, maxScanned, append([]string{root, in.Pattern}, flags...)...)
	if err != nil {
		var of *scriptError
		if errors.As(err, &of) && of.status == 2 && strings.HasPrefix(of.message, "grep: ") {
			return "", out, fmt.Errorf("pattern: %s", strings.TrimPrefix(of.message, "grep: "))
		}
		return "", out, t.place(root, err, "neither a file nor a directory")
	}
	var b strings.Builder
	for line := range strings.Lines(said.String()) {
		m, ok := matched(line)
		if !ok {
			continue // cut off
		}
		if len(out.Matches) == maxMatches || b.Len() > maxShown {
			out.Truncated = true
			break
		}
		if in.Path == "" || path.Clean(root) != m.File {
			m.File = strings.TrimPrefix(strings.TrimPrefix(m.File, root), "/")
		}
		out.Matches = append(out.Matches, m)
		fmt.Fprintf(&b, "%s:%d: %s\n", text.Visible(m.File), m.Line, m.Text)
	}
	switch out.Truncated = out.Truncated || said.cut; {
	case out.Truncated:
		b.WriteString("[there are more matches: narrow the pattern or the path]\n")
	case len(out.Matches) == 0:
		b.WriteString("[no line matches]\n")
	}
	return b.String(), out, nil
}

// matched reads one line of grep -nH, with or without -Z.
func matched(line string) (match, bool) {
	line, ended := strings.CutSuffix(line, "\n")
	name, rest, nul := strings.Cut(line, "\x00")
	if !nul {
		name, rest, nul = strings.Cut(line, ":")
	}
	number, said, ok := strings.Cut(rest, ":")
	n, err := strconv.Atoi(number)
	if !ended || !nul || !ok || err != nil {
		return match{}, false
	}
	said = strings.ToValidUTF8(said, "\uFFFD")
	if len(said) > maxLine {
		said = strings.ToValidUTF8(said[:maxLine], "") + "..."
	}
	return match{File: name, Line: n, Text: text.Line(said)}, true
}
