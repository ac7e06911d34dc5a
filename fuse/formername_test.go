package fuse

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// TestAFormerNameDoesNotLeadToItsFile: the host renames a file, and makes another one with
// the old name. The kernel still has the old name, because a command that waits for a
// person keeps the directory locked. An open of the old name gets the new file, although
// the renamed one was looked up meanwhile. An inode number that is used again has the same
// effect as a rename.
func TestAFormerNameDoesNotLeadToItsFile(t *testing.T) {
	for _, links := range []int{1, 2} {
		t.Run(fmt.Sprint(links, " links"), func(t *testing.T) {
			s, asked, answer := startWithOneQuestion(t, "d/new")
			s.seed(map[string]string{"d/a": "the old text", "e/x": "x"})
			if links > 1 {
				must(t, os.Link(s.back("d/a"), s.back("e/link")))
			}
			content("d/a")(s.dir)
			content("e/x")(s.dir)
			done := make(chan error, 1)
			go func() { done <- os.WriteFile(s.path("d/new"), nil, 0o644) }()
			<-asked
			must(t, os.Rename(s.back("d/a"), s.back("e/b")))
			must(t, os.WriteFile(s.back("d/a"), []byte("new"), 0o644))
			if got := content("e/b")(s.dir); got != content("e/b")(s.backing) {
				t.Errorf("the new name: %s", got)
			}
			read := make(chan string, 1)
			go func() { read <- content("d/a")(s.dir) }()
			var got string
			select {
			case got = <-read:
				close(answer)
			case <-time.After(time.Second): // it waits for the directory
				close(answer)
				got = <-read
			}
			if want := content("d/a")(s.backing); got != want {
				t.Errorf("the old name: %s, want %s", got, want)
			}
			must(t, <-done)
		})
	}
}
