package hook

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"

	"agentsh/internal/testenv"
)

// mostRefused is the greatest part of real commands that the hooks may refuse.
const mostRefused = 0.001

// TestCommandsOfPackagesAreNotRefused counts the refused commands of the shell
// scripts in the directory COMMANDS, and lists them. The scripts are harmless.
func TestCommandsOfPackagesAreNotRefused(t *testing.T) {
	dir := testenv.Asked(t, "COMMANDS", "commands")
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	commands, unread := map[string]string{}, 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := commandLines(data)
		if err != nil {
			unread++
			continue
		}
		for _, line := range lines {
			if commands[line] == "" {
				commands[line] = filepath.Base(file)
			}
		}
	}
	var refused []string
	for line, file := range commands {
		if err := before(t, "Bash", bash(line)); err != nil {
			refused = append(refused, fmt.Sprintf("%s: %s\n\t%s", file, err, strings.ReplaceAll(line, "\n", "\n\t")))
		}
	}
	slices.Sort(refused)
	t.Logf("%d scripts (%d not read), %d different commands, %d refused:\n%s",
		len(files), unread, len(commands), len(refused), strings.Join(refused, "\n"))
	if len(commands) < 10_000 {
		t.Errorf("%d commands are too few to measure", len(commands))
	}
	if part := float64(len(refused)) / float64(len(commands)); part > mostRefused {
		t.Errorf("%.3f %% of the commands were refused, at most %.1f %%", 100*part, 100*mostRefused)
	}
}

// commandLines are the commands of a script as somebody would type them:
// pipelines and lists in one piece, the parts of other compound commands apart.
func commandLines(script []byte) ([]string, error) {
	variant := syntax.LangBash
	if first, _, _ := bytes.Cut(script, []byte("\n")); !bytes.Contains(first, []byte("bash")) {
		variant = syntax.LangPOSIX
	}
	file, err := syntax.NewParser(syntax.Variant(variant), syntax.KeepComments(true)).Parse(bytes.NewReader(script), "")
	if err != nil {
		return nil, err
	}
	var out []string
	syntax.Walk(file, func(n syntax.Node) bool {
		stmt, ok := n.(*syntax.Stmt)
		if !ok {
			return true
		}
		switch stmt.Cmd.(type) {
		case *syntax.CallExpr, *syntax.BinaryCmd, *syntax.DeclClause, *syntax.TestClause, *syntax.ArithmCmd, *syntax.LetClause:
			out = append(out, string(script[stmt.Pos().Offset():stmt.End().Offset()]))
			return false
		}
		return true
	})
	return out, nil
}
