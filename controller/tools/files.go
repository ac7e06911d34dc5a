package tools

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"agentsh/internal/text"
)

// maxFile is the largest file that the file tools read and write, in bytes.
const maxFile = 16 << 20

// Scripts for files. A path is $1. They follow links as any program does, and the policy
// judges the file that is meant. writing.go has those that write.
const (
	readScript = thereScript + `if [ ! -f "$1" ] && [ -e "$1" ]; then exit 42; fi
exec head -c "$2" -- "$1"`
	removeScript = `exec rm -- "$1"`
	moveScript   = `d=${2%/*}; [ -d "$d" ] || mkdir -p -- "$d" || exit; exec mv -- "$1" "$2"`
)

type readInput struct {
	Path   string `json:"path"`
	Offset int    `json:"offset,omitempty" jsonschema:"first line to return, from 1"`
	Limit  int    `json:"limit,omitempty" jsonschema:"most lines to return; default 2000"`
}

type readOutput struct {
	Path       string `json:"path"`
	Content    string `json:"content"`
	FirstLine  int    `json:"first_line" jsonschema:"number of the first line of content, from 1"`
	Lines      int    `json:"lines" jsonschema:"in content"`
	TotalLines int    `json:"total_lines" jsonschema:"of the file"`
	Bytes      int    `json:"bytes" jsonschema:"of the file"`
	Truncated  bool   `json:"truncated,omitempty" jsonschema:"the file goes on after content"`
}

type writeInput struct {
	Path    string `json:"path"`
	Content string `json:"content" jsonschema:"the whole new content"`
}

type writeOutput struct {
	Path    string `json:"path"`
	Created bool   `json:"created" jsonschema:"the file was not there before"`
	InPlace bool   `json:"in_place,omitempty" jsonschema:"the directory takes no other file, or the file has several names: no whole file took its place"`
	Bytes   int    `json:"bytes"`
}

type editInput struct {
	Path       string `json:"path"`
	OldText    string `json:"old_text" jsonschema:"text to replace, exactly as in the file, with all blanks and line ends"`
	NewText    string `json:"new_text" jsonschema:"text in its place"`
	ReplaceAll bool   `json:"replace_all,omitempty" jsonschema:"replace every occurrence instead of exactly one"`
}

type editOutput struct {
	Path         string `json:"path"`
	Replacements int    `json:"replacements"`
	Line         int    `json:"line" jsonschema:"of the first replacement, from 1"`
	InPlace      bool   `json:"in_place,omitempty" jsonschema:"as of write"`
}

// addFiles adds the tools for single files.
func (t *Toolbox) addFiles() {
	add(t, tool{name: "read", title: "Read a file", reads: true, contents: true,
		description: "Read a text file of at most 16 MiB, by lines."}, t.read)
	add(t, tool{name: "write", title: "Write a file", writes: true,
		description: "Create a file or replace its content. Missing directories are made. To change a part of a file, use edit."}, t.write)
	add(t, tool{name: "edit", title: "Edit a file", writes: true,
		description: "Replace text in a file. old_text must be exactly one place of the file, " +
			"unless replace_all is set. An error says whether it was not found or not unique."}, t.edit)
}

// content reads a file of the sandbox.
func (t *Toolbox) content(ctx context.Context, name string) ([]byte, error) {
	out, err := t.script(ctx, readScript, nil, maxFile+1, t.path(name), fmt.Sprint(maxFile+1))
	switch status(err) {
	case statusMissing:
		return nil, fmt.Errorf("%s does not exist", text.Visible(t.path(name)))
	case statusOther:
		return nil, fmt.Errorf("%s is no regular file: list shows what is in a directory", text.Visible(t.path(name)))
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", text.Visible(t.path(name)), err)
	}
	if out.Len() > maxFile {
		return nil, fmt.Errorf("%s is larger than %d MiB: read a part of it with exec, as with 'sed -n 1,200p' or 'head -c'",
			text.Visible(t.path(name)), maxFile>>20)
	}
	return out.Bytes(), nil
}

// textOf reads a file of text.
func (t *Toolbox) textOf(ctx context.Context, name string) (string, error) {
	data, err := t.content(ctx, name)
	if err != nil {
		return "", err
	}
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return "", fmt.Errorf("%s is no UTF-8 text: it has %s; look at it with exec, as with 'file', 'xxd' or 'base64'",
			text.Visible(t.path(name)), text.Count(len(data), "byte"))
	}
	return string(data), nil
}

// defaultLines is the number of lines that read returns, maxRead the most bytes.
const (
	defaultLines = 2000
	maxRead      = 256 << 10
)

func (t *Toolbox) read(ctx context.Context, _ call, in readInput) (string, readOutput, error) {
	out := readOutput{Path: t.path(in.Path), FirstLine: max(in.Offset, 1)}
	if in.Path == "" || in.Offset < 0 || in.Limit < 0 {
		return "", out, fmt.Errorf("write a path, and an offset and a limit that are not negative")
	}
	all, err := t.textOf(ctx, in.Path)
	if err != nil {
		return "", out, err
	}
	limit := in.Limit
	if limit == 0 {
		limit = defaultLines
	}
	var b strings.Builder
	out.Bytes = len(all)
	for line := range strings.Lines(all) {
		out.TotalLines++
		switch {
		case out.TotalLines < out.FirstLine:
		case out.Lines == limit || out.Truncated || b.Len()+len(line) > maxRead && b.Len() > 0:
			out.Truncated = true
		case len(line) > maxRead:
			return "", out, fmt.Errorf("line %d has %d bytes: read a part of it with exec, as with 'cut -c 1-1000'", out.TotalLines, len(line))
		default:
			b.WriteString(line)
			out.Lines++
		}
	}
	if out.FirstLine > max(out.TotalLines, 1) {
		return "", out, fmt.Errorf("offset %d is after the end: the file has %s", out.FirstLine, text.Count(out.TotalLines, "line"))
	}
	out.Content = b.String()
	shown := out.Content
	if out.Truncated {
		shown += fmt.Sprintf("\n[lines %d to %d of %d: go on with offset %d]",
			out.FirstLine, out.FirstLine+out.Lines-1, out.TotalLines, out.FirstLine+out.Lines)
	}
	return shown, out, nil
}

func (t *Toolbox) write(ctx context.Context, _ call, in writeInput) (string, writeOutput, error) {
	out := writeOutput{Path: t.path(in.Path), Bytes: len(in.Content)}
	if in.Path == "" {
		return "", out, fmt.Errorf("write a path")
	}
	done, err := t.put(ctx, in.Path, in.Content)
	if err != nil {
		return "", out, err
	}
	out.Created, out.InPlace = done.created, done.inPlace
	word := "replaced"
	if out.Created {
		word = "created"
	}
	return fmt.Sprintf("%s %s (%s)%s", word, text.Visible(out.Path), text.Count(out.Bytes, "byte"), done.note()), out, nil
}

func (t *Toolbox) edit(ctx context.Context, _ call, in editInput) (string, editOutput, error) {
	out := editOutput{Path: t.path(in.Path)}
	switch {
	case in.Path == "":
		return "", out, fmt.Errorf("write a path")
	case in.OldText == "":
		return "", out, fmt.Errorf("old_text is empty: write creates a file")
	case in.OldText == in.NewText:
		return "", out, fmt.Errorf("old_text and new_text are the same")
	}
	before, err := t.textOf(ctx, in.Path)
	if err != nil {
		return "", out, err
	}
	out.Replacements = strings.Count(before, in.OldText)
	switch {
	case out.Replacements == 0:
		return "", out, notFound(out.Path, before, in.OldText)
	case out.Replacements > 1 && !in.ReplaceAll:
		return "", out, fmt.Errorf("old_text is not unique in %s: it is there %d times, at lines %s; add lines around it, or set replace_all",
			text.Visible(out.Path), out.Replacements, places(before, in.OldText))
	}
	if size := len(before) + out.Replacements*(len(in.NewText)-len(in.OldText)); size > maxFile {
		return "", out, fmt.Errorf("the new content would have %d bytes: at most %d MiB", size, maxFile>>20)
	}
	head, _, _ := strings.Cut(before, in.OldText)
	out.Line = 1 + strings.Count(head, "\n")
	done, err := t.replace(ctx, in.Path, before, strings.ReplaceAll(before, in.OldText, in.NewText))
	if err != nil {
		return "", out, err
	}
	out.InPlace = done.inPlace
	said := fmt.Sprintf("replaced %s in %s, first at line %d", text.Count(out.Replacements, "place"), text.Visible(out.Path), out.Line)
	return said + done.note(), out, nil
}

// places lists the lines of the first places of a text.
func places(all, part string) string {
	var out []string
	line, rest := 1, all
	for i := strings.Index(rest, part); i >= 0 && len(out) < 10; i = strings.Index(rest, part) {
		line += strings.Count(rest[:i], "\n")
		if at := fmt.Sprint(line); !slices.Contains(out, at) {
			out = append(out, at)
		}
		line += strings.Count(rest[i:i+len(part)], "\n")
		rest = rest[i+len(part):]
	}
	if strings.Contains(rest, part) {
		out = append(out, "...")
	}
	return strings.Join(out, ", ")
}

// notFound says what the file has instead, if only blanks or line ends differ.
func notFound(name, all, old string) error {
	message := fmt.Sprintf("old_text was not found in %s", text.Visible(name))
	flat := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	if strings.Contains(all, "\r\n") && strings.Contains(strings.ReplaceAll(all, "\r\n", "\n"), old) {
		return fmt.Errorf("%s: the lines of the file end with \\r\\n", message)
	}
	if wanted := flat(old); wanted != "" && strings.Contains(flat(all), wanted) {
		first := strings.TrimSpace(strings.SplitN(strings.TrimSpace(old), "\n", 2)[0])
		n, first := 0, flat(first) // once: it may be as long as the file
		for line := range strings.Lines(all) {
			if n++; strings.Contains(flat(line), first) {
				return fmt.Errorf("%s: the blanks differ; line %d is %q", message, n, strings.TrimRight(line, "\n"))
			}
		}
		return fmt.Errorf("%s: only its blanks or line ends differ", message)
	}
	return fmt.Errorf("%s: read the file, and copy the text from there", message)
}
