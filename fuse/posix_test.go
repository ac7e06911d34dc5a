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
		t.Run(name, func(t *testing.T) {
			s := start(t, options{})
			dir := s.path("d")
			must(t, os.Mkdir(dir, 0o755))
			test(t, dir)
		})
	}
}
