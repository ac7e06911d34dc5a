package glob

import "strings"

// Dirs returns for each alternative the longest literal directory or path that
// contains all its matches.
func (g *Glob) Dirs() []string {
	out := make([]string, 0, len(g.alts))
	for i := range g.alts {
		out = append(out, g.alts[i].dir())
	}
	return out
}

// dir is the literal directory an alternative's matches lie at or below.
func (a *alt) dir() string {
	if a.tree || a.literal() {
		if a.prefix == "" {
			return "/"
		}
		return a.prefix
	}
	at := strings.LastIndexByte(a.prefix, '/')
	if at <= 0 {
		return "/"
	}
	return a.prefix[:at]
}

// Covers reports whether the pattern certainly matches root and everything
// below it.
func (g *Glob) Covers(root string) bool {
	for i := range g.alts {
		a := &g.alts[i]
		if a.tree && a.match(root) {
			return true
		}
		if n := len(a.middle); !a.tree && a.suffix == "" && n > 0 && a.middle[n-1].op == opDeep && a.match(root) {
			return true
		}
	}
	return false
}

// Below returns, for each alternative that may match at or below root, the
// literal path that contains these matches. An empty result means that the
// pattern certainly matches nothing there.
func (g *Glob) Below(root string) []string {
	var out []string
	for i := range g.alts {
		a := &g.alts[i]
		dir := a.dir()
		switch {
		case under(dir, root):
			out = append(out, dir)
		case !under(root, dir):
		case a.literal():
		case !a.tree && !a.reaches(root):
		default:
			out = append(out, root)
		}
	}
	return out
}

// under reports whether name is dir or lies below it.
func under(name, dir string) bool {
	return dir == "/" || strings.HasPrefix(name, dir) && (len(name) == len(dir) || name[len(dir)] == '/')
}

// reaches reports whether the alternative may match root or something below it,
// when its literal prefix ends above root. False is certain.
func (a *alt) reaches(root string) bool {
	n := min(len(a.prefix), len(root))
	return a.prefix[:n] == root[:n]
}

// Parents returns the directories that a path pattern names above its matches,
// and dir itself for dir/**. Each directory is one path; x replaces a wildcard
// in it. Patterns of other kinds have no parents.
func (g *Glob) Parents() []string {
	texts, err := multiplyOut(g.source)
	if err != nil || g.kind != Path {
		return nil
	}
	var out []string
	for _, text := range texts {
		parts := strings.Split(text, "/")
		last := len(parts) - 1
		sample := ""
		for i := 1; i < last; i++ {
			sample += "/" + samplePart(parts[i])
			if parts[i] != "**" {
				out = append(out, sample)
			}
		}
	}
	return out
}

// samplePart returns a name that one part of a path pattern matches.
func samplePart(part string) string {
	tokens, err := parse(part)
	if err != nil {
		return "x"
	}
	var name strings.Builder
	for _, t := range tokens {
		switch {
		case t.op == opLiteral:
			name.WriteString(t.text)
		case t.op == opSet && !t.set.negated:
			name.WriteRune(t.set.ranges[0].low)
		default:
			name.WriteByte('x')
		}
	}
	return name.String()
}
