package runtime

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	"agentsh/internal/layout"
	"agentsh/internal/lazy"
)

// maxArgument is the longest argument or variable that is made of a text, in
// bytes. The limit of Linux is 128 KiB with the terminating NUL, see execve(2),
// MAX_ARG_STRLEN.
const maxArgument = 120 << 10

// maxOpen bounds the unfinished tool calls that a parser stores.
const maxOpen = 1000

// maxName bounds the names of tools and calls, in bytes.
const maxName = 200

func fitsArgument(what, text string) error {
	if len(text) > maxArgument {
		return fmt.Errorf("%s is too long: the runtime gets it as an argument of at most %d KiB", what, maxArgument>>10)
	}
	return nil
}

// withEnv starts a program with variables of its own, see env(1). These
// variables prevent the repository from configuring the program. So env_policy,
// which filters [Command.Env], does not apply to them.
func withEnv(changes, argv []string) []string {
	return append(append([]string{"env"}, changes...), argv...)
}

// hookCommands are the commands of the hooks before or after a call, for sh. A hook
// that cannot run says so: the programs go on after a failure without a text.
func (in Invocation) hookCommands(after bool) ([]string, error) {
	var out []string
	for _, h := range in.Hooks {
		if len(h.Argv) == 0 {
			return nil, errors.New("a hook without a program")
		}
		if h.Tools != "" {
			return nil, errors.New("a hook for some tools, which this runtime does not offer")
		}
		if h.After == after {
			out = append(out, shellWords(h.Argv)+` || { [ $? = 2 ] || echo 'agentsh: the hook did not run' >&2; exit 2; }`)
		}
	}
	return out, nil
}

// hookArgv returns the hook before and the hook after a call; nil: none.
func (in Invocation) hookArgv() (before, after []string, err error) {
	for _, h := range in.Hooks {
		to := &before
		if h.After {
			to = &after
		}
		if *to != nil || h.Tools != "" || len(h.Argv) == 0 {
			return nil, nil, errors.New("this runtime takes one hook before and one after a call, for all tools")
		}
		*to = h.Argv
	}
	return before, after, nil
}

// skillsLink makes the delivered skills available as the user's skills, where
// Codex, Gemini CLI and OpenCode look for them below home.
func (in Invocation) skillsLink(home string) File {
	dest := path.Join(home, ".agents", "skills")
	up := strings.Repeat("../", strings.Count(path.Dir(dest), "/")-strings.Count(path.Dir(layout.ConfigDir), "/"))
	return File{Dest: dest, Target: up + path.Join(path.Base(layout.ConfigDir), "skills")}
}

// skillDirs are the directories of a repository in which the programs look for
// skills.
var skillDirs = []string{".agents/skills", ".codex/skills", ".gemini/skills", ".opencode/skill", ".opencode/skills"}

// shadowed lists the skills of the repository that have the name of a delivered
// one. The programs would offer both, or only that of the repository.
func (in Invocation) shadowed() []string {
	var hidden []string
	for _, name := range in.Skills {
		for _, dir := range skillDirs {
			hidden = append(hidden, path.Join(dir, name))
		}
	}
	return hidden
}

// plainKeys are the keys of a definition's front matter that only describe it.
var plainKeys = map[string]bool{
	"name":        true,
	"description": true,
	"color":       true,
	"version":     true,
	"author":      true,
	"license":     true,
	"tags":        true,
}

// frontKey matches a key of the front matter: YAML in block style.
var frontKey = lazy.Regexp(`^([A-Za-z_][A-Za-z0-9_-]*)[ \t]*:(?:[ \t]|$)`)

// instructions returns the agent definition without its front matter. Front
// matter with other than descriptive keys is rejected: it is for a program that
// interprets it, and its restrictions would have no effect here.
func (in Invocation) instructions() (string, error) {
	text := strings.ReplaceAll(strings.TrimPrefix(in.Text, "\ufeff"), "\r\n", "\n")
	front, found := strings.CutPrefix(text, "---\n")
	if !found {
		return notEmpty(text)
	}
	front, body, found := strings.Cut("\n"+front, "\n---\n")
	if !found {
		if front, found = strings.CutSuffix(front, "\n---"); !found {
			return "", errors.New("the front matter of the agent definition has no end")
		}
	}
	for line := range strings.Lines(front) {
		line = strings.TrimRight(line, "\n")
		key := frontKey().FindStringSubmatch(line)
		switch {
		case line == "" || line[0] == ' ' || line[0] == '\t' || line[0] == '#' || line[0] == '-':
			// empty, or belongs to the key above
		case key == nil:
			return "", fmt.Errorf("the front matter of the agent definition has a line that is no key: %.60q", line)
		case !plainKeys[key[1]]:
			return "", fmt.Errorf(
				"the agent definition sets %s, which this runtime does not act on; remove it, or write what it restricts in the policy",
				key[1],
			)
		}
	}
	return notEmpty(body)
}

func notEmpty(text string) (string, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return "", errors.New("the agent definition says nothing")
	}
	if strings.ContainsRune(text, 0) {
		return "", errors.New("the agent definition holds a NUL")
	}
	return text, nil
}

// serverNames are the names of the MCP servers.
func (in Invocation) serverNames() []string {
	var names []string
	for _, s := range in.Servers {
		names = append(names, s.Name)
	}
	return names
}

// jsonString quotes a text as a JSON string.
func jsonString(text string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		panic(err) // a text
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// decode parses one JSON object and reports whether it succeeded. Members of an
// unexpected type are ignored.
func decode(object []byte, into any) bool {
	err := json.Unmarshal(object, into)
	var kind *json.UnmarshalTypeError
	return err == nil || errors.As(err, &kind)
}
