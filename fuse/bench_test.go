package fuse

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/internal/trash"
)

// workload is one thing measured natively and through a mount, in turns.
type workload struct {
	name  string
	setup func(b *testing.B, backing string)
	run   func(b *testing.B, dir string) time.Duration
}

// shell times a command in dir.
func shell(script string) func(*testing.B, string) time.Duration {
	return func(b *testing.B, dir string) time.Duration {
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.Dir = dir
		began := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%s: %v: %s", script, err, out)
		}
		return time.Since(began)
	}
}

// repository makes a git repository of 16,000 files in 2,900 directories.
func repository(b *testing.B, backing string) {
	dir := filepath.Join(backing, "repo")
	for i := range 2900 {
		sub := filepath.Join(dir, fmt.Sprintf("d%02d/e%02d/f%d", i%20, i/20%20, i))
		must(b, os.MkdirAll(sub, 0o755))
		for j := range 6 {
			if i*6+j < 16000 {
				text := strings.Repeat(fmt.Sprintf("line %d of file %d\n", j, i), 20+i%200)
				must(b, os.WriteFile(filepath.Join(sub, fmt.Sprintf("g%d.txt", j)), []byte(text), 0o644))
			}
		}
	}
	shell(
		"git init -q . && git config gc.auto 0 && git config maintenance.auto false && git add -A && git -c user.name=a -c user.email=a@b commit -qm all",
	)(
		b,
		dir,
	)
}

func bigFile(b *testing.B, backing string) {
	shell("head -c 1G /dev/zero > big")(b, backing)
}

func smallWrites(b *testing.B, dir string) time.Duration {
	fd, err := unix.Open(filepath.Join(dir, "small"), unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
	must(b, err)
	defer closeFD(fd)
	buf := make([]byte, 100)
	began := time.Now()
	for i := range 100_000 {
		if _, err := unix.Pwrite(fd, buf, int64(i%1000)*100); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(began)
}

func createUnlink(b *testing.B, dir string) time.Duration {
	sub := filepath.Join(dir, "many")
	must(b, os.Mkdir(sub, 0o755))
	buf := make([]byte, 100)
	began := time.Now()
	for i := range 5000 {
		must(b, os.WriteFile(fmt.Sprintf("%s/%d", sub, i), buf, 0o644))
	}
	for i := range 5000 {
		must(b, unix.Unlink(fmt.Sprintf("%s/%d", sub, i)))
	}
	took := time.Since(began)
	must(b, os.Remove(sub))
	return took
}

func openClose(b *testing.B, dir string) time.Duration {
	name := filepath.Join(dir, "one")
	must(b, os.WriteFile(name, make([]byte, 4096), 0o644))
	buf := make([]byte, 4096)
	began := time.Now()
	for range 20_000 {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(b, err)
		_, err = unix.Pread(fd, buf, 0)
		must(b, err)
		closeFD(fd)
	}
	return time.Since(began)
}

var workloads = []workload{
	{"find", repository, shell("find repo >/dev/null")},
	{"du", repository, shell("du -s repo >/dev/null")},
	{"git-status", repository, shell("cd repo && git status >/dev/null")},
	{"grep", repository, shell("grep -r nothing-like-it repo/d0* >/dev/null || true")},
	{"write-1G", nil, shell("dd if=/dev/zero of=out bs=1M count=1024 status=none; rm out")},
	{"read-1G", bigFile, shell("dd if=big of=/dev/null bs=1M status=none")},
	{"pwrite-100", nil, smallWrites},
	{"create-unlink", nil, createUnlink},
	{"open-read4k-close", nil, openClose},
}

// BenchmarkMount reports, for each workload, the median ratio to the same work
// on the backing in the same run.
func BenchmarkMount(b *testing.B) {
	testenv.Need(b, testenv.Root, testenv.FUSE)
	for _, place := range []string{"tmpfs", "disk", "tmpfs-plain"} {
		for _, w := range workloads {
			b.Run(place+"/"+w.name, func(b *testing.B) {
				base := b.TempDir()
				if place != "disk" {
					must(b, unix.Mount("tmpfs", base, "tmpfs", 0, "size=4G"))
					defer func() { _ = unix.Unmount(base, unix.MNT_DETACH) }()
				}
				native, mounted := measure(b, base, w, place == "tmpfs-plain")
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(median(mounted)/median(native), "x")
				b.ReportMetric(median(native)*1e3, "native-ms")
			})
		}
	}
}

const overwritten = 500

// fill makes files of 100 KiB.
func fill(b *testing.B, dir string) {
	data := make([]byte, 100<<10)
	for i := range overwritten {
		must(b, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), data, 0o644))
	}
}

// overwrite is how long it takes to put 100 bytes in the place of each.
func overwrite(b *testing.B, dir string) float64 {
	data := make([]byte, 100)
	began := time.Now()
	for i := range overwritten {
		must(b, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), data, 0o644))
	}
	return float64(time.Since(began).Microseconds()) / overwritten
}

// BenchmarkOverwrite reports what the first write over a file of 100 KiB takes
// in a session: with nothing of it kept, kept for differences, and kept in the
// trash.
func BenchmarkOverwrite(b *testing.B) {
	testenv.Need(b, testenv.Root, testenv.FUSE)
	soft := `
file_rules:
  - {name: keep, paths: ["WS/**"], operations: [write], decision: soft_delete}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`
	for _, place := range []string{"tmpfs", "disk"} {
		for _, kind := range []string{"nothing", "differences", "trash"} {
			b.Run(place+"/"+kind, func(b *testing.B) {
				base := b.TempDir()
				if place == "tmpfs" {
					must(b, unix.Mount("tmpfs", base, "tmpfs", 0, "size=1G"))
					defer func() { _ = unix.Unmount(base, unix.MNT_DETACH) }()
				}
				var native, mounted []float64
				for b.Loop() {
					o := options{
						backing: filepath.Join(base, fmt.Sprint("backing", len(native))),
						limits:  trash.Limits{Bytes: 1 << 30, Entries: 10_000},
					}
					kept, plain := o.backing+"-kept", o.backing+"-native"
					must(b, errors.Join(os.Mkdir(o.backing, 0o755), os.Mkdir(plain, 0o755), os.Mkdir(kept, 0o700)))
					switch kind {
					case "trash":
						o.policy, o.trash = soft, kept
					case "differences":
						o.before = kept
					}
					fill(b, plain)
					native = append(native, overwrite(b, plain))
					fill(b, o.backing)
					s := start(b, o)
					mounted = append(mounted, overwrite(b, s.dir))
					s.end()
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(median(native), "native-us")
				b.ReportMetric(median(mounted), "session-us")
			})
		}
	}
}

// measure alternates the two, after one round that is not counted.
func measure(b *testing.B, base string, w workload, plain bool) (native, mounted []float64) {
	backing := filepath.Join(base, "backing")
	must(b, os.Mkdir(backing, 0o755))
	if w.setup != nil {
		w.setup(b, backing)
	}
	s := start(b, options{backing: backing, plain: plain})
	w.run(b, backing)
	w.run(b, s.dir)
	for b.Loop() {
		native = append(native, w.run(b, backing).Seconds())
		mounted = append(mounted, w.run(b, s.dir).Seconds())
	}
	return native, mounted
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
