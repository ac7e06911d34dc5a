package batchcmd

import (
	"testing"

	"agentsh/controller/batch"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/internal/prometheus"
)

// find is the family with a name.
func find(t *testing.T, all []*prometheus.Family, name string) *prometheus.Family {
	t.Helper()
	for _, f := range all {
		if f.Name() == name {
			return f
		}
	}
	t.Fatalf("no family %s", name)
	return nil
}

func TestABatchIsCounted(t *testing.T) {
	v := &batch.View{
		Usage: runtime.Usage{Input: 10, Output: 5, CostUSD: 0.5},
		State: []batch.ItemView{
			{State: batch.StateEnded, Attempts: 3, Troubles: 2, End: &batch.End{Status: "done"}, Item: batch.Item{Backend: "local"}},
			{State: batch.StateEnded, Attempts: 1, End: &batch.End{Status: "of a later release"}, Item: batch.Item{Backend: "local"}},
			{State: batch.StateRetrying, Attempts: 1, Troubles: 1, Item: batch.Item{Backend: "kubernetes"}},
			{State: batch.StateWaiting, Item: batch.Item{Backend: "local"}},
		},
		SandboxEnds: map[sandbox.EndKind]int{sandbox.EndMemory: 2, "of a later release": 1},
	}
	v.Budget.Tokens = 100
	c := newCounts()
	all := append(runsOf(v), c.usageOf(v)...)
	for _, x := range []struct {
		family string
		labels []string
		want   float64
	}{
		{"agentsh_batch_runs", []string{"state", "ended"}, 2}, {"agentsh_batch_runs", []string{"state", "running"}, 0},
		{"agentsh_batch_runs_ended", []string{"status", "done"}, 1}, {"agentsh_batch_runs_ended", []string{"status", "other"}, 1},
		{"agentsh_batch_queue_length", []string{"backend", "local"}, 1}, {"agentsh_batch_queue_length", []string{"backend", "kubernetes"}, 1},
		{"agentsh_batch_attempts_total", nil, 5}, {"agentsh_batch_retries_total", nil, 2}, {"agentsh_batch_troubles_total", nil, 3},
		{"agentsh_batch_sandbox_ends_total", []string{"end", "memory"}, 2}, {"agentsh_batch_sandbox_ends_total", []string{"end", "other"}, 1},
		{"agentsh_batch_tokens_total", []string{"kind", "input"}, 10}, {"agentsh_batch_cost_usd_total", nil, 0.5},
		{"agentsh_batch_budget_tokens", nil, 100},
	} {
		if got, has := find(t, all, x.family).Value(x.labels...); !has || got != x.want {
			t.Errorf("%s%v is %v, want %v", x.family, x.labels, got, x.want)
		}
	}
	v.Usage = runtime.Usage{Input: 8, Output: 6} // the end of a run says less than its messages did
	all = c.usageOf(v)
	for kind, want := range map[string]float64{"input": 10, "output": 6} {
		if got, _ := find(t, all, "agentsh_batch_tokens_total").Value("kind", kind); got != want {
			t.Errorf("after that %s is %v, want %v", kind, got, want)
		}
	}
}
