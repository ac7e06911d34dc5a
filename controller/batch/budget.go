package batch

import (
	"fmt"

	"agentsh/controller/runtime"
)

// overBudget says which budget is used up; empty: none.
func (b *Batch) overBudget() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	used := b.view.Usage
	for _, g := range b.running {
		used.Add(g.usage)
	}
	return b.view.Budget.over(used)
}

func (b Budget) over(u runtime.Usage) string {
	switch {
	case b.Tokens > 0 && u.Tokens() >= b.Tokens:
		return fmt.Sprintf("the budget is used up: %d of %d tokens", u.Tokens(), b.Tokens)
	case b.USD > 0 && u.CostUSD >= b.USD:
		return fmt.Sprintf("the budget is used up: $%.2f of $%.2f", u.CostUSD, b.USD)
	}
	return ""
}

// mayStart reports whether the budget has room for one more run: each of those that go on is
// expected to use what those that have ended used on average. So many of them do not exceed it
// together.
func (b *Batch) mayStart() bool {
	if b.view.Budget == (Budget{}) {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	used := b.view.Usage
	mean := meanOf(b.view.State)
	for _, g := range b.running {
		used.Input += max(g.usage.Tokens(), mean.Input)
		used.CostUSD += max(g.usage.CostUSD, mean.CostUSD)
	}
	return len(b.running) == 0 || b.view.Budget.over(used) == ""
}

// meanOf is the mean of the tokens, as input, and of the cost of the runs that have used a model.
func meanOf(all []ItemView) runtime.Usage {
	var sum runtime.Usage
	n := int64(0)
	for i := range all {
		if u := all[i].Spent; u.Tokens() > 0 || u.CostUSD > 0 {
			sum.Add(u)
			n++
		}
	}
	if n == 0 {
		return runtime.Usage{}
	}
	return runtime.Usage{Input: sum.Tokens() / n, CostUSD: sum.CostUSD / float64(n)}
}
