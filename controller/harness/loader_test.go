package harness

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestALoaderServesSeveralGoroutines(t *testing.T) {
	files := tests{"base.yaml": head + "env: {both: {A: base}}\nforge: {github: {env: {runner: {A: forge}}}}\n"}
	for i := range 8 {
		files[fmt.Sprintf("h%d.yaml", i)] = fmt.Sprintf("base: base.yaml\nenv: {sandbox: {N: %d}}\n", i)
	}
	dir := lay(t, files)
	l := NewLoader(Options{Forge: "github"})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			name := filepath.Join(dir, fmt.Sprintf("h%d.yaml", i))
			h, ps := l.Load(name)
			if h == nil {
				t.Error(ps)
				return
			}
			if got := show(h.Env.Runner) + " " + show(h.Env.Sandbox); got != fmt.Sprintf("A=forge A=base N=%d", i) {
				t.Error(got)
			}
			if got := strings.Join(append(l.Bases(name), l.Forges(name)...), " "); got != dir+"/base.yaml github" {
				t.Error(got)
			}
			if other, _ := l.With("").Load(name); show(other.Env.Runner) != "A=base" {
				t.Error(show(other.Env.Runner))
			}
		})
	}
	wg.Wait()
}
