package uicmd

import (
	"context"

	"agentsh/cmd/agentctl/sandboxcmd"
	"agentsh/controller"
	"agentsh/controller/batch"
	"agentsh/controller/record"
	"agentsh/internal/prometheus"
)

// gather counts what the page shows. Nothing of a run is a label.
func (s source) gather() []*prometheus.Family {
	gauge := func(name, help string) *prometheus.Family { return prometheus.New(prometheus.Gauge, name, help) }
	runs := gauge("agentsh_runs", "Runs of this user that have a record, by their status.")
	statuses := append(controller.Statuses(), record.StatusRunning, record.StatusAbandoned)
	for _, status := range statuses {
		runs.Add(0, "status", status)
	}
	unreadable := gauge("agentsh_records_unreadable", "Whether records of runs or batches, or questions, could not be read.").Add(0)
	all, err := record.List(s.state)
	for i := range all {
		runs.Add(1, "status", prometheus.Known(all[i].Status, statuses))
	}
	batches := gauge("agentsh_batches", "Batches of this user that have a record, by their status.")
	of := []string{
		batch.StatusRunning, batch.StatusDone, batch.StatusFailed, batch.StatusStopped, batch.StatusDeadline, batch.StatusBudget,
		batch.StatusUnwritten, batch.StatusAbandoned,
	}
	for _, status := range of {
		batches.Add(0, "status", status)
	}
	list, failed := batch.List(s.state)
	for _, v := range list {
		batches.Add(1, "status", prometheus.Known(v.Status, of))
	}
	ctx, cancel := context.WithTimeout(context.Background(), liveTime)
	defer cancel()
	questions, unasked := sandboxcmd.Questions(ctx)
	for _, err := range []error{err, failed, unasked} {
		if err != nil {
			unreadable.Add(1)
		}
	}
	return []*prometheus.Family{
		runs, batches, unreadable, gauge("agentsh_questions", "Questions of runs that wait for an answer.").Add(float64(len(questions))),
	}
}
