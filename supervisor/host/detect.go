package host

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/supervisor"
	"agentsh/supervisor/probe"
)

// Report is what can be enforced on a machine.
type Report struct {
	Kernel       string            `json:"kernel"`
	Architecture string            `json:"architecture"`
	User         int               `json:"uid"`
	Capabilities []string          `json:"capabilities"`
	Primitives   []probe.Primitive `json:"primitives"`
	Session      Trial             `json:"session"`
	Shells       []Shell           `json:"shells,omitempty"`
	Groups       []Group           `json:"groups"`
	HostEdits    Edits             `json:"host_edits"`
}

// Detect tries every primitive, each in a process of its own that ends with the
// trial, and opens a session in a scratch directory. It leaves nothing behind.
// operator gives the user of commands, their PATH, degraded and cache_seconds.
func Detect(ctx context.Context, operator supervisor.OperatorConfig) (*Report, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return nil, fmt.Errorf("uname: %w", err)
	}
	r := &Report{
		Kernel: unix.ByteSliceToString(name.Release[:]), Architecture: runtime.GOARCH,
		User: os.Geteuid(), Capabilities: capabilities(),
	}
	works := map[string]bool{}
	var err error
	if r.Primitives, err = probe.All(ctx); err != nil {
		return nil, err
	}
	for _, p := range r.Primitives {
		works[p.Name] = p.Works
	}
	if err := r.trySession(ctx, operator); err != nil {
		return nil, err
	}
	r.Groups = groups(works, r.Session, operator.Degraded)
	r.HostEdits = hostEdits(r.Primitives, r.Session, operator.CacheSeconds)
	return r, nil
}

// capabilityNames are those that make a difference here, by number. See
// capabilities(7).
var capabilityNames = map[int]string{
	0: "chown", 1: "dac_override", 5: "kill", 6: "setgid", 7: "setuid", 8: "setpcap", 12: "net_admin",
	18: "sys_chroot", 19: "sys_ptrace", 21: "sys_admin", 24: "sys_resource", 38: "perfmon", 39: "bpf", 40: "checkpoint_restore",
}

// capabilities are the effective capabilities that make a difference here.
func capabilities() []string {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(status), "\nCapEff:\t")
	text, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		return nil
	}
	out := []string{}
	for n := range 64 {
		if name := capabilityNames[n]; name != "" && set&(1<<n) != 0 {
			out = append(out, name)
		}
	}
	return out
}
