package notify

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
	"agentsh/supervisor/audit"
)

// BenchmarkNestedExec compares posix_spawn of /bin/true below a command with
// the same outside, in turn, each exec judged by a policy, verified, with its
// environment completed and an event written to an audit log. It reports the
// medians and their ratio.
func BenchmarkNestedExec(b *testing.B) {
	bin, _ := place(b)
	cfg := benchmarked(b)
	const each = "300"
	var native, supervised, injected, processor []float64
	nanos := func(text string) float64 {
		n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil {
			b.Fatalf("printed %q", text)
		}
		return n
	}
	for b.Loop() {
		out, err := exec.Command(filepath.Join(bin, "spawn"), "/bin/true", each).Output()
		if err != nil {
			b.Fatal(err)
		}
		native = append(native, nanos(string(out)))
		before := processorTime(b)
		supervised = append(supervised, nanos(run(b, cfg, filepath.Join(bin, "spawn"), "/bin/true", each).out.String()))
		processor = append(processor, float64(processorTime(b)-before)/300)
		cfg := cfg
		cfg.Inject = []string{"BASH_ENV=/opt/start.sh"}
		injected = append(injected, nanos(run(b, cfg, filepath.Join(bin, "spawn"), "/bin/true", each).out.String()))
	}
	b.ReportMetric(median(native)/1e3, "us/native")
	b.ReportMetric(median(processor)/1e3, "us/processor")
	b.ReportMetric(median(supervised)/1e3, "us/supervised")
	b.ReportMetric(median(supervised)/median(native), "ratio")
	b.ReportMetric(median(injected)/median(native), "ratio-env")
	b.ReportMetric(0, "ns/op")
}

// benchmarked judges execs by a policy, and writes their events to an audit log.
func benchmarked(b *testing.B) Config {
	b.Helper()
	text := "version: 1\nname: bench\ncommand_rules:\n- {name: no-kill, commands: [kill, curl], decision: deny}\n- {name: all, commands: ['*'], decision: allow}\n"
	p, err := syntax.Load(policy.Source{Name: "bench.yaml", Data: []byte(text)}, syntax.Options{})
	if err != nil {
		b.Fatal(err)
	}
	top, err := os.Open("/")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { top.Close() })
	ids, err := BuildIdentities(p.DeniedPrograms(), Root{Dir: top, Path: []string{"/usr/bin", "/bin"}})
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	log, err := audit.Open(filepath.Join(dir, "log"), audit.Options{KeyFile: filepath.Join(dir, "key")})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { log.Close() })
	return Config{Rules: Rules{Evaluate: p.Evaluate, Prompt: true, Identify: ids.Of}, Emit: func(e wire.Event) error { return log.Append(e) }}
}

// BenchmarkEngines compares both engines with no supervision, in turn: spawns that are judged,
// kills that are judged, and what no engine judges. It reports the medians of the times and
// of their ratios. "processor" is that of the programs and of the supervisor together,
// which depends less on the load of the machine.
func BenchmarkEngines(b *testing.B) {
	bin, _ := place(b)
	cfg := benchmarked(b)
	evaluate := cfg.Evaluate
	cfg.Evaluate = func(r policy.Request) (policy.Decision, policy.Diagnostic) {
		if _, signal := r.(*policy.SignalRequest); signal {
			return withoutUSR2(r)
		}
		return evaluate(r)
	}
	for _, c := range []struct {
		name string
		n    int
	}{{"spawn", 300}, {"fork", 500}, {"thread", 1000}, {"kill", 2000}, {"getppid", 1_000_000}, {"read", 500_000}} {
		b.Run(c.name, func(b *testing.B) {
			argv := []string{filepath.Join(bin, "costs"), c.name, strconv.Itoa(c.n)}
			ways := []struct {
				name string
				run  func() string
			}{
				{"native", func() string {
					out, err := exec.Command(argv[0], argv[1:]...).Output()
					if err != nil {
						b.Fatal(err)
					}
					return string(out)
				}},
				{"listener", func() string { return costsBelow(b, cfg, false, argv) }},
				{"trace", func() string { return costsBelow(b, cfg, true, argv) }},
			}
			times, ratios, processor := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
			for b.Loop() {
				var took, used [3]float64
				for i, way := range ways {
					before := allProcessorTime(b)
					text := way.run()
					used[i] = float64(allProcessorTime(b) - before)
					var err error
					if took[i], err = strconv.ParseFloat(strings.TrimSpace(text), 64); err != nil {
						b.Fatalf("printed %q", text)
					}
					times[way.name] = append(times[way.name], took[i])
					ratios[way.name] = append(ratios[way.name], took[i]/took[0])
					processor[way.name] = append(processor[way.name], used[i]/used[0])
				}
			}
			b.ReportMetric(median(times["native"])/1e3, "us/native")
			for _, way := range ways[1:] {
				b.ReportMetric(median(times[way.name])/1e3, "us/"+way.name)
				b.ReportMetric(median(ratios[way.name]), way.name+"/native")
				b.ReportMetric(median(processor[way.name]), way.name+"-processor/native")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// costsBelow runs a program below an engine, which judges its execs and signals.
func costsBelow(b *testing.B, cfg Config, traced bool, argv []string) string {
	b.Helper()
	s := &session{t: b, done: make(chan error, 1), traced: traced}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &s.out, &s.out
	s.start(cfg, CommandInfo{ID: "c1"}, cmd, judged...)
	s.end()
	return s.out.String()
}

// allProcessorTime is what this process and its children have used.
func allProcessorTime(b *testing.B) time.Duration {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &used); err != nil {
		b.Fatal(err)
	}
	return processorTime(b) + time.Duration(used.Utime.Nano()+used.Stime.Nano())
}

// BenchmarkSpawnBesideIdle is the time of a spawn beside idle processes of the same command,
// by engine and number of processes. "processor" is that of the supervisor for one spawn.
func BenchmarkSpawnBesideIdle(b *testing.B) {
	bin, _ := place(b)
	for _, n := range []string{"0", "1000", "3000", "10000"} {
		argv := []string{
			filepath.Join(bin, "processes"), "idle", n, "/bin/sh", "-c", filepath.Join(bin, "spawn") + " /bin/true 300; kill -9 0",
		}
		besides(b, "native/"+n, func() (string, time.Duration) {
			cmd := exec.Command(argv[0], argv[1:]...)
			var out bytes.Buffer
			cmd.Stdout, cmd.SysProcAttr = &out, &syscall.SysProcAttr{Setpgid: true}
			_ = cmd.Run() // it kills itself
			return out.String(), 0
		})
		for _, e := range engines {
			besides(b, e.name+"/"+n, func() (string, time.Duration) {
				var first, last time.Duration
				evaluate := func(r policy.Request) (policy.Decision, policy.Diagnostic) {
					if q, ok := r.(*policy.CommandRequest); ok && filepath.Base(q.Path) == "true" {
						if last = processorTime(b); first == 0 {
							first = last
						}
					}
					return withoutUSR2(r)
				}
				s := &session{t: b, done: make(chan error, 1), traced: e.traced}
				cmd := exec.Command(argv[0], argv[1:]...)
				cmd.Stdout, cmd.Stderr = &s.out, &s.out
				s.start(Config{Rules: Rules{Evaluate: evaluate, Prompt: e.prompt}}, CommandInfo{ID: "c1"}, cmd)
				s.end()
				return s.out.String(), (last - first) / 299
			})
		}
	}
}

// besides reports the medians of what run prints and returns.
func besides(b *testing.B, name string, run func() (string, time.Duration)) {
	b.Run(name, func(b *testing.B) {
		var times, processor []float64
		for b.Loop() {
			out, used := run()
			nanos, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
			if err != nil {
				b.Fatal(err)
			}
			times, processor = append(times, nanos), append(processor, float64(used))
		}
		b.ReportMetric(median(times)/1e3, "us/spawn")
		b.ReportMetric(median(processor)/1e3, "us/processor")
		b.ReportMetric(0, "ns/op")
	})
}

// processorTime is what this process has used, without its children. It does not depend on
// the load of the machine.
func processorTime(b *testing.B) time.Duration {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkInterruptedExec counts the execs that end with EINTR when a timer of
// 1 kHz fires without SA_RESTART: until a call is received its thread can be
// interrupted.
func BenchmarkInterruptedExec(b *testing.B) {
	bin, dir := place(b)
	var counts []float64
	for b.Loop() {
		s := run(b, Config{}, filepath.Join(bin, "matrix"), "handlers", dir)
		n, err := strconv.ParseFloat(strings.TrimSpace(s.out.String()), 64)
		if err != nil {
			b.Fatalf("printed %q", &s.out)
		}
		counts = append(counts, n)
	}
	b.ReportMetric(median(counts), "EINTR/1000")
	b.ReportMetric(0, "ns/op")
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}
