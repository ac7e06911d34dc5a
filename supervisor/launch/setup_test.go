package launch

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAKernelWithoutOverlaysForUsersIsToldWithAWayOn(t *testing.T) {
	for _, tt := range []struct {
		step  string
		errno unix.Errno
		told  bool
	}{
		{"create file system overlay for /usr/lib", unix.EPERM, true},
		{"create file system overlay for /usr/lib", unix.EINVAL, true},
		{"create file system overlay for /usr/lib", unix.ENOMEM, false},
		{"create file system tmpfs for /tmp", unix.EPERM, false},
	} {
		err := died(tt.step, tt.errno).Error()
		told := strings.Contains(err, "'mkdir -p /usr/lib/agentsh'") && strings.Contains(err, "--degraded namespaces")
		if told != tt.told || !strings.HasPrefix(err, tt.step+": "+tt.errno.Error()) {
			t.Errorf("%s, %v: %s", tt.step, tt.errno, err)
		}
	}
}
