package batch

import (
	"context"
	"errors"
	"fmt"

	"agentsh/controller"
	"agentsh/controller/record"
)

// recover finds out what became of the runs that were going on when the last process was killed:
// they have ended, or start again. It returns those that can be taken over.
func (b *Batch) recover(ctx context.Context) (taken []int, err error) {
	for i := range b.view.State {
		one := b.item(i)
		if one.State != StateRunning {
			continue
		}
		o, err := b.options(i, one.Item, one.RunID)
		if err != nil {
			return nil, fmt.Errorf("run %s: %w", one.Name, err)
		}
		outcome, result, err := controller.Recover(ctx, o, one.RunID)
		var used *record.InUse
		switch {
		case errors.As(err, &used):
			return nil, fmt.Errorf("run %s of the batch goes on: %w", one.RunID, err)
		case err != nil:
			return nil, fmt.Errorf("run %s of the batch: %w", one.Name, err)
		case outcome == controller.OutcomeEnded:
			e := endOf(result)
			b.decide(one, &going{by: StatusAbandoned}, e, result.Trouble())
			if err := b.add(Entry{Kind: entryEnd, Item: i, Attempt: one.Attempts, RunID: one.RunID, End: e}); err != nil {
				return nil, err
			}
			b.notify(Event{Kind: EventEnd, Run: b.item(i)})
		case outcome == controller.OutcomeAgent:
			taken = append(taken, i)
		default:
			b.mu.Lock()
			state := &b.view.State[i]
			if state.State = StateWaiting; state.dropped {
				state.State = StateDropped
			}
			b.mu.Unlock()
		}
	}
	return taken, nil
}

// takeOver delivers the work of agents that have ended, in sandboxes that have outlived the process
// that started them. No run starts before all of them have ended: cleaning up would remove their
// sandboxes.
func (b *Batch) takeOver(ctx context.Context, taken []int) error {
	for _, i := range taken {
		b.queue.waiting++
		b.queue.start(i)
		if err := b.start(ctx, i, b.view.State[i].RunID); err != nil {
			return err
		}
		b.taking++
	}
	return nil
}
