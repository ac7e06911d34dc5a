package buildcontext

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"agentsh/internal/text"
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
	own      []string // names of such files: they are not sent
	patterns *patternmatcher.PatternMatcher
	agreed   map[string]bool // paths that an exception names
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
		if at, failed := root.Lstat(name); failed == nil && at.Mode()&fs.ModeSymlink != 0 {
			err = fmt.Errorf("%s: this link leads to nothing in the directory: replace it by the file", text.Visible(name))
		}
		return nil, err
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: it is no regular file: put one with the text in its place", text.Visible(name))
	case info.Size() > most:
		return nil, tooLarge(name, most)
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe that replaced it would block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = tooLarge(name, most)
	}
	return data, err
}

func tooLarge(name string, most int64) error {
	return fmt.Errorf("%s: it has more than %d KiB: make it shorter", text.Visible(name), most>>10)
}

// gitAway excludes Git's directory, whose configuration may have credentials. '!.git' takes it back.
const gitAway = "**/.git\n"

// parseIgnore reads patterns. An error begins with the number of the line.
func parseIgnore(data string) (ignore, error) {
	out := ignore{agreed: map[string]bool{}}
	var all []string
	n := -1 // the first line is gitAway
	for line := range strings.SplitSeq(gitAway+data, "\n") {
		n++
		if !utf8.ValidString(line) {
			return out, fmt.Errorf("%d: %q is no pattern: not UTF-8", n, line)
		}
		found, err := ignorefile.ReadAll(strings.NewReader(line))
		for _, p := range found {
			rest, exception := strings.CutPrefix(p, "!")
			err = errors.Join(err, checkPattern(rest))
			out.agreed[rest] = exception
		}
		if err != nil {
			return out, fmt.Errorf("%d: %q is no pattern: %w", n, line, err)
		}
		if all = append(all, found...); len(all) > maxPatterns {
			return out, fmt.Errorf("%d: more than %d patterns", n, maxPatterns)
		}
	}
	var err error
	out.patterns, err = patternmatcher.New(all)
	return out, err
}

// checkPattern reports what the matcher would only report at a path.
func checkPattern(p string) error {
	m, err := patternmatcher.New([]string{p})
	if err == nil {
		_, err = m.MatchesOrParentMatches("x")
	}
	return err
}

// excluded reports whether a path is left out, and whether an exception names exactly this path.
func (g ignore) excluded(name string) (excluded, agreed bool, err error) {
	excluded, err = g.patterns.MatchesOrParentMatches(name)
	return excluded, !excluded && g.agreed[name], err
}

// isOwn reports whether a file has patterns.
func (g ignore) isOwn(name string) bool { return name == g.own[0] || name == g.own[1] }
