package project

import "slices"

// Agent is an agent program that users run in sessions of their own.
type Agent struct {
	Name string   // of the program, and of its home
	Keys []Key    // of its model
	Env  []string // NAME=value: no updates of programs that it cannot write, no reports
}

// Key is a variable with the key of a model, and where the key may be sent.
type Key struct {
	Variable, Host, Header string
}

// keys of the models that agent programs use.
var (
	anthropic = Key{"ANTHROPIC_API_KEY", "api.anthropic.com", "X-Api-Key"}
	openai    = Key{"OPENAI_API_KEY", "api.openai.com", "Authorization"}
	google    = Key{"GEMINI_API_KEY", "generativelanguage.googleapis.com", "X-Goog-Api-Key"}
)

var agents = []Agent{
	{"claude", []Key{anthropic}, []string{"DISABLE_AUTOUPDATER=1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1"}},
	{"codex", []Key{openai, {"CODEX_API_KEY", openai.Host, openai.Header}}, nil},
	{"gemini", []Key{google}, nil},
	{"opencode", []Key{anthropic, openai, google}, []string{"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", `OPENCODE_CONFIG_CONTENT={"snapshot":false}`}},
}

// FindAgent returns the agent program that a command line starts; nil: it starts another
// program. A path is none: a repository could have a file of that name.
func FindAgent(argv []string) *Agent {
	if i := slices.IndexFunc(agents, func(a Agent) bool { return len(argv) > 0 && argv[0] == a.Name }); i >= 0 {
		return &agents[i]
	}
	return nil
}
