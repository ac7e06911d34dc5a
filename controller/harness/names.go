package harness

import (
	"strings"

	"agentsh/policy/env"
)

// runNames are the variables that a run sets for the agent. A harness cannot
// set them.
var runNames = []string{
	"TRACEPARENT", "FULLSEND_OUTPUT_DIR", "FULLSEND_RUN_ID", "FULLSEND_ITERATION", "FULLSEND_ITERATION_DEADLINE",
	"FULLSEND_TIMEOUT_MINUTES", "FULLSEND_RUN_HEAD_SHA", "FULLSEND_RUN_STARTED_AT", "CLAUDE_CONFIG_DIR",
	"FULLSEND_TARGET_REPO_DIR", "FULLSEND_OUTPUT_SCHEMA", "FULLSEND_OUTPUT_FILE", "FULLSEND_ROLE", "FULLSEND_SLUG", "FULLSEND_TRACE_ID",
}

// reservedInSandbox is the reason why a variable cannot be delivered into the
// sandbox, or "".
func reservedInSandbox(name string) string {
	switch {
	case env.Reserved(name):
		return "belongs to the supervisor"
	case contains(runNames, name):
		return "is set by the run"
	}
	if _, err := env.Format([]env.Var{{Name: name}}); err != nil && env.ValidName(name) {
		return "is set by shells themselves"
	}
	return ""
}

// checkNames checks the names of variables in both maps of env.
func (b *builder) checkNames(t *tree) {
	if t == nil || t.shape != shapeDict {
		return
	}
	for _, side := range t.keys {
		vars := t.dict[side]
		for _, name := range vars.keys {
			at := vars.dict[name].at
			switch {
			case !env.ValidName(name):
				b.ps.errorf(at, RuleName, "env.%s: %s is not %s", side, quoted(name), identText)
			case side == "runner" && strings.HasPrefix(name, "AGENTSH_"):
				b.ps.errorf(at, RuleReserved, "env.runner: %s belongs to the run", name)
			case side == "sandbox" && reservedInSandbox(name) != "":
				b.ps.errorf(at, RuleReserved, "env.sandbox: %s %s", name, reservedInSandbox(name))
			}
		}
	}
}
