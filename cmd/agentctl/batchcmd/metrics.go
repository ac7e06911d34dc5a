package batchcmd

import (
	"slices"
	"sync/atomic"

	"agentsh/controller"
	"agentsh/controller/batch"
	"agentsh/controller/sandbox"
	"agentsh/internal/prometheus"
)

// counts are those of a batch for Prometheus.
type counts struct {
	of   atomic.Pointer[batch.Batch] // nil: it is not open yet
	most map[string]float64          // of what is counted so far, and may be corrected: a counter does not fall
}

func newCounts() *counts { return &counts{most: map[string]float64{}} }

// Values of labels. Each has a series from the beginning.
var (
	states = []string{
		batch.StateWaiting, batch.StateRetrying, batch.StateRunning, batch.StateEnded, batch.StateDropped, batch.StateCutOff,
	}
	statuses = controller.Statuses()
	ends     = []sandbox.EndKind{
		sandbox.EndMemory, sandbox.EndKilled, sandbox.EndRemoved, sandbox.EndDied, sandbox.EndUnreachable, sandbox.EndEvicted,
		sandbox.EndPreempted, sandbox.EndNode, sandbox.EndExpired, sandbox.EndImage, sandbox.EndNoRoom, sandbox.EndQuota, sandbox.EndRefused,
	}
)

// counter and gauge are empty families.
func counter(name, help string) *prometheus.Family {
	return prometheus.New(prometheus.Counter, name, help)
}

func gauge(name, help string) *prometheus.Family { return prometheus.New(prometheus.Gauge, name, help) }

// gather makes the counts.
func (c *counts) gather() []*prometheus.Family {
	b := c.of.Load()
	if b == nil {
		return nil
	}
	v := b.View()
	out := slices.Concat(runsOf(v), c.usageOf(v), []*prometheus.Family{
		gauge("agentsh_batch_info", "The batch, as labels.").Add(1, "batch", v.ID, "name", v.Name),
		gauge("agentsh_batch_started_timestamp_seconds", "When this process began to work on the batch.").Add(float64(v.Began.Unix())),
	})
	if !v.Ends.IsZero() {
		out = append(out, gauge("agentsh_batch_deadline_timestamp_seconds", "The deadline of the batch.").Add(float64(v.Ends.Unix())))
	}
	return out
}

// runsOf counts the runs of a batch.
func runsOf(v *batch.View) []*prometheus.Family {
	byState := gauge("agentsh_batch_runs", "Runs of the batch by their state.")
	byStatus := gauge("agentsh_batch_runs_ended", "Runs that have ended, by their status.")
	queue := gauge("agentsh_batch_queue_length", "Runs that wait, retries included, by backend.")
	attempts := counter("agentsh_batch_attempts_total", "Attempts of runs that were started.")
	retries := counter("agentsh_batch_retries_total", "Attempts after the first one of a run.")
	troubles := counter("agentsh_batch_troubles_total", "Attempts that trouble of the infrastructure ended.")
	sandboxes := counter("agentsh_batch_sandbox_ends_total", "Sandboxes that something outside of them ended, of all attempts.")
	for _, s := range states {
		byState.Add(0, "state", s)
	}
	for _, s := range statuses {
		byStatus.Add(0, "status", s)
	}
	for _, kind := range ends {
		sandboxes.Add(0, "end", string(kind))
	}
	for kind, n := range v.SandboxEnds {
		sandboxes.Add(float64(n), "end", prometheus.Known(kind, ends))
	}
	for i := range v.State {
		one := &v.State[i]
		byState.Add(1, "state", prometheus.Known(one.State, states))
		waits := 0.0
		switch one.State {
		case batch.StateEnded:
			byStatus.Add(1, "status", prometheus.Known(one.End.Status, statuses))
		case batch.StateWaiting, batch.StateRetrying:
			waits = 1
		}
		queue.Add(waits, "backend", one.Backend)
		attempts.Add(float64(one.Attempts))
		retries.Add(float64(max(one.Attempts-1, 0)))
		troubles.Add(float64(one.Troubles))
	}
	return []*prometheus.Family{byState, byStatus, queue, attempts, retries, troubles, sandboxes}
}

// usageOf counts what the runs of a batch have used, those that go on included.
func (c *counts) usageOf(v *batch.View) []*prometheus.Family {
	grown := func(key string, value float64) float64 {
		c.most[key] = max(c.most[key], value)
		return c.most[key]
	}
	tokens := counter("agentsh_batch_tokens_total", "Tokens that agents used, as they report it.")
	for kind, n := range map[string]int64{
		"input": v.Usage.Input, "output": v.Usage.Output, "cache_read": v.Usage.CacheRead, "cache_write": v.Usage.CacheWrite,
	} {
		tokens.Add(grown(kind, float64(n)), "kind", kind)
	}
	out := []*prometheus.Family{
		tokens, counter("agentsh_batch_cost_usd_total", "What agents cost in US dollars, as they report it.").Add(grown("usd", v.Usage.CostUSD)),
	}
	if n := v.Budget.Tokens; n > 0 {
		out = append(out, gauge("agentsh_batch_budget_tokens", "Tokens after which the batch stops.").Add(float64(n)))
	}
	if d := v.Budget.USD; d > 0 {
		out = append(out, gauge("agentsh_batch_budget_usd", "US dollars after which the batch stops.").Add(d))
	}
	return out
}
