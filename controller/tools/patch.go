package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"agentsh/internal/text"
)

type patchInput struct {
	Patch string `json:"patch" jsonschema:"a unified diff, or a patch between *** Begin Patch and *** End Patch"`
}

type patchedFile struct {
	Path   string `json:"path"`
	Action string `json:"action" jsonschema:"created, changed, deleted or moved"`
	From   string `json:"from,omitempty" jsonschema:"of a file that was moved"`
}

type patchOutput struct {
	Files []patchedFile `json:"files"`
}

// addPatch adds apply_patch.
func (t *Toolbox) addPatch() {
	add(t, tool{name: "apply_patch", title: "Apply a patch", writes: true,
		description: "Create, change, move and delete text files by a patch: a unified diff, " +
			"or the form with *** Begin Patch, *** Add File:, *** Update File:, *** Move to:, *** Delete File: and *** End Patch. " +
			"Nothing is written unless every hunk fits."}, t.applyPatch)
}

// filePatch is what a patch does to one file.
type filePatch struct {
	from, to string // equal unless it is moved; from empty: created; to empty: deleted
	hunks    []hunk
}

// hunk replaces lines. Lines have no line end.
type hunk struct {
	old, new []string
	at       int    // line of a unified diff, from 1; 0: not known
	after    string // line before it, of the other form; empty: none
	end      bool   // old ends the file
	noEOL    bool   // the new text ends without a line end
}

// maxPatch bounds the files of one patch.
const maxPatch = 200

// parsePatch reads a patch in either form.
func parsePatch(patch string) ([]filePatch, error) {
	lines := strings.Split(strings.ReplaceAll(patch, "\r\n", "\n"), "\n")
	if n := len(lines); lines[n-1] == "" {
		lines = lines[:n-1]
	}
	parse := parseUnified
	if slices.ContainsFunc(lines, func(l string) bool { return strings.TrimSpace(l) == "*** Begin Patch" }) {
		parse = parseEnvelope
	}
	files, err := parse(lines)
	switch {
	case err != nil:
		return nil, err
	case len(files) == 0:
		return nil, errors.New("the patch names no file: write a unified diff with --- and +++ lines, or *** Begin Patch")
	case len(files) > maxPatch:
		return nil, fmt.Errorf("the patch has %d files: at most %d", len(files), maxPatch)
	}
	seen := map[string]bool{}
	for _, f := range files {
		if seen[f.from] || seen[f.to] {
			return nil, fmt.Errorf("the patch has %q twice: put all its changes into one part", cmp.Or(f.to, f.from))
		}
		for _, name := range []string{f.from, f.to} {
			if name != "" {
				seen[name] = true
			}
		}
	}
	return files, nil
}

// parseEnvelope reads the form with *** Begin Patch.
func parseEnvelope(lines []string) ([]filePatch, error) {
	var files []filePatch
	var f *filePatch
	begun := false
	for n, line := range lines {
		header, name, _ := strings.Cut(line, ": ")
		name = strings.TrimSpace(name)
		switch {
		case strings.TrimSpace(line) == "*** Begin Patch":
			begun = true
			continue
		case !begun:
			continue
		case strings.TrimSpace(line) == "*** End Patch":
			return files, nil
		case header == "*** Add File" && name != "":
			files = append(files, filePatch{to: name, hunks: []hunk{{}}})
		case header == "*** Update File" && name != "":
			files = append(files, filePatch{from: name, to: name})
		case header == "*** Delete File" && name != "":
			files = append(files, filePatch{from: name})
		case header == "*** Move to" && name != "" && f != nil && f.from != "":
			f.to = name
		default:
			if f == nil || f.to == "" || !f.line(line) {
				return nil, fmt.Errorf("line %d of the patch is not understood: %.100q", n+1, line)
			}
			continue
		}
		f = &files[len(files)-1]
	}
	return nil, errors.New("the patch has no *** End Patch: it is cut off")
}

// line adds a line of a hunk in the form with *** Begin Patch.
func (f *filePatch) line(line string) bool {
	if after, is := strings.CutPrefix(line, "@@"); is && f.from != "" {
		f.hunks = append(f.hunks, hunk{after: strings.TrimSpace(after)})
		return true
	}
	if len(f.hunks) == 0 {
		f.hunks = append(f.hunks, hunk{})
	}
	h := &f.hunks[len(f.hunks)-1]
	if line == "*** End of File" {
		h.end = true
		return true
	}
	if f.from == "" && !strings.HasPrefix(line, "+") {
		return false // a new file has new lines alone
	}
	return h.add(line)
}

// add adds a line with its sign.
func (h *hunk) add(line string) bool {
	if line == "" { // some models leave out the blank of an empty line
		line = " "
	}
	switch line[0] {
	case ' ':
		h.old, h.new = append(h.old, line[1:]), append(h.new, line[1:])
	case '-':
		h.old = append(h.old, line[1:])
	case '+':
		h.new = append(h.new, line[1:])
	default:
		return false
	}
	return true
}

// parseUnified reads a unified diff, as diff -u and git diff make it.
func parseUnified(lines []string) ([]filePatch, error) {
	var files []filePatch
	for n := 0; n < len(lines); n++ {
		line := lines[n]
		switch {
		case strings.HasPrefix(line, "--- ") && n+1 < len(lines) && strings.HasPrefix(lines[n+1], "+++ "):
			f := filePatch{from: diffName(line[4:], "a/"), to: diffName(lines[n+1][4:], "b/")}
			if f.from == "" && f.to == "" {
				return nil, fmt.Errorf("line %d of the patch: both names are /dev/null", n+1)
			}
			files = append(files, f)
			n++
		case strings.HasPrefix(line, "@@ ") && len(files) > 0:
			h, next, err := unifiedHunk(lines, n)
			if err != nil {
				return nil, err
			}
			f := &files[len(files)-1]
			f.hunks = append(f.hunks, h)
			n = next - 1
		case strings.HasPrefix(line, "GIT binary patch") || strings.HasPrefix(line, "Binary files "):
			return nil, fmt.Errorf("line %d of the patch: binary files are not patched", n+1)
		case strings.HasPrefix(line, "rename from ") || strings.HasPrefix(line, "copy from "):
			return nil, fmt.Errorf("line %d of the patch: move files with exec, or with a line *** Move to: NAME", n+1)
		case len(files) > 0 && (strings.HasPrefix(line, "+") || strings.HasPrefix(line, "-")):
			return nil, fmt.Errorf("line %d of the patch is after the end of its hunk, whose @@ line has fewer lines: %.100q", n+1, line)
		}
	}
	return files, nil
}

// diffName is the name in a --- or +++ line; empty: /dev/null.
func diffName(name, prefix string) string {
	name, _, _ = strings.Cut(name, "\t") // a time
	if name == "/dev/null" {
		return ""
	}
	if quoted, err := strconv.Unquote(name); err == nil {
		name = quoted
	}
	return strings.TrimPrefix(name, prefix)
}

// unifiedHunk reads the hunk that begins at lines[n].
func unifiedHunk(lines []string, n int) (h hunk, next int, err error) {
	var old, fresh span
	fields := strings.Fields(lines[n])
	if len(fields) < 4 || !old.parse(fields[1], "-") || !fresh.parse(fields[2], "+") || fields[3] != "@@" {
		return h, 0, fmt.Errorf("line %d of the patch is no @@ -LINE,COUNT +LINE,COUNT @@: %.100q", n+1, lines[n])
	}
	h.at = old.line
	begin := n
	for n++; n < len(lines) && (len(h.old) < old.count || len(h.new) < fresh.count); n++ {
		if !h.add(lines[n]) && !strings.HasPrefix(lines[n], `\ No newline`) {
			break
		}
	}
	if len(h.old) != old.count || len(h.new) != fresh.count {
		return h, 0, fmt.Errorf("the hunk at line %d of the patch has %d old and %d new lines, and its @@ line says %d and %d",
			begin+1, len(h.old), len(h.new), old.count, fresh.count)
	}
	if n < len(lines) && strings.HasPrefix(lines[n], `\ No newline`) {
		h.noEOL = !strings.HasPrefix(lines[n-1], "-")
		n++
	}
	return h, n, nil
}

// span is a part of an @@ line.
type span struct{ line, count int }

func (s *span) parse(word, sign string) bool {
	word, ok := strings.CutPrefix(word, sign)
	line, count, has := strings.Cut(word, ",")
	var err, bad error
	s.line, err = strconv.Atoi(line)
	if s.count = 1; has {
		s.count, bad = strconv.Atoi(count)
	}
	return ok && err == nil && bad == nil && s.line >= 0 && s.count >= 0
}

// apply returns a text with the hunks of a patch.
func (f filePatch) apply(before string, work *effort) (string, error) {
	ends := "\n"
	if strings.Contains(before, "\r\n") {
		ends = "\r\n"
	}
	body, whole := strings.CutSuffix(before, ends)
	var lines []string
	if before != "" {
		lines = strings.Split(body, ends)
	}
	whole = whole || before == ""
	var out []string
	from, shift := 0, 0
	for n, h := range f.hunks {
		at, err := h.find(lines, from, shift, work)
		if err != nil {
			return "", fmt.Errorf("hunk %d: %w", n+1, err)
		}
		switch {
		case h.at > 0 && len(h.old) == 0:
			shift = at - h.at
		case h.at > 0:
			shift = at - (h.at - 1)
		}
		out = append(append(out, lines[from:at]...), h.new...)
		from = at + len(h.old)
		if from == len(lines) {
			whole = !h.noEOL
		}
	}
	out = append(out, lines[from:]...)
	text := strings.Join(out, ends)
	if whole && len(out) > 0 {
		text += ends
	}
	return text, nil
}

// effort bounds how many lines are compared for a patch.
type effort struct {
	ctx  context.Context
	left int
}

// maxCompared is about a second: a patch of 16 MiB whose lines are not all alike needs far less.
const maxCompared = 200_000_000

func newEffort(ctx context.Context) *effort { return &effort{ctx: ctx, left: maxCompared} }

// spend counts a comparison. Its error is that of the context, or that of the bound.
func (e *effort) spend() error {
	e.left--
	switch {
	case e.left < 0:
		return errors.New("its lines are at too many places of the file, or nearly: give it other lines around the change, or use edit")
	case e.left%65536 == 0 && e.ctx.Err() != nil:
		return context.Cause(e.ctx)
	}
	return nil
}

// fits reports whether the old lines of a hunk are the first of lines.
func (h hunk) fits(lines []string, same func(a, b string) bool, work *effort) (bool, error) {
	for i, line := range h.old {
		if err := work.spend(); err != nil {
			return false, err
		}
		if !same(lines[i], line) {
			return false, nil
		}
	}
	return true, nil
}

// find returns the index of the line at which the old lines of a hunk are. Blanks at line
// ends may differ, if nothing fits otherwise.
func (h hunk) find(lines []string, from, shift int, work *effort) (int, error) {
	if h.after != "" {
		i := slices.IndexFunc(lines[from:], func(l string) bool { return strings.TrimSpace(l) == h.after })
		if i < 0 {
			return 0, fmt.Errorf("no line is %q", h.after)
		}
		from += i + 1
	}
	if len(h.old) == 0 {
		switch {
		case h.at > 0:
			return min(max(h.at+shift, from), len(lines)), nil // after that line
		case h.after != "":
			return from, nil
		}
		return len(lines), nil
	}
	for _, same := range []func(a, b string) bool{
		func(a, b string) bool { return a == b },
		func(a, b string) bool { return strings.TrimRight(a, " \t") == strings.TrimRight(b, " \t") },
	} {
		found, err := h.nearest(lines, from, h.at-1+shift, same, work)
		if err != nil || found >= 0 {
			return found, err
		}
	}
	return 0, fmt.Errorf("its old lines are not in the file, or not after the previous hunk; the first is %q: "+
		"read the file and write the patch again", h.old[0])
}

// nearest returns the place of a hunk that is nearest to the line that its patch names, or the first one
// if it names none; -1: there is none.
func (h hunk) nearest(lines []string, from, want int, same func(a, b string) bool, work *effort) (int, error) {
	if h.end {
		from = max(from, len(lines)-len(h.old))
	}
	best := -1
	for i := from; i+len(h.old) <= len(lines); i++ {
		if best >= 0 && (h.at == 0 || abs(i-want) >= abs(best-want)) {
			break // the others are farther
		}
		fits, err := h.fits(lines[i:], same, work)
		if err != nil {
			return 0, err
		}
		if fits {
			best = i
		}
	}
	return best, nil
}

func abs(n int) int { return max(n, -n) }

// planned is one file of a patch with its content before and after.
type planned struct {
	filePatch
	before, after string
}

func (t *Toolbox) applyPatch(ctx context.Context, _ call, in patchInput) (string, patchOutput, error) {
	out := patchOutput{Files: []patchedFile{}}
	files, err := parsePatch(in.Patch)
	if err != nil {
		return "", out, err
	}
	plan, err := planner{t, newEffort(ctx)}.all(ctx, files)
	if err != nil {
		return "", out, fmt.Errorf("nothing was changed: %w", err)
	}
	var b strings.Builder
	for _, p := range plan {
		done, err := t.carryOut(ctx, p)
		if err != nil {
			if len(out.Files) > 0 {
				err = fmt.Errorf("%w\nWritten before that: %s", err, strings.TrimSpace(b.String()))
			}
			return "", out, err
		}
		out.Files = append(out.Files, done)
		fmt.Fprintf(&b, "%s %s\n", done.Action, text.Visible(done.Path))
	}
	return b.String(), out, nil
}

// maxPatched bounds the former and the new contents of all files of a patch together, in bytes.
const maxPatched = 64 << 20

// planner makes the new contents of the files of one patch.
type planner struct {
	*Toolbox
	work *effort
}

// all reads the files of a patch and makes their new contents.
func (t planner) all(ctx context.Context, files []filePatch) ([]planned, error) {
	var plan []planned
	size := 0
	for _, f := range files {
		p, err := t.plan(ctx, f)
		if err != nil {
			return nil, err
		}
		if size += len(p.before) + len(p.after); size > maxPatched {
			return nil, fmt.Errorf("the files of the patch have more than %d MiB before and after it: "+
				"write a patch for a part of them", maxPatched>>20)
		}
		plan = append(plan, p)
	}
	return plan, nil
}

// plan reads a file of a patch and makes its new content.
func (t planner) plan(ctx context.Context, f filePatch) (planned, error) {
	p := planned{filePatch: f}
	if f.to != f.from && f.to != "" {
		out, err := t.script(ctx, `[ ! -e "$1" ] && [ ! -L "$1" ] || printf there`, nil, 16, t.path(f.to))
		if err != nil {
			return p, fmt.Errorf("%s: %w", text.Visible(t.path(f.to)), err)
		}
		if out.Len() > 0 {
			return p, fmt.Errorf("%s is there already", text.Visible(t.path(f.to)))
		}
	}
	var err error
	if f.from != "" {
		if p.before, err = t.textOf(ctx, f.from); err != nil {
			return p, err
		}
	}
	if f.to == "" && len(f.hunks) == 0 {
		return p, nil
	}
	if p.after, err = f.apply(p.before, t.work); err != nil {
		return p, fmt.Errorf("%s: %w", text.Visible(t.path(cmp.Or(f.from, f.to))), err)
	}
	return p, nil
}

// carryOut writes one file of a patch.
func (t *Toolbox) carryOut(ctx context.Context, p planned) (patchedFile, error) {
	switch {
	case p.to == "":
		_, err := t.script(ctx, removeScript, nil, 1<<10, t.path(p.from))
		return patchedFile{Path: t.path(p.from), Action: "deleted"}, err
	case p.from == "":
		_, err := t.put(ctx, p.to, p.after)
		return patchedFile{Path: t.path(p.to), Action: "created"}, err
	case p.from == p.to:
		_, err := t.replace(ctx, p.to, p.before, p.after)
		return patchedFile{Path: t.path(p.to), Action: "changed"}, err
	}
	done := patchedFile{Path: t.path(p.to), Action: "moved", From: t.path(p.from)}
	if _, err := t.script(ctx, moveScript, nil, 1<<10, done.From, done.Path); err != nil {
		return done, fmt.Errorf("move %s: %w", text.Visible(done.From), err)
	}
	if p.before == p.after {
		return done, nil
	}
	_, err := t.replace(ctx, p.to, p.before, p.after)
	return done, err
}
