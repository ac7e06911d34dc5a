package output

import (
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/controller/runtime"
)

func TestTheUsageOfAModelIsPrinted(t *testing.T) {
	var out strings.Builder
	PrintResult(&out, controller.Result{
		Agent: "mender", Status: controller.StatusDone, Usage: &runtime.Usage{Model: "m", Turns: 4, Input: 900, Output: 80, CacheRead: 7,
			CostUSD: 0.0125},
		Iterations: []controller.IterationResult{
			{
				Tools: []controller.Tool{{Name: "Read", Calls: 1}, {Name: "Bash", Calls: 2, Failed: 1}},
			}, {Tools: []controller.Tool{{Name: "Bash", Calls: 1}, {Name: "Edit", Calls: 1}}},
		},
	})
	if want := "\nagent: 4 turns, 900 tokens in, 7 cached, 80 out, $0.0125; tools: Bash (3), Edit, Read\n"; !strings.Contains(
		out.String(),
		want,
	) {
		t.Errorf("%s", out.String())
	}
	out.Reset()
	PrintResult(&out, controller.Result{Agent: "script"})
	if strings.Contains(out.String(), "agent:") {
		t.Errorf("%s", out.String())
	}
}

func TestASummarySaysThatNothingWasDelivered(t *testing.T) {
	r := controller.Result{Agent: "mender", Changed: []controller.Changed{{Path: "a.txt", Status: "modified"}}}
	for _, delivered := range []bool{false, true} {
		var out strings.Builder
		r.Delivered = delivered
		PrintResult(&out, r)
		for _, text := range []string{"\nnothing was delivered\n", "\nchanged, but not delivered:\n"} {
			if strings.Contains(out.String(), text) == delivered {
				t.Errorf("delivered %t: %s", delivered, out.String())
			}
		}
	}
}
