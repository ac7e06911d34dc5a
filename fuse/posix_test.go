package fuse

import (
	"os"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

func TestPOSIX(t *testing.T) {
	for name, test := range posixtest.All {
		if name == "FcntlFlockLocksFile" {
			continue // expects flock and fcntl locks to exclude each other: no local filesystem does that
		}
		for mode, plain := range map[string]bool{"": false, ", no passthrough": true} {
			t.Run(name+mode, func(t *testing.T) {
				s := start(t, options{plain: plain})
				dir := s.path("d")
				must(t, os.Mkdir(dir, 0o755))
				test(t, dir)
			})
		}
	}
}
