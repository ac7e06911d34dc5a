package supervisor

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"agentsh/supervisor/launch"
)

// protectedScore is the oom_score_adj of a supervisor and of file servers, where the
// machine allows it. The kernel then ends nearly everything else first when memory
// runs out. Commands have the higher value that the session init gives itself. See
// proc_pid_oom_score_adj(5).
const protectedScore = -800

// protect makes the kernel spare this process and the file server when memory runs
// out. It needs CAP_SYS_RESOURCE; detect tells where that is missing. A lower value
// that the operator set stays.
func protect(fileServer int) {
	processes := []string{"self"}
	if fileServer != 0 {
		processes = append(processes, strconv.Itoa(fileServer))
	}
	for _, p := range processes {
		name := fmt.Sprintf("/proc/%s/oom_score_adj", p)
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		score, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || score <= protectedScore {
			continue
		}
		launch.KeepScore(score) // of programs that are no part of sessions
		_ = os.WriteFile(name, []byte(strconv.Itoa(protectedScore)), 0)
	}
}
