package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
)

// codexOwnTools are the features that give Codex tools of its own, or instructions of others.
var codexOwnTools = []string{
	"shell_tool", "unified_exec", "view_image", "multi_agent", "image_generation", "tool_suggest", "skill_search", "goals", "sleep_tool",
	"browser_use", "computer_use", "plugins", "apps", "shell_snapshot", "remote_plugin", "in_app_browser",
}

// tokenVariable has the token of the tools for Codex.
const tokenVariable = "AGENTSH_TOOLS_TOKEN"

// Model implements [Outsider].
func (codex) Model() Model {
	return Model{Keys: []string{"OPENAI_API_KEY", "CODEX_API_KEY"}, Hosts: []string{"api.openai.com:443"}}
}

// CheckOutside implements [Outsider].
func (codex) CheckOutside(Invocation) error { return nil }

// Question implements [Questioner]: the models that this version of Codex knows.
func (codex) Question() []string { return []string{"debug", "models", "--bundled"} }

// ownToolsOfModels are the settings of a model that give it tools of Codex, with the values that do not.
var ownToolsOfModels = map[string]any{
	"apply_patch_tool_type": nil, "supports_search_tool": false, "experimental_supported_tools": []any{}, "tool_mode": nil,
	"multi_agent_version": nil, "shell_type": "disabled",
}

// catalog is the answer of Codex with models that have none of its tools.
func (codex) catalog(answer []byte) ([]byte, error) {
	var all map[string]any
	if err := json.Unmarshal(answer, &all); err != nil {
		return nil, fmt.Errorf("models of Codex: %w", err)
	}
	models, _ := all["models"].([]any)
	if len(models) == 0 {
		return nil, errors.New("models of Codex: it names none")
	}
	for _, m := range models {
		model, is := m.(map[string]any)
		if !is {
			return nil, errors.New("models of Codex: one is no object")
		}
		for key, value := range ownToolsOfModels {
			if _, has := model[key]; has {
				model[key] = value
			}
		}
	}
	return json.Marshal(all)
}

// Outside implements [Outsider]. The model has no tools of Codex but those that read resources of the
// sandbox's tools.
func (c codex) Outside(in Invocation, p Place) (Outside, error) {
	text, err := in.instructions()
	if err != nil {
		return Outside{}, err
	}
	models, err := c.catalog(p.Answer)
	if err != nil {
		return Outside{}, err
	}
	catalog := File{Dest: path.Join(p.Dir, "models.json"), Data: models, Mode: 0o644}
	argv := in.program(c.Traits())
	settings := slices.Clone(codexSettings)
	if !mentions(argv, "model_provider") {
		settings = append(settings, codexProvider...)
	}
	settings = append(settings, "developer_instructions="+tomlString(text), "project_doc_max_bytes=0",
		"project_root_markers=[]", // else settings and skills of directories above, up to one with .git
		"model_catalog_json="+tomlString(catalog.Dest),
		"mcp_servers."+ToolServer+"={url="+tomlString(p.URL)+", bearer_token_env_var="+tomlString(tokenVariable)+
			", required=true, startup_timeout_sec=60, tool_timeout_sec=86400}") // it would begin without tools that are late
	hooks, err := codexHooks(in)
	if err != nil {
		return Outside{}, err
	}
	settings = append(settings, hooks...)
	if in.Effort != "" {
		settings = append(settings, "model_reasoning_effort="+tomlString(in.Effort))
	}
	argv = append(argv, "exec", "--json", "--color", "never", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
		"--ignore-user-config", "--ignore-rules")
	for _, feature := range codexOwnTools {
		argv = append(argv, "--disable", feature)
	}
	if len(hooks) > 0 {
		argv = append(argv, "--dangerously-bypass-hook-trust")
	}
	for _, s := range settings {
		argv = append(argv, "-c", s)
	}
	if in.Model != "" {
		argv = append(argv, "--model", in.Model)
	}
	run, env := runVars(in)
	run[tokenVariable] = p.Token
	home := path.Join(p.Home(), ".codex")
	return Outside{
		Files:   []File{catalog},
		Command: Command{Argv: append(argv, "--", OutsideTask(in)), Cwd: p.Work(), Env: env, Run: run},
		State:   []string{home}, Transcripts: []string{path.Join(home, "sessions")},
	}, nil
}
