package bootstrap

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"agentsh/internal/layout"
	"agentsh/internal/wire"

	"agentsh/controller/harness"
	"agentsh/controller/sandbox"
	"agentsh/policy/env"
)

// Bounds of the shell that reads .env files.
const (
	scriptTime      = time.Minute
	maxScriptOutput = 4 << 20  // bytes of variables
	maxScriptErrors = 16 << 10 // bytes of standard error
)

// ReadScripts lets a shell in the sandbox read the .env files, in the order in
// which commands get them. It writes the variables of each file that is a script
// to the file's place, as plain assignments. vars are variables of the run that
// the scripts may read, NAME=value. said are warnings: what scripts printed, and
// variables without effect. Without a script it does nothing.
func ReadScripts(ctx context.Context, ex sandbox.Executor, runID string, files []harness.File, vars []string) (said []string, err error) {
	var list []harness.File
	shell, scripts := "sh", 0
	for _, f := range files {
		if !f.IsEnv() || f.Generated {
			continue
		}
		list = append(list, f)
		if f.Script == nil {
			continue
		}
		scripts++
		if f.Script.Shell == "bash" {
			shell = "bash"
		}
	}
	if scripts == 0 {
		return nil, nil
	}
	slices.SortFunc(list, func(a, b harness.File) int { return strings.Compare(path.Base(a.Dest), path.Base(b.Dest)) })
	sections, text, err := runScripts(ctx, ex, wire.ExecRequest{
		ID: runID + "-env", Argv: []string{shell, "-s"}, Cwd: layout.Workspace, Env: vars, Setup: true, Stdin: true,
		DeadlineMS: scriptTime.Milliseconds(),
	}, list)
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if line != "" {
			said = append(said, line)
		}
	}
	return said, writeScripts(ctx, ex, list, sections, &said)
}

// runScripts runs the shell and returns the variables before the first file and
// after each file, and what the files printed.
func runScripts(ctx context.Context, ex sandbox.Executor, req wire.ExecRequest, list []harness.File) (
	sections []map[string]string, said string, err error,
) {
	out, errs := &bounded{limit: maxScriptOutput}, &bounded{limit: maxScriptErrors}
	mark := rand.Text()
	exit, err := ex.Run(ctx, req, wire.Streams{Stdin: strings.NewReader(shellText(list, mark)), Stdout: out, Stderr: errs})
	sections = parseSections(out.Bytes(), mark)
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("read .env files: %w", err)
	case exit.Kind == wire.ExitDenied:
		return nil, "", fmt.Errorf("%s needs a shell, and the policy denies it: %s", scriptName(list, 0), exit.Message)
	case exit.Kind == wire.ExitSpawnFailed:
		return nil, "", fmt.Errorf("%s needs a shell: %s", scriptName(list, 0), exit.Message)
	case exit.Kind == wire.ExitDeadline:
		return nil, "", fmt.Errorf("%s did not end within %s", scriptName(list, len(sections)-1), scriptTime)
	case out.full:
		return nil, "", fmt.Errorf("%s makes more than %d bytes of variables", scriptName(list, len(sections)-1), maxScriptOutput)
	case len(sections) != len(list)+1:
		return nil, "", fmt.Errorf("%s: the shell ended before the end of the file (%s %d): %s",
			scriptName(list, len(sections)-1), exit.Kind, exit.Code, lastLines(errs.Bytes()))
	}
	return sections, errs.String(), nil
}

// scriptName is the name of a file for messages: that of the script at an index,
// or of the next one.
func scriptName(list []harness.File, at int) string {
	for i, f := range list {
		if i >= at && f.Script != nil {
			return f.Script.Name
		}
	}
	return path.Base(list[len(list)-1].Dest)
}

// shellText is the text that the shell reads: it prints its variables, then
// reads each file and prints them again. What the files print goes to standard
// error. The shell is a new one, so nothing of it reaches other commands.
func shellText(list []harness.File, mark string) string {
	var out strings.Builder
	dump := "env -0 && printf '%s\\0' " + mark + " || exit 125\n"
	out.WriteString("agentsh_read() { eval \"$agentsh_text\"; }\n" + dump)
	for _, f := range list {
		text := string(f.Data)
		if f.Script != nil {
			text = f.Script.Text
			for _, v := range f.Script.Vars {
				out.WriteString(v.Name + "=" + quote(v.Value) + "\n")
			}
		}
		out.WriteString("agentsh_text=" + quote(text) + "\nset -a\nagentsh_read </dev/null >&2\nset +aefux\n" + dump)
	}
	return out.String()
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// parseSections parses what the shell printed: NAME=value entries, each ended
// by a NUL byte, and the mark after each section.
func parseSections(data []byte, mark string) []map[string]string {
	var all []map[string]string
	vars := map[string]string{}
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		if string(entry) == mark {
			all = append(all, vars)
			vars = map[string]string{}
			continue
		}
		if name, value, ok := strings.Cut(string(entry), "="); ok {
			vars[name] = value
		}
	}
	return all
}

// shellOwn are variables that a shell changes by itself.
var shellOwn = []string{"_", "PWD", "OLDPWD", "SHLVL", "agentsh_text"}

// writeScripts writes the variables that each script changed to its place.
func writeScripts(ctx context.Context, ex sandbox.Executor, list []harness.File, sections []map[string]string, said *[]string) error {
	var problems []error
	for i, f := range list {
		if f.Script == nil {
			continue
		}
		vars, err := changedVars(f.Script.Name, sections[i], sections[i+1], said)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		data, err := env.Format(vars)
		if err == nil && len(problems) == 0 {
			err = ex.WriteFile(ctx, f.Dest, data, 0o600)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", f.Script.Name, err))
		}
	}
	return errors.Join(problems...)
}

// changedVars are the variables that a script set, by name.
func changedVars(name string, before, after map[string]string, said *[]string) ([]env.Var, error) {
	var vars []env.Var
	var problems []error
	for _, n := range sortedNames(after) {
		was, had := before[n]
		if had && was == after[n] || slices.Contains(shellOwn, n) {
			continue
		}
		switch why, byRun := harness.NotForSandbox(n); {
		case byRun:
			*said = append(*said, fmt.Sprintf("%s: %s %s, which wins", name, n, why))
		case why != "":
			problems = append(problems, fmt.Errorf("%s: %s %s", name, n, why))
		case !env.ValidName(n):
			*said = append(*said, fmt.Sprintf("%s: %.100q is not the name of a variable", name, n))
		default:
			vars = append(vars, env.Var{Name: n, Value: after[n]})
		}
	}
	for _, n := range sortedNames(before) {
		if _, has := after[n]; !has && !slices.Contains(shellOwn, n) {
			problems = append(problems, fmt.Errorf("%s: unset %s has no effect on commands: leave it out where it is set", name, n))
		}
	}
	return vars, errors.Join(problems...)
}

func sortedNames(m map[string]string) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// lastLines is the end of a text, on one line.
func lastLines(data []byte) string {
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(len(lines)-3, 0):], "; ")
}

// bounded keeps at most limit bytes.
type bounded struct {
	bytes.Buffer
	limit int
	full  bool
}

// Write implements [io.Writer]. It never fails, so the command is not disturbed.
func (b *bounded) Write(p []byte) (int, error) {
	if rest := b.limit - b.Len(); len(p) > rest {
		b.full = true
		b.Buffer.Write(p[:rest])
		return len(p), nil
	}
	return b.Buffer.Write(p)
}
