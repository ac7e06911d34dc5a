package fuse

import (
	"bytes"
	"fmt"
	"os"
	"testing"
)

// TestAReadEndsWhereAShorterFileEnds: a file becomes shorter on the host while a command
// has it open, and the command's own read is the first request that finds out. The read
// ends with the file. No byte is read that nobody wrote.
func TestAReadEndsWhereAShorterFileEnds(t *testing.T) {
	for _, sizes := range [][2]int{{100, 40}, {100, 0}, {4096, 1}, {10_000, 5000}, {10_000, 4096}, {50_000, 10}, {100_000, 70_001}} {
		for _, plain := range []bool{false, true} {
			t.Run(fmt.Sprintf("from %d to %d bytes, plain %v", sizes[0], sizes[1], plain), func(t *testing.T) {
				s := start(t, options{plain: plain, noEventReader: true, cold: true})
				s.seed(map[string]string{"f": string(bytes.Repeat([]byte{'a'}, sizes[0]))})
				f, err := os.Open(s.path("f"))
				must(t, err)
				defer f.Close()
				_, err = f.Stat()
				must(t, err)
				text := bytes.Repeat([]byte{'b'}, sizes[1])
				must(t, os.WriteFile(s.back("f"), text, 0o644))
				got := make([]byte, sizes[0])
				n, _ := f.ReadAt(got, 0)
				if !bytes.Equal(got[:n], text) {
					t.Errorf("read %d bytes, %d of them zeros; want %d bytes", n, bytes.Count(got[:n], []byte{0}), len(text))
				}
			})
		}
	}
}
