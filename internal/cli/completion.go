package cli

import "github.com/spf13/cobra"

// AddCompletion adds the command completion, with an example for each shell. The
// other commands of root are there already.
func AddCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	examples := map[string]string{
		"bash":       "  source <(" + root.Name() + " completion bash)",
		"zsh":        "  " + root.Name() + ` completion zsh > "${fpath[1]}/_` + root.Name() + `"`,
		"fish":       "  " + root.Name() + " completion fish | source",
		"powershell": "  " + root.Name() + " completion powershell | Out-String | Invoke-Expression",
	}
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		for _, shell := range c.Commands() {
			shell.Example = examples[shell.Name()]
		}
	}
}
