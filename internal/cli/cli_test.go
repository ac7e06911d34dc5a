package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// program is a command line with what pages have to show.
func program() *cobra.Command {
	root := &cobra.Command{Use: "tool", Short: "Do things", Version: "1.2.3", RunE: func(*cobra.Command, []string) error { return nil }}
	root.CompletionOptions.DisableDefaultCmd = true
	do := &cobra.Command{
		Use: "do [flags] THING", Short: "Do one thing",
		Long:    "Do one thing.\n\n.it is \\n odd:\n  A   1\n  B   2\nand goes on.",
		Example: "  tool do it",
		RunE:    func(*cobra.Command, []string) error { return nil },
	}
	do.Flags().StringP("out", "o", "", "write to `FILE`")
	do.Flags().Bool("secret", false, "nobody asks")
	if err := do.Flags().MarkHidden("secret"); err != nil {
		panic(err)
	}
	hidden := &cobra.Command{Use: "hidden", Hidden: true, RunE: func(*cobra.Command, []string) error { return nil }}
	root.AddCommand(do, hidden, NewMan("tool"), NewVersion(Build{Program: "tool", Version: "1.2.3"}))
	return root
}

func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := program()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetArgs(args)
	err := root.Execute()
	return out.String(), err
}

func TestPageOfACommand(t *testing.T) {
	page, err := execute(t, "man", "do")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		".TH \"TOOL-DO\" 1 \"\" \"agentsh 1.2.3\" \"agentsh manual\"\n",
		".SH NAME\ntool\\-do \\- do one thing\n",
		"\\fBtool do [flags] THING\\fR\n",
		".PP\n\\&.it is \\en odd:\n.nf\n  A   1\n  B   2\n.fi\nand goes on.\n",
		".TP\n\\fB\\-o\\fR, \\fB\\-\\-out\\fR \\fIFILE\\fR\nwrite to FILE\n",
		".SH EXAMPLES\n.nf\n  tool do it\n.fi\n",
		".SH SEE ALSO\n.BR tool (1)\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
	if strings.Contains(page, "secret") {
		t.Error("the page shows a hidden flag")
	}
}

func TestEveryCommandHasAPage(t *testing.T) {
	dir := t.TempDir()
	if _, err := execute(t, "man", "--dir", dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{"tool-do.1", "tool-man.1", "tool-version.1", "tool.1"}; !slices.Equal(names, want) {
		t.Errorf("pages %v, want %v", names, want)
	}
	page, err := os.ReadFile(filepath.Join(dir, "tool.1"))
	if err != nil {
		t.Fatal(err)
	}
	if want := ".BR tool\\-do (1),\n.BR tool\\-man (1),\n.BR tool\\-version (1)\n"; !strings.Contains(string(page), want) {
		t.Errorf("the page of the program has no %q:\n%s", want, page)
	}
}

func TestManRefusesWhatItCannotShow(t *testing.T) {
	for _, args := range [][]string{{"nope"}, {"do", "more"}, {"--dir", "/tmp", "do"}, {"--dir", "/no/directory"}} {
		if _, err := execute(t, append([]string{"man"}, args...)...); err == nil {
			t.Errorf("man %v succeeded", args)
		}
	}
}

func TestVersion(t *testing.T) {
	out, err := execute(t, "version", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got["program"] != "tool" || got["version"] != "1.2.3" || got["arch"] != runtime.GOARCH || got["go"] != runtime.Version() {
		t.Errorf("version --json: %v", got)
	}
	for _, absent := range []string{"libseccomp", "commit"} {
		if _, there := got[absent]; there {
			t.Errorf("version --json has a %s that nobody told it", absent)
		}
	}
	out, err = execute(t, "version")
	if want := "tool 1.2.3 (" + runtime.Version() + ", linux/" + runtime.GOARCH + ")\n"; err != nil || out != want {
		t.Errorf("version: %q, %v", out, err)
	}
}
