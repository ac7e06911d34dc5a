package scan

import (
	"path"
	"strings"
)

// instructionNames are files that agents read as instructions, in any
// directory, in lower case.
var instructionNames = map[string]bool{
	"agents.md": true, "agents.override.md": true, "agent.md": true, "claude.md": true, "claude.local.md": true, "gemini.md": true,
	"qwen.md": true, "skill.md": true,
	".cursorrules": true, ".windsurfrules": true, ".clinerules": true, ".roorules": true, ".goosehints": true,
	"copilot-instructions.md": true, "conventions.md": true, "llms.txt": true,
}

// instructionDirs are directories whose text files agents read.
var instructionDirs = []string{
	".claude", ".cursor/rules", ".github/instructions", ".github/prompts", ".github/agents", ".codex", ".gemini", ".opencode", ".windsurf",
	".clinerules", ".roo",
	".junie", ".amazonq", "skills", "agents", "commands",
}

// ordinaryNames are files for people that agents read early.
var ordinaryNames = []string{"readme", "contributing", "changelog", "todo", "hacking", "development"}

// Classify returns the kind of a repository's file by its slash path. context
// reports whether agents read it without being asked.
func Classify(name string) (kind Kind, context bool) {
	low := strings.ToLower(name)
	base := path.Base(low)
	ext := path.Ext(base)
	if isSettings(name) || isSettings(low) {
		return Settings, true
	}
	if instructionNames[base] || strings.HasSuffix(base, ".instructions.md") || strings.HasSuffix(base, ".prompt.md") || ext == ".mdc" {
		return Instructions, true
	}
	if ext == ".md" || ext == ".txt" || ext == ".mdx" || ext == "" {
		for _, dir := range instructionDirs {
			if strings.HasPrefix(low, dir+"/") || strings.HasPrefix(dir, ".") && strings.Contains(low, "/"+dir+"/") {
				return Instructions, true
			}
		}
	}
	for _, n := range ordinaryNames {
		if base == n || strings.HasPrefix(base, n+".") {
			return Ordinary, true
		}
	}
	return Ordinary, false
}
