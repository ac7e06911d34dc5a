package controller

import (
	"context"
	"strings"

	"agentsh/controller/harness"
	"agentsh/controller/image"
	"agentsh/controller/sandbox"
)

// Described is what a harness says about its runs.
type Described struct {
	Agent   string
	Runtime string
	Backend sandbox.Backend // that the runs will have
	// Provider is who serves the model, as far as the harness says it: see [ModelProvider].
	Provider string
}

// Describe reads a harness as a run of it would, with the problems that the run would refuse.
func Describe(file string, load harness.Options, images image.Config, b sandbox.Backend) (Described, harness.Problems) {
	h, backend, err := loadHarness(file, load, images, b, nil)
	if err != nil {
		return Described{}, problemsOf(file, asFailure(context.Background(), "load", err))
	}
	return Described{
		Agent: h.AgentName(), Runtime: h.Runtime.Or(defaultRuntime), Backend: backend, Provider: ModelProvider(h),
	}, Lint(file, h)
}

// providersOf are the providers of the models of runtimes that have one.
var providersOf = map[string]string{"claude": "anthropic", "codex": "openai", "gemini": "google"}

// ModelProvider is who serves the model of a harness: the part of model before a slash, or
// the one that the runtime has. It is empty if nothing says it.
func ModelProvider(h *harness.Harness) string {
	if name, _, cut := strings.Cut(h.Model.V, "/"); cut {
		return name
	}
	return providersOf[h.Runtime.Or(defaultRuntime)]
}
