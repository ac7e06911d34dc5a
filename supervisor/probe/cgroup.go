package probe

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"agentsh/supervisor/cgroup"
)

// tryCgroup makes a control group as sessions do, sets limits in it and removes
// it. It runs in the caller: a group is no part of a process.
func tryCgroup() (works string, err error) {
	limits := cgroup.Limits{MemoryBytes: 64 << 20, CPUPercent: 50, Pids: 64}
	group, unheld := cgroup.New("agentsh-probe-"+rand.Text(), limits.Kinds())
	defer func() { err = errors.Join(err, group.Close()) }()
	for kind, err := range group.Limit(limits) {
		if unheld[kind] == nil {
			unheld[kind] = err
		}
	}
	var names []string
	var problems []error
	for _, kind := range limits.Kinds() {
		if unheld[kind] == nil {
			names = append(names, kind.String())
		} else {
			problems = append(problems, fmt.Errorf("%s: %w", kind, unheld[kind]))
		}
	}
	return strings.Join(names, " "), errors.Join(problems...)
}
