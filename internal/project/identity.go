package project

import (
	"path/filepath"
	"regexp"
	"strings"

	"agentsh/internal/lazy"
	"agentsh/internal/paths"
	"agentsh/internal/wire"
)

// Identity returns the name and the email that git has for the user of a home in a
// repository: user.name and user.email of ~/.gitconfig and ~/.config/git/config, and of the
// files that they include. It starts no program, and of the repository it reads only
// where its git directory is. getenv is that of the user; nil: the environment does not count.
// Without such settings the identity is empty. The error says why one cannot be used.
func Identity(home, repository string, getenv func(string) string) (wire.Identity, error) {
	r := identityReader{home: home, gitDir: gitDir(paths.Resolve(repository))}
	if getenv == nil {
		getenv = func(string) string { return "" }
	}
	files := []string{filepath.Join(home, ".config/git/config"), filepath.Join(home, ".gitconfig")}
	if xdg := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(xdg) {
		files[0] = filepath.Join(xdg, "git/config")
	}
	if own := getenv("GIT_CONFIG_GLOBAL"); own != "" {
		files = []string{own}
	}
	for _, file := range files {
		if filepath.IsAbs(file) {
			r.read(file, 0)
		}
	}
	if err := r.found.Check(); err != nil {
		return wire.Identity{}, err
	}
	return r.found, nil
}

// identityReader reads git's settings of a user.
type identityReader struct {
	home, gitDir string
	files        int // that were read
	found        wire.Identity
}

// Bounds of included files.
const (
	maxIncludeDepth = 10 // as in git
	maxIncludes     = 100
)

// read reads a file. One that is missing or cannot be read sets nothing.
func (r *identityReader) read(file string, depth int) {
	data, err := Read(file)
	if r.files++; err != nil || depth > maxIncludeDepth || r.files > maxIncludes {
		return
	}
	forEachSetting(string(data), func(section, sub, name, value string) {
		switch section + "." + name {
		case "user.name":
			if sub == "" {
				r.found.Name = value
			}
		case "user.email":
			if sub == "" {
				r.found.Email = value
			}
		case "include.path", "includeif.path":
			if section == "include" && sub == "" || section == "includeif" && r.holds(sub, filepath.Dir(file)) {
				r.read(r.expand(value, filepath.Dir(file)), depth+1)
			}
		}
	})
}

// expand returns the absolute path of a file that one in dir names.
func (r *identityReader) expand(name, dir string) string {
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		return filepath.Join(r.home, rest)
	}
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

// holds decides the condition gitdir of includeIf. Others do not hold. See git-config(1),
// CONDITIONAL INCLUDES.
func (r *identityReader) holds(condition, dir string) bool {
	kind, pattern, ok := strings.Cut(condition, ":")
	if !ok || kind != "gitdir" && kind != "gitdir/i" {
		return false
	}
	switch {
	case strings.HasPrefix(pattern, "~/"):
		pattern = paths.Resolve(r.home) + pattern[1:]
	case strings.HasPrefix(pattern, "./"):
		pattern = paths.Resolve(dir) + pattern[1:]
	case !filepath.IsAbs(pattern):
		pattern = "**/" + pattern
	}
	if strings.HasSuffix(pattern, "/") {
		pattern += "**"
	}
	text := regexp.QuoteMeta(pattern)
	for _, r := range []struct{ glob, expression string }{{`\*\*/`, `(.*/)?`}, {`/\*\*`, `/.*`}, {`\*`, `[^/]*`}, {`\?`, `[^/]`}} {
		text = strings.ReplaceAll(text, r.glob, r.expression)
	}
	if kind == "gitdir/i" {
		text = "(?i)" + text
	}
	matched, err := regexp.MatchString("^"+text+"$", r.gitDir)
	return matched && err == nil
}

// gitDir returns the git directory of a working tree, which is named without links. That is
// .git, also where it is not there yet. A file .git names the directory of a linked working
// tree. Commands may have written it, so it counts only if git wrote the way back into that
// directory, outside the tree.
func gitDir(tree string) string {
	git := filepath.Join(tree, ".git")
	data, _ := Read(git) // of a directory there is nothing
	dir, ok := strings.CutPrefix(strings.TrimRight(string(data), "\r\n"), "gitdir: ")
	if !ok {
		return git
	}
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(tree, dir)
	}
	dir = paths.Resolve(filepath.Clean(dir))
	back, _ := Read(filepath.Join(dir, "gitdir"))
	if back := strings.TrimRight(string(back), "\r\n"); paths.Within(dir, tree) || !filepath.IsAbs(back) || paths.Resolve(back) != git {
		return git
	}
	return dir
}

var (
	headerForm  = lazy.Regexp(`^\[([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n]|\\[^\n])*)")?[ \t]*\]`)
	nameForm    = lazy.Regexp(`^([A-Za-z][A-Za-z0-9-]*)[ \t]*(=[ \t]*)?`)
	escapedByte = lazy.Regexp(`\\(.)`)
)

// forEachSetting calls set for each setting of a configuration in git's form, up to the
// first mistake. Names of sections and settings are in lower case.
func forEachSetting(text string, set func(section, sub, name, value string)) {
	text = strings.ReplaceAll(strings.TrimPrefix(text, "\ufeff"), "\r\n", "\n")
	section, sub := "", ""
	for {
		text = strings.TrimLeft(text, " \t\n")
		if text == "" {
			return
		}
		if text[0] == '#' || text[0] == ';' {
			_, text, _ = strings.Cut(text, "\n")
			continue
		}
		if m := headerForm().FindStringSubmatch(text); m != nil {
			section, sub = strings.ToLower(m[1]), escapedByte().ReplaceAllString(m[2], "$1")
			text = text[len(m[0]):]
			continue
		}
		m := nameForm().FindStringSubmatch(text)
		if m == nil || section == "" {
			return
		}
		value, rest, ok := settingValue(text[len(m[0]):])
		if !ok {
			return
		}
		if m[2] != "" {
			set(section, sub, strings.ToLower(m[1]), value)
		}
		text = rest
	}
}

// settingValue reads a value to the end of its line: parts in quotes, escapes, a comment,
// lines that a backslash continues.
func settingValue(text string) (value, rest string, ok bool) {
	var out []byte
	keep, quoted := 0, false // the bytes that are no blanks at the end
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\n':
			return string(out[:keep]), text[i:], !quoted
		case (c == '#' || c == ';') && !quoted:
			end := strings.IndexByte(text[i:], '\n')
			if end < 0 {
				end = len(text) - i
			}
			return string(out[:keep]), text[i+end:], true
		case c == '"':
			quoted = !quoted
			keep = len(out)
			continue
		case c == '\\' && i+1 < len(text):
			i++
			if text[i] == '\n' {
				continue
			}
			escape := strings.IndexByte(`"\ntb`, text[i])
			if escape < 0 {
				return "", "", false
			}
			out = append(out, "\"\\\n\t\b"[escape])
			keep = len(out)
			continue
		}
		if c == ' ' && !quoted && len(out) == 0 {
			continue
		}
		out = append(out, c)
		if quoted || c != ' ' && c != '\t' {
			keep = len(out)
		}
	}
	return string(out[:keep]), "", !quoted
}
