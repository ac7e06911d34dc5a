package statedir

import (
	"os"
	"strings"
)

// BootID distinguishes machines and boots. The number and the start time of a process do not:
// another process may have both after a restart. See proc_sys_kernel(5).
func BootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(id))
}
