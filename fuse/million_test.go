package fuse

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

// BenchmarkMillionFiles has the kernel look at a million files, some with names
// of 255 bytes and some that are not UTF-8, and reports what the server's own
// memory grew by for each ("make million").
func BenchmarkMillionFiles(b *testing.B) {
	testenv.Need(b, testenv.Root, testenv.FUSE)
	const files, perDir = 1_000_000, 1000
	base := b.TempDir()
	must(b, unix.Mount("tmpfs", base, "tmpfs", 0, "size=4G,nr_inodes=0"))
	defer func() { _ = unix.Unmount(base, unix.MNT_DETACH) }()
	backing := filepath.Join(base, "backing")
	for i := range files {
		dir := filepath.Join(backing, fmt.Sprintf("directory-%d", i/perDir))
		name := fmt.Sprintf("file-%d.go", i)
		switch i % perDir {
		case 0:
			must(b, os.MkdirAll(dir, 0o755))
		case 1:
			name = strings.Repeat("n", 255)
		case 2:
			name = "\xff\xfe"
		}
		must(b, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	must(b, os.WriteFile(filepath.Join(backing, "sparse"), nil, 0o644))
	must(b, os.Truncate(filepath.Join(backing, "sparse"), 100<<30))
	s := start(b, options{backing: backing})
	before := privateBytes(b, s.server.Process.Pid)
	for b.Loop() {
		seen := 0
		must(b, filepath.WalkDir(s.dir, func(_ string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				seen++
				_, err = d.Info()
			}
			return err
		}))
		if seen != files+1 {
			b.Fatalf("%d files seen", seen)
		}
	}
	after := privateBytes(b, s.server.Process.Pid)
	b.ReportMetric(float64(after-before)/files, "bytes/file")
	b.ReportMetric(float64(before)/(1<<20), "MiB-at-start")
	b.ReportMetric(0, "ns/op")
}

// privateBytes is the memory that a process shares with nobody. See
// proc_pid_smaps(5).
func privateBytes(t testing.TB, pid int) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	must(t, err)
	var sum int64
	for line := range bytes.Lines(data) {
		if fields := strings.Fields(string(line)); len(fields) == 3 && strings.HasPrefix(fields[0], "Private_") {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			must(t, err)
			sum += n << 10
		}
	}
	return sum
}
