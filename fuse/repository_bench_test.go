package fuse

import (
	"slices"
	"testing"
	"time"
)

// BenchmarkGuard compares a mount with git_guard to one without, in turns.
func BenchmarkGuard(b *testing.B) {
	for _, w := range []workload{
		{"create+unlink", nil, createUnlink},
		{"git-status", repository, func(b *testing.B, dir string) time.Duration { return shell("cd repo && git status -s")(b, dir) }},
		{"git-add-commit", repository, func(b *testing.B, dir string) time.Duration {
			return shell("cd repo && for i in 1 2 3 4 5; do echo $(date +%N) > d00/x$i; git add d00; git -c user.name=a -c user.email=a@b commit -qm x; git config user.name $i; done")(b, dir)
		}},
	} {
		b.Run(w.name, func(b *testing.B) {
			var both [2]*session
			for i, policy := range []string{allowAll, guardPolicy} {
				both[i] = start(b, options{policy: policy})
				if w.setup != nil {
					w.setup(b, both[i].backing)
				}
				w.run(b, both[i].dir)
			}
			var times [2][]time.Duration
			for b.Loop() {
				for i := range both {
					times[i] = append(times[i], w.run(b, both[i].dir))
				}
			}
			for i, name := range []string{"off-ms", "on-ms"} {
				slices.Sort(times[i])
				b.ReportMetric(float64(times[i][len(times[i])/2].Microseconds())/1000, name)
			}
		})
	}
}
